"""Shards of an input, and the file that is made of their answers."""

import json
import os
import shutil

import pytest
from classified import lines_of, read, write

from ldt.errors import DataError, UserError
from ldt.inference import stream
from ldt.inference.answer_file import AnswerFile
from ldt.inference.merge import merge
from ldt.inference.predict import predict
from ldt.inference.stream import Shard

COLUMNS = {"data": {"text": "text", "id": "name"}}


class Constant:
    """In place of a model: what an answer is depends on its text alone."""

    def __init__(self, folder, recipe, *rest, **options):
        self.max_length, self.field = 64, recipe.data.text

    @staticmethod
    def automatic(device):
        return "fp32"

    def encode(self, example):
        from ldt.io.records import text

        words = text(example, self.field).split()
        if "refused" in words:
            raise DataError(f"{example.where}: refused")
        return [{"input_ids": [0] * (len(words) + 1), "tokens": len(words)}]

    def outputs(self, features):
        return [{} for _ in features]

    def decode(self, outputs, example, features):
        return {"label": "yes", "scores": {"yes": len(features[0]["input_ids"]) / 7, "no": 0.0}}


@pytest.fixture
def quick(monkeypatch):
    """Answers without a model, and groups of 3 documents."""
    monkeypatch.setattr("ldt.inference.engine.PREDICTORS", {"examples": f"{__name__}:Constant"})
    monkeypatch.setattr(stream, "LOOKAHEAD_DOCUMENTS", 3)


@pytest.fixture
def ask(quick, fine_tuned, tmp_path):
    """Answers an input into ``answers.jsonl``, whole or a shard of it."""

    def run(source, name="answers.jsonl", **options):
        return predict(source, model=str(fine_tuned), output=str(tmp_path / name), **options)

    return run


def in_shards(ask, source, count, name="answers.jsonl", **options):
    """The exit codes of all shards."""
    return [ask(source, name, shard=f"{index}/{count}", **options) for index in range(1, count + 1)]


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2", "01/2", ""])
def test_a_shard_is_i_of_n(text):
    with pytest.raises(UserError, match="expected i/n with i from 1 to n"):
        Shard.parse(text)


def test_each_record_is_one_shard_s():
    shards = [Shard(index, 7) for index in range(1, 8)]
    for record in range(1, 50):
        assert [shard.has(record) for shard in shards].index(True) == (record - 1) % 7
        assert sum(shard.has(record) for shard in shards) == 1
    assert Shard.parse("2/7").part("a.jsonl") == "a.jsonl.2-of-7"


@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_the_merged_answers_are_those_of_one_run(ask, tmp_path, count, log):
    source = write(tmp_path / "docs.jsonl", lines_of(20))
    assert ask(source, "whole.jsonl") == 0
    assert in_shards(ask, source, count) == [0] * count
    for index in range(1, count + 1):
        part = read(tmp_path / f"answers.jsonl.{index}-of-{count}")
        assert [each["record"] for each in part] == list(range(index, 21, count))
        assert [each["id"] for each in part] == [f"doc-{i}" for i in range(index - 1, 20, count)]
    assert merge(str(tmp_path / "answers.jsonl")) == 0
    assert (tmp_path / "answers.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert log.messages[-1].endswith(f"20 answers of {count} part{'s' * (count > 1)}")
    assert not list(tmp_path.glob("*.partial"))


def test_broken_records_are_their_shard_s_alone(ask, tmp_path):
    lines = lines_of(14)
    for number, line in {
        0: "{",
        5: json.dumps({"name": "r", "body": {"text": "refused"}}),
        6: lines[1],  # of another shard of three, so that merge alone could know
        7: lines[1],
        13: b"\xff".decode("latin-1"),
    }.items():
        lines[number] = line
    lines[6] = json.dumps({"name": "n", "body": {"text": 3}})
    source = write(tmp_path / "docs.jsonl", ["", *lines, ""])
    assert ask(source, "whole.jsonl", on_error="skip") == 7
    assert in_shards(ask, source, 3, on_error="skip") == [7, 7, 7]
    for index, records in ((1, [1, 7]), (2, [8, 14]), (3, [6])):
        rejects = read(tmp_path / f"answers.jsonl.{index}-of-3.rejects.jsonl")
        assert [each["record"] for each in rejects] == records
    assert merge(str(tmp_path / "answers.jsonl")) == 7
    for name in ("{}", "{}.rejects.jsonl"):
        merged = (tmp_path / name.format("answers.jsonl")).read_bytes()
        assert merged == (tmp_path / name.format("whole.jsonl")).read_bytes()
    with pytest.raises(DataError, match=r"docs.jsonl:2: "):
        ask(source, "stopped.jsonl", shard="1/3")
    with pytest.raises(DataError, match=r"docs.jsonl:9: id 'doc-1' came before"):
        ask(source, "stopped.jsonl", shard="2/3")
    with pytest.raises(DataError, match=r"docs.jsonl:7: refused"):
        ask(source, "stopped.jsonl", shard="3/3")


def test_an_unfinished_shard_is_named_and_goes_on(ask, tmp_path, monkeypatch):
    source = write(tmp_path / "docs.jsonl", lines_of(20))
    target = str(tmp_path / "answers.jsonl")
    assert ask(source, "whole.jsonl") == 0
    assert ask(source, shard="1/2") == 0
    with pytest.raises(UserError, match=r"answers.jsonl.2-of-2: missing; ldt predict with --shard"):
        merge(target)
    with monkeypatch.context() as patched:
        finish = AnswerFile.finish
        patched.setattr(AnswerFile, "finish", lambda self, **facts: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ask(source, shard="2/2")
    assert AnswerFile.finish is finish
    with pytest.raises(UserError, match=r"answers.jsonl.2-of-2: not finished; .* --resume goes on"):
        merge(target)
    with pytest.raises(UserError, match=r"unfinished run; --resume"):
        ask(source, shard="2/2")
    assert ask(source, shard="2/2", resume=True) == 0
    assert merge(target) == 0
    assert (tmp_path / "answers.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_parts_that_do_not_belong_together_are_refused(ask, fine_tuned, tmp_path):
    source = write(tmp_path / "docs.jsonl", lines_of(8))
    target = str(tmp_path / "answers.jsonl")
    with pytest.raises(UserError, match=r"no part of it is there, such as .*answers.jsonl.1-of-4;"):
        merge(target)
    assert in_shards(ask, source, 2) == [0, 0]

    def refused(what, **options):
        options = {"model": str(fine_tuned), "output": target} | options
        assert predict(options.pop("input", source), shard="2/2", overwrite=True, **options) == 0
        with pytest.raises(UserError, match=f"answers.jsonl.2-of-2: made with another {what}"):
            merge(target)

    other = shutil.copytree(fine_tuned, tmp_path / "run")
    with open(other / "tokenizer_config.json", "a") as file:
        file.write(" ")
    refused("model than answers.jsonl.1-of-2", model=str(other))
    refused("--keep", keep=["body.text"])
    lines = lines_of(8)
    refused("input", input=write(tmp_path / "changed.jsonl", [*lines[:6], lines[7], lines[6]]))
    refused("input and another number of", input=write(tmp_path / "more.jsonl", lines_of(9)))
    assert ask(source, shard="2/2", overwrite=True) == 0
    assert ask(source, shard="1/3") == 0
    with pytest.raises(UserError, match="parts of 2 and 3 shards; move away those"):
        merge(target)
    (tmp_path / "answers.jsonl.1-of-3").unlink()
    part = tmp_path / "answers.jsonl.1-of-2"
    content = part.read_bytes()
    part.write_bytes(content.replace(b"yes", b"no!", 1))
    with pytest.raises(UserError, match=r"1-of-2: was changed after it was finished; .*--overwr"):
        merge(target)
    part.write_bytes(content)
    note = tmp_path / ".answers.jsonl.1-of-2.run.json"
    note.rename(tmp_path / "note")
    with pytest.raises(UserError, match=r"1-of-2: nothing beside it says what made it"):
        merge(target)
    (tmp_path / "note").rename(note)
    assert merge(target) == 0
    assert merge(target) == 0  # nothing to do
    (tmp_path / "answers.jsonl").write_text("mine\n")
    with pytest.raises(UserError, match="--overwrite replaces it"):
        merge(target)
    assert merge(target, overwrite=True) == 0
    assert len(read(target)) == 8


def test_an_id_in_two_parts_is_refused_and_so_are_rejects_that_are_lost(ask, tmp_path):
    lines = lines_of(8)
    source = write(tmp_path / "docs.jsonl", [*lines[:7], lines[0]])
    assert in_shards(ask, source, 2) == [0, 0]
    with pytest.raises(DataError, match="id 'doc-0' is in two parts"):
        merge(str(tmp_path / "answers.jsonl"))
    assert not (tmp_path / "answers.jsonl").exists()
    source = write(tmp_path / "docs.jsonl", ["{", *lines])
    assert in_shards(ask, source, 2, "b.jsonl", on_error="skip") == [7, 0]
    rejects = tmp_path / "b.jsonl.1-of-2.rejects.jsonl"
    rejects.rename(tmp_path / "kept")
    with pytest.raises(UserError, match="0 rejected records, but b.jsonl.1-of-2 was"):
        merge(str(tmp_path / "b.jsonl"))
    (tmp_path / "kept").rename(rejects)
    assert merge(str(tmp_path / "b.jsonl")) == 7


def test_the_ending_decides_what_the_merged_file_is(ask, tmp_path):
    source = write(tmp_path / "docs.jsonl", lines_of(9))
    for name in ("answers.csv", "answers.parquet"):
        assert ask(source, f"whole-{name}") == 0
        assert in_shards(ask, source, 2, name) == [0, 0]
        assert merge(str(tmp_path / name)) == 0
        assert (tmp_path / name).read_bytes() == (tmp_path / f"whole-{name}").read_bytes()
    with pytest.raises(UserError, match=".xlsx is not written"):
        ask(source, "answers.xlsx", shard="1/2")


def test_a_merge_that_was_ended_goes_on(ask, tmp_path, monkeypatch):
    source = write(tmp_path / "docs.jsonl", lines_of(20))
    assert ask(source, "whole.jsonl") == 0
    assert in_shards(ask, source, 2) == [0, 0]
    monkeypatch.setattr("ldt.inference.merge.GROUP", 4)
    writing = AnswerFile.write

    def ended(self, group):
        writing(self, group)
        if self.count >= 8:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(AnswerFile, "write", ended)
        with pytest.raises(KeyboardInterrupt):
            merge(str(tmp_path / "answers.jsonl"))
    assert len(read(tmp_path / "answers.jsonl.partial")) == 8
    assert merge(str(tmp_path / "answers.jsonl")) == 0
    assert (tmp_path / "answers.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_shard_needs_a_file(ask, fine_tuned, tmp_path):
    source = write(tmp_path / "docs.jsonl", lines_of(2))
    for output in (None, "-", os.devnull):
        with pytest.raises(UserError, match="--shard 1/2 needs --output FILE"):
            predict(source, model=str(fine_tuned), output=output, shard="1/2")
    with pytest.raises(UserError, match="answers of classification have 'record' themselves"):
        ask(source, shard="1/2", keep=["record=name"])
    assert ask(source, keep=["record=name"]) == 0
