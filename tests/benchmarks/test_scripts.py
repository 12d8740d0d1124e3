"""Smoke tests: each script says how it is used, and measures something small from end to end."""

import gzip
import json
import re
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from served import make_run

from ldt.inference.measure import STATUS

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(file.stem for file in FOLDER.glob("*.py") if "ArgumentParser" in file.read_text())
of_linux = pytest.mark.skipif(not STATUS.exists(), reason="memory is told by Linux alone")
WORDS = "the parties of this agreement meet before a court and not before arbitrators".split()


@pytest.fixture
def run(script, tmp_path, monkeypatch):
    """run(name, *options) -> the result that the script writes as JSON."""
    monkeypatch.syspath_prepend(FOLDER.parent / "examples" / "demo")
    monkeypatch.chdir(tmp_path)

    def run(name, *options):
        file = tmp_path / "result.json"
        monkeypatch.setattr(sys, "argv", [name, *map(str, options), "--json", str(file)])
        script(name).main()
        return json.loads(file.read_text("utf-8"))

    return run


def packed(file, rows):
    """Write rows as JSON lines, compressed where the name ends in .gz."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_is_shown(name, script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    monkeypatch.syspath_prepend(FOLDER.parent / "examples" / "demo")
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert not end.value.code
    assert re.match("usage: ", capsys.readouterr().out)


@pytest.mark.slow
def test_the_cpu_comparison_keeps_other_cases(script, run, monkeypatch):
    module = script("encoder_cpu")
    cases = {
        "small": module.Case("forward", 64, 1, (2.0, 1.0), (1.0, 0.5)),
        "mixed": module.Case("training", 64, 1, lengths=(64, 9)),
    }
    for name, value in {"CASES": cases, "GROWTH": (64,), "COMPILED": (64,)}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "SHAPE", {"heads": 1, "vocabulary": 100})
    # A process would not know of these settings, and takes a while to begin.
    monkeypatch.setattr(module, "ProcessPoolExecutor", lambda size, how: ThreadPoolExecutor(size))
    run("encoder_cpu", "--only", "small", "growth", "--rounds", 1)
    result = run("encoder_cpu", "--only", "mixed", "compiled", "--rounds", 1)
    row = result["cases"]["small"]
    assert set(row["seconds"]) == set(row["mib"]) == {"ldt", "longformer", "roberta", "modernbert"}
    assert row["times_faster"]["roberta"] == row["seconds"]["roberta"] / row["seconds"]["ldt"]
    assert result["cases"]["mixed"]["tokens"] == [64, 9]
    assert len(result["growth"]) == len(result["compiled"]) == 1


@pytest.mark.slow
def test_parts_of_a_layer_add_up(script, run, monkeypatch):
    module = script("parts")
    maps = {name: (a // 12, b // 12) for name, (a, b) in module.MAPS.items()}
    for name, value in {"HEADS": 1, "WIDTH": 64, "WIDE": 256, "MAPS": maps}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "LAYERS", {40: 3})
    options = ("--rounds", 1, "--dtypes", "fp32", "--lengths", 40, "--passes", "forward")
    (row,) = run("parts", *options)["cases"].values()
    parts = sum(row["ms"].get(name, 0) for name in (*module.PARTS, "rest"))
    assert parts == pytest.approx(row["ms"]["layer"])


def test_both_sequence_models_are_timed_and_other_cases_stay(run, tmp_path):
    before = {"seconds": {"ldt": 1.0, "transformers": 3.0}, "times_faster": 3.0}
    (tmp_path / "result.json").write_text(json.dumps({"cases": {"training-4096-256": before}}))
    options = ("--only", "generate-4096", "--tiny", "--rounds", 1, "--what", "time")
    result = run("seq2seq", *options)
    assert result["cases"]["training-4096-256"] == before
    row = result["cases"]["generate-4096"]
    assert row["times_faster"] == row["seconds"]["transformers"] / row["seconds"]["ldt"]


@pytest.mark.slow
@of_linux
def test_an_ldt_is_measured_beside_another_and_transformers(run):
    result = run("loading", "--tiny", "--before", FOLDER.parent)
    assert list(result["memory"]) == ["ldt", "ldt, mapped", "transformers", "before, ldt"]
    assert all(row["cpu_seconds"] > 0.1 for row in result["time"].values())


@pytest.mark.slow
@of_linux
def test_a_folder_of_sentence_transformers_is_made_and_embedded(run):
    result = run("embedding_speed", "--tiny")
    assert result["medians"]["ldt"]["seconds"] > 0
    assert result["tokens"] > result["documents"]


@pytest.mark.nightly  # it starts two servers and ldt predict
def test_the_server_is_measured_under_load(run):
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    result = run("serve", "--documents", 8, "--rounds", 1, "--requests", 100)
    assert set(result["load"]) == {"1", "8", "64"}
    assert result["soak"]["codes"] == {"200": 98, "422": 2}


@pytest.mark.nightly  # minutes: it starts a dozen commands
@of_linux
def test_workers_give_the_same_bytes_as_one_process(run):
    result = run("workers", "--tiny", "--documents", 900)
    assert len(result["seconds"]) == 4
    assert len(set(result["sha256"])) == 1


@pytest.mark.nightly  # a minute: it starts seven commands
@of_linux
def test_starts_epoch_encoding_and_stores_are_measured(run):
    result = run("training_data", "--documents", 400, "--few", 200)
    assert [each["documents"] for each in result["starts"]] == [200, 400]
    assert result["epoch"]["inputs"] == result["stores"]["inputs"] == 400


@pytest.mark.nightly  # it exports four models
def test_an_exported_model_is_measured_beside_ldt(run, tmp_path):
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    for part in ("train", "dev"):
        rows = [{"id": f"{part}{n}", "text": " ".join(WORDS[n:] * 3)} for n in range(8)]
        rows = [row | {"group": ("one", "two")[n % 2]} for n, row in enumerate(rows)]
        packed(tmp_path / f"cuad.{part}.jsonl.gz", rows)
    result = run("export", "--tiny", "--rounds", 1, "--cuad", tmp_path)
    assert {row["tokens"] for row in result["time"]} == {64, 128}
    assert [row["what"] for row in result["int8"]] == ["demo", "cuad"]


@pytest.mark.slow
def test_every_order_of_windows_is_trained_once_a_seed(script, run, tmp_path, monkeypatch):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "text").write_text("the party of the first part\n" * 80, "utf-8")
    changes = script("charlm").SIZES["cpu"][1]
    monkeypatch.setitem(changes["model.config"], "hidden_size", 8)
    monkeypatch.setitem(changes, "training.save_strategy", "no")
    result = run("charlm", tmp_path / "texts", "--seeds", 2, "--steps", 1)
    assert set(result["rows"]) == set(script("charlm").PAPER)
    assert len(list((tmp_path / "texts" / "runs").glob("*/metrics.json"))) == 8


@pytest.mark.slow
def test_global_projections_are_compared_by_questions_of_several_hops(run):
    runs = run("multihop", "--steps", 2, "--seeds", 1)["runs"]
    separate, shared, _ = (row["parameters"] for row in runs)
    assert separate > shared


@pytest.mark.slow
def test_two_levels_are_trained_and_their_cost_measured(script, run, tmp_path, monkeypatch):
    module = script("poolingformer")
    cost = replace(module.COST, heads=1, layers=1, vocabulary=50)
    for name, value in {"TEST": 8, "COST": cost, "COST_TOKENS": 512}.items():
        monkeypatch.setattr(module, name, value)
    options = (tmp_path / "runs", "--steps", 2, "--rounds", 1, "--seeds", 1, "--only")
    run("poolingformer", *options, "two-levels", "small")
    result = run("poolingformer", *options, "cost")
    assert list(result["rows"]) == ["small", "two-levels"]
    assert result["cost"]["rows"]["large"]["forward"]["seconds_to_large"] == 1


@pytest.mark.slow
def test_the_table_of_pretraining_has_its_five_rows_and_is_not_made_twice(script, run, text_place):
    for part in ("train", "dev"):
        lines = (text_place / "train.txt").read_text().splitlines()
        packed(text_place / f"sotu.{part}.jsonl", [{"text": f"{part} {line}"} for line in lines])
    result = run("mlm", text_place, "--steps", 1)
    assert list(result["rows"]) == list(script("mlm").PAPER)
    assert len({row["masked"] for row in result["rows"].values()}) == 1
    before = {file: file.stat().st_mtime_ns for file in text_place.rglob("metrics.json")}
    assert run("mlm", text_place, "--steps", 1)["rows"] == result["rows"]
    assert before == {file: file.stat().st_mtime_ns for file in text_place.rglob("metrics.json")}


@pytest.mark.slow
def test_meetings_and_needles_are_searched(script, run, tmp_path, tiny_longformer, monkeypatch):
    """BM25 finds what only the words tell; a query is a summary of one meeting alone."""
    pytest.importorskip("bm25s")
    module, folder = script("longembed_qmsum"), tmp_path / "model"
    monkeypatch.setattr(module, "model", lambda work, name: str(folder))
    make_run(tiny_longformer, folder, "embedding")
    meetings = [
        {
            "id": f"m{n}",
            "meeting_transcripts": [{"speaker": "A", "content": f"We talk of {words} today."}] * 9,
            "general_query_list": [
                {"answer": f"They talk of {words}."},
                {"answer": "Both say so."},
            ],
            "specific_query_list": [],
        }
        for n, words in enumerate(("remote controls", "school meals"))
    ]
    packed(tmp_path / "data" / "qmsum" / "val.jsonl.gz", meetings)
    text = tmp_path / "text.txt"
    text.write_text("the parties of this agreement meet before a court " * 500)
    options = ["--split", "val", "--only", "cut-256", "chunks-256"]
    needles = ["--needles", 512, "--text", text, "--work", tmp_path / "work"]
    result = run("longembed_qmsum", tmp_path, *options, *needles)
    assert result["qmsum-val"]["bm25"]["documents"] == 2
    assert result["qmsum-val"]["chunks-256"]["queries"] == 3
    row = result["passkey"]["512 chunks-256"]
    assert row["bm25"] == {"ndcg@1": 100}
    assert sum(each["queries"] for each in row["by_position"]) == 50
    assert len(row["by_position"]) == 4


@pytest.mark.slow
def test_late_chunks_are_trained_and_found(script, run, tmp_path, tiny_longformer, monkeypatch):
    """The chunk that is right for a question overlaps its marked turns; BM25 finds it by a word."""
    pytest.importorskip("bm25s")
    module = script("late_chunks")
    for name, changes in (("short", {}), ("tokens", {"vectors": "tokens", "normalize": False})):
        make_run(tiny_longformer, tmp_path / name, "embedding")
        (tmp_path / name / "recipe.yaml").unlink()
        config = json.loads((tmp_path / name / "config.json").read_text())
        config["embedding"] |= changes
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(module, "model", lambda _, name: str(tmp_path / name.partition("-")[0]))
    monkeypatch.setitem(module.CHUNKS, "unit_tokens", 24)
    for split, count in (("train", 5), ("val", 2)):
        rows = []
        for meeting in range(count):
            turns = [
                {"speaker": "A", "content": f"we talk of {word} before lunch"} for word in WORDS
            ]
            asked = [
                {
                    "query": WORDS[n],
                    "answer": f"{split} {meeting} {n}",
                    "relevant_text_span": [[n, n]],
                }
                for n in (1, 4)
            ]
            rows.append({"id": f"{split}{meeting}", "meeting_transcripts": turns})
            rows[-1] |= {"general_query_list": [], "specific_query_list": asked}
        packed(tmp_path / "data" / "qmsum" / f"{split}.jsonl.gz", rows)
    result = run("late_chunks", tmp_path, "--seeds", 1, "--work", tmp_path / "work")
    (part,) = result.values()
    assert part["BM25"]["inside"]["mrr@10"][0] == 100
    for case in module.STATES:
        figures = part[f"{case} of 5 meetings, seed 0"]
        assert figures["documents"]["queries"] == 4
        assert figures["loss"] > 0
        assert figures.get("inside") != part[case].get("inside") or case == "long-4096"
