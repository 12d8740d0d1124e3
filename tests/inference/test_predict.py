import gzip
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from itertools import count, cycle
from pathlib import Path

import numpy as np
import pytest
import yaml
from classified import LABELS, RECIPE, answer, lines_of, make_run, read, write
from transformers import AutoTokenizer

from ldt.attention import matmul
from ldt.errors import DataError, ModelError, Terminated, UserError
from ldt.inference import stream
from ldt.inference.predict import predict
from ldt.inference.predictor import EncoderPredictor


def test_each_document_gets_its_label_scores_and_windows(fine_tuned, tmp_path, log):
    source = write(tmp_path / "docs.jsonl", lines_of(40))
    code, answers = answer(source, fine_tuned, tmp_path)
    assert code == 0
    assert [each["id"] for each in answers] == [f"doc-{number}" for number in range(40)]
    assert [each.get("empty") for each in answers[:11]] == [True, *[None] * 9, True]
    assert {each["chunks"] for each in answers} >= {1, 2, 3}
    assert np.ptp([each["scores"]["yes"] for each in answers]) > 0.1
    for each in answers:
        assert list(each["scores"]) == LABELS
        assert each["label"] == max(each["scores"], key=each["scores"].get)
        assert sum(each["scores"].values()) == pytest.approx(1, abs=1e-5)
        assert all(score == round(score, 6) for score in each["scores"].values())
    long = sum(each["chunks"] > 1 for each in answers)
    assert log.messages[-1].startswith("40 documents, ")
    assert log.messages[-1].endswith(f"{long} documents longer than 64 tokens")


@pytest.mark.parametrize("change", [{"overflow": "truncate"}, {"max_chunks": 1}])
def test_the_end_counts_the_answers_and_what_was_not_read(tiny_longformer, tmp_path, log, change):
    make_run(tiny_longformer, tmp_path / "run")
    recipe = tmp_path / "run" / "recipe.yaml"
    content = yaml.safe_load(recipe.read_text())
    content["data"] |= change
    recipe.write_text(yaml.safe_dump(content))
    source = write(tmp_path / "docs.jsonl", lines_of(40))
    _, answers = answer(source, tmp_path / "run", tmp_path)
    counts = Counter(each["label"] for each in answers)
    shown = ", ".join(f"{label} {count}" for label, count in counts.most_common())
    said, end = log.messages[-2:]
    assert said == f"answers: {shown}"
    cut = [each for each in answers if each.get("truncated")]
    unread = sum(each["unread_tokens"] for each in cut)
    assert len(cut) > 1
    assert all(each["unread_tokens"] > 0 for each in cut)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run", model_max_length=1000)
    texts = [json.loads(line)["body"]["text"] for line in lines_of(40)]
    share = unread / sum(map(len, tokenizer(texts)["input_ids"]))
    assert end.endswith(
        f"; {len(cut)} documents longer than 64 tokens; "
        f"{len(cut)} cut off: {unread:,} tokens ({share:.1%}) not read"
    )


def test_answers_do_not_depend_on_the_batches(fine_tuned, tmp_path):
    source = write(tmp_path / "docs.jsonl", lines_of(30))
    _, expected = answer(source, fine_tuned, tmp_path, batch_tokens=1)
    for batch_tokens in (130, 16384):
        _, answers = answer(source, fine_tuned, tmp_path, batch_tokens=batch_tokens, overwrite=True)
        assert [each["id"] for each in answers] == [each["id"] for each in expected]
        for each, other in zip(answers, expected, strict=True):
            assert each["scores"] == pytest.approx(other["scores"], abs=1e-5)


def test_without_a_model_the_latest_run_is_taken_and_named(
    fine_tuned, tmp_path, monkeypatch, log, capfdbinary
):
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path / "docs.jsonl", lines_of(3))
    with pytest.raises(ModelError, match="runs/latest: no such folder; ldt finetune"):
        predict(source)
    shutil.copytree(fine_tuned, "runs/contracts")
    Path("runs/latest").symlink_to("contracts")
    assert predict(source) == 0
    assert log.messages[0] == "model: runs/latest -> runs/contracts"
    out = capfdbinary.readouterr().out
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["doc-0", "doc-1", "doc-2"]


def test_fields_named_on_the_command_line_replace_those_of_the_recipe(fine_tuned, tmp_path):
    lines = ['{"text": "this part", "key": "k"}', '{"text": "the other", "key": null}']
    source = write(tmp_path / "docs.jsonl", lines)
    _, answers = answer(source, fine_tuned, tmp_path, data={"text": "text", "id": "key"})
    assert [each["id"] for each in answers] == ["k", 2]
    other = {"model": str(fine_tuned), "output": str(tmp_path / "other.jsonl")}
    with pytest.raises(DataError, match="docs.jsonl:1: no field 'body.text'"):
        predict(source, data={"id": "key"}, **other)
    with pytest.raises(DataError, match="docs.jsonl:1: no field 'name'"):
        predict(source, **other)


def test_resuming_with_another_field_or_model_is_refused(fine_tuned, tmp_path):
    lines = ['{"text": "this part", "key": 1}', "{"]
    source = write(tmp_path / "docs.jsonl", lines)
    options = {"output": str(tmp_path / "answers.jsonl"), "resume": True}
    text, both = {"text": "text"}, {"text": "text", "id": "key"}
    with pytest.raises(DataError):
        predict(source, model=str(fine_tuned), data=both, **options)
    with pytest.raises(UserError, match="made with another id field; use the same"):
        predict(source, model=str(fine_tuned), data=text, **options)
    other = shutil.copytree(fine_tuned, tmp_path / "run")
    with pytest.raises(DataError):
        predict(source, model=str(other), data=both, **options)
    with open(other / "model.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    with pytest.raises(UserError, match="made with another model; use the same"):
        predict(source, model=str(other), data=both, **options)


def test_a_model_that_is_not_fine_tuned_has_no_answers(fine_tuned, tiny_longformer, tmp_path):
    source = write(tmp_path / "docs.jsonl", lines_of(1))
    with pytest.raises(ModelError, match=r"no recipe.yaml, so .* ldt finetune RECIPE model.path="):
        predict(source, model=str(tiny_longformer))
    folder = shutil.copytree(tiny_longformer, tmp_path / "model")
    (folder / "recipe.yaml").write_text(RECIPE)
    with pytest.raises(ModelError, match="not fine-tuned for classification.*classifier"):
        predict(source, model=str(folder))
    with pytest.raises(ModelError, match="nowhere: no such folder"):
        predict(source, model=str(tmp_path / "nowhere"))
    folder = shutil.copytree(fine_tuned, tmp_path / "run")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="this run is not finished; .* --resume"):
        predict(source, model=str(folder))


def test_bf16_says_how_far_its_answers_are_off(fine_tuned, tmp_path, caplog):
    docs, exact, fast = (tmp_path / name for name in ("docs.jsonl", "exact.jsonl", "fast.jsonl"))
    write(docs, lines_of(20))
    predict(str(docs), model=str(fine_tuned), output=str(exact))
    with caplog.at_level(logging.INFO, "ldt"):
        predict(str(docs), model=str(fine_tuned), output=str(fast), precision="bf16")
    assert "bf16 against fp32 on the first" in caplog.text
    scores = [
        [json.loads(line)["scores"][LABELS[0]] for line in file.read_text().splitlines()]
        for file in (exact, fast)
    ]
    assert scores[0] != scores[1]
    said = float(re.search(r"they are ([\d.]+) off at most", caplog.text)[1]) + 0.005  # rounded
    assert np.abs(np.subtract(*scores)).max() <= said / 2  # two logits, of a slope of 1/4 at most


def test_no_device_of_that_name_is_told(fine_tuned, tmp_path):
    with pytest.raises(UserError, match="device=tpu9: cannot be used"):
        predict(write(tmp_path / "docs.jsonl", lines_of(1)), model=str(fine_tuned), device="tpu9")


def test_a_broken_line_stops_and_resume_goes_on_once_it_is_mended(fine_tuned, tmp_path, log):
    lines = lines_of(8)
    path = tmp_path / "docs.jsonl"
    source = write(path, [*lines[:5], '{"name": "doc-5", "body": ', *lines[6:]])
    target = tmp_path / "answers.jsonl"
    with pytest.raises(DataError, match=r"docs.jsonl:6: not JSON"):
        predict(source, model=str(fine_tuned), output=str(target))
    assert not target.exists()
    assert len(read(f"{target}.partial")) == 5
    assert log.messages[-1].startswith("5 answers kept in ")
    write(path, lines)
    code, answers = answer(source, fine_tuned, tmp_path, resume=True)
    assert (code, [each["id"] for each in answers]) == (0, [f"doc-{n}" for n in range(8)])
    assert "; 5 documents answered before" in log.messages[-1]
    files = [".answers.jsonl.run.json", "answers.jsonl", "docs.jsonl"]
    assert sorted(os.listdir(tmp_path)) == files


def test_skipped_records_are_kept_beside_the_answers(fine_tuned, tmp_path, log):
    lines = lines_of(6)
    lines[1] = '{"name": "doc-1", "body": {"text": null}}'
    lines[3] = lines[2]
    lines.append('{"name": "doc-6", "body"')
    path = tmp_path / "docs.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    code, answers = answer(str(path), fine_tuned, tmp_path, on_error="skip")
    assert code == 7
    assert [each["id"] for each in answers] == ["doc-0", "doc-2", "doc-4", "doc-5"]
    rejects = read(tmp_path / "answers.jsonl.rejects.jsonl")
    assert [each["where"] for each in rejects] == [f"{path}:{number}" for number in (2, 4, 7)]
    assert "field 'body.text' is null" in rejects[0]["error"]
    assert "'doc-2' came before" in rejects[1]["error"]
    assert rejects[2]["line"] == lines[-1]
    assert f"3 records rejected, see {tmp_path}/answers.jsonl.rejects.jsonl" in log.messages[-1]
    path.write_bytes(gzip.compress("\n".join(lines[4:6]).encode()))
    assert answer(str(path), fine_tuned, tmp_path, on_error="skip", overwrite=True)[0] == 0
    assert not (tmp_path / "answers.jsonl.rejects.jsonl").exists()


def test_a_named_pipe_is_written_to_and_not_replaced(fine_tuned, tmp_path):
    source = write(tmp_path / "docs.jsonl", lines_of(2))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    assert predict(source, model=str(fine_tuned), output=str(pipe)) == 0
    answers = os.read(reader, 1 << 16).splitlines()
    os.close(reader)
    assert [json.loads(each)["id"] for each in answers] == ["doc-0", "doc-1"]
    assert pipe.is_fifo()


def test_interrupted_runs_end_in_the_bytes_of_an_uninterrupted_one(
    fine_tuned, tmp_path, monkeypatch, log
):
    monkeypatch.setattr(stream, "LOOKAHEAD_BATCHES", 2)
    source = write(tmp_path / "docs.jsonl", lines_of(60))
    options = {"model": str(fine_tuned), "batch_tokens": 256}
    with matmul.chosen({"linear": False, "bmm": False}):
        assert predict(source, output=str(tmp_path / "whole.jsonl"), **options) == 0
    target = tmp_path / "answers.jsonl"
    options |= {"output": str(target), "resume": True}
    real = EncoderPredictor.outputs
    codes = {KeyboardInterrupt: 130, Terminated: 143}
    for stop in cycle([*codes, MemoryError]):
        calls = count()

        def outputs(self, features, calls=calls, stop=stop):
            if next(calls) == 4:
                raise stop
            return real(self, features)

        monkeypatch.setattr(EncoderPredictor, "outputs", outputs)
        try:
            with matmul.chosen({"linear": False, "bmm": False}):
                code = predict(source, **options)
        except MemoryError:
            continue
        if code == 0:
            break
        assert code == codes[stop]
        assert "with --resume" in log.messages[-1]
    assert target.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def command(*arguments, **options):
    code = "from ldt.inference.predict import predict; import sys\n"
    code += "sys.exit(predict(**eval(sys.argv[1])))"
    return subprocess.Popen([sys.executable, "-c", code, repr(dict(*arguments))], **options)


@pytest.mark.slow
def test_a_slow_pipe_is_answered_line_by_line_and_sigterm_ends_it(fine_tuned, tmp_path):
    running = command(
        {"input": "-", "model": str(fine_tuned)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for line in lines_of(2):
        running.stdin.write(line.encode() + b"\n")
        running.stdin.flush()
        assert json.loads(running.stdout.readline())["id"] == json.loads(line)["name"]
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=30)
    assert running.returncode == 143
    assert out == b""
    assert b"Traceback" not in err
    assert b"Fatal" not in err
