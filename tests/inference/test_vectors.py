"""Vectors of documents and of their units: against their definition, in every file and order."""

import json
import signal
import subprocess
import sys

import fsspec
import numpy as np
import pyarrow.parquet
import pytest
import torch
from served import make_run
from transformers import AutoModel, AutoTokenizer

import ldt
from ldt.cli import app
from ldt.data.sentences import paragraphs, sentences
from ldt.errors import PrecisionError, UserError
from ldt.inference.predict import predict

TEXT = "It ends in May.  The party (see § 4) agrees 🙂 naïvely. Nobody else does!\n\nThe end."
STORY = " ".join(f"The party {n} agrees that this agreement ends." for n in range(20))
ROOM = 62  # tokens of a document in an input of a run


@pytest.fixture(scope="module")
def runs(tiny_longformer, tmp_path_factory):
    """Maker of runs, each once, by the keys of its task."""
    made = {}

    def run(task=""):
        if task not in made:
            folder = tmp_path_factory.mktemp("embedding")
            made[task] = make_run(tiny_longformer, folder, "embedding", task)
        return str(made[task])

    return run


def states(folder, text):
    """States of a text's tokens without the special ones, by transformers, and their places."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
    places = inputs.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        rows = AutoModel.from_pretrained(folder)(**inputs).last_hidden_state[0]
    # A token's own first character is behind the white space that it may begin with.
    starts = [b - len(text[a:b].lstrip()) if text[a:b].strip() else b for a, b in places]
    return rows.numpy(), starts


def unit_length(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("unit", "size"),
    [("sentence", 1), ("paragraph", 1), ("chunk", 16), ("chunk", 17), ("document", 1)],
)
def test_a_unit_has_the_mean_of_its_tokens_states_in_the_whole_document(runs, unit, size):
    folder = runs()
    model = ldt.load(folder, unit=unit, unit_tokens=size, data={"max_length": 128})
    answer = model(TEXT)
    rows, starts = states(folder, TEXT)
    body, starts = rows[1:-1], np.array(starts[1:-1])
    if unit == "document":
        spans, expected = [(0, len(TEXT))], [rows.mean(0)]
    elif unit == "chunk":
        # A rest of fewer than a quarter of the tokens belongs to the chunk in front of it.
        borders = {16: [0, 16, 32, 48, 64, 70], 17: [0, 17, 34, 51, 70]}[size]
        expected = [body[a:b].mean(0) for a, b in zip(borders, borders[1:], strict=False)]
        spans = answer["spans"]
        assert [a for a, _ in spans] == starts[borders[:-1]].tolist()
    else:
        spans = {"sentence": sentences, "paragraph": paragraphs}[unit](TEXT)
        expected = [body[(a <= starts) & (starts < b)].mean(0) for a, b in spans]
    assert [tuple(span) for span in answer["spans"]] == [tuple(span) for span in spans]
    np.testing.assert_allclose(answer["vectors"], unit_length(np.array(expected)), atol=1e-5)
    assert answer["chunks"] == 1


def test_a_document_of_several_parts_has_each_unit_of_the_part_with_most_around_it(runs, tmp_path):
    run = make_run(runs(), tmp_path / "run", "embedding", stride=40)
    model = ldt.load(str(run), unit="sentence").load()
    (answer,) = model.answer([{"text": STORY}])
    whole = AutoTokenizer.from_pretrained(runs())(STORY, return_offsets_mapping=True)
    ids, places = whole["input_ids"][1:-1], whole["offset_mapping"][1:-1]
    starts = np.array([b - len(STORY[a:b].lstrip()) for a, b in places])
    features = model.model.encode(model._examples([{"text": STORY}], None).__next__())
    parts = [feature["read"][1:] for feature in features]
    assert len(parts) == answer["chunks"] > 5
    assert all(end - start == ROOM for start, end in parts)
    encoder = AutoModel.from_pretrained(runs())
    for (first, behind), vector in zip(answer["spans"], answer["vectors"], strict=True):
        mine = np.flatnonzero((first <= starts) & (starts < behind))
        around = {
            min(mine[0] - a if a else 999, b - 1 - mine[-1] if b < len(ids) else 999): (a, b)
            for a, b in reversed(parts)
            if a <= mine[0] and mine[-1] < b
        }
        a, b = around[max(around)]
        with torch.no_grad():
            rows = encoder(torch.tensor([[0, *ids[a:b], 2]])).last_hidden_state[0, 1:-1]
        expected = unit_length(rows[mine - a].mean(0).numpy())
        np.testing.assert_allclose(vector, expected, atol=1e-5)
    assert len(answer["spans"]) == len(sentences(STORY))


def test_a_document_of_several_parts_has_the_mean_of_their_vectors_by_tokens(runs):
    model = ldt.load(runs())
    answer = model(STORY)
    assert answer["spans"] == [[0, len(STORY)]]
    ids = AutoTokenizer.from_pretrained(runs())(STORY, verbose=False)["input_ids"][1:-1]
    starts = [*range(0, len(ids) - ROOM, ROOM - 8), len(ids) - ROOM]
    # Where two parts share tokens, each has half of them.
    borders = [(a + ROOM + b) // 2 for a, b in zip(starts, starts[1:], strict=False)]
    shares = np.diff([0, *borders, len(ids)])
    encoder, total = AutoModel.from_pretrained(runs()), 0
    for start, share in zip(starts, shares, strict=True):
        part = torch.tensor([[0, *ids[start : start + ROOM], 2]])
        with torch.no_grad():
            rows = encoder(part).last_hidden_state[0]
        total += share * unit_length(rows.mean(0).numpy())
    np.testing.assert_allclose(answer["vectors"][0], unit_length(total), atol=1e-5)
    assert (answer["chunks"], answer["tokens"]) == (len(starts), len(ids) + 2)


def test_a_late_unit_that_no_part_holds_has_the_mean_of_its_pieces(runs):
    model = ldt.load(runs(), unit="chunk", unit_tokens=150).load()
    answer = model(STORY)
    features = model.model.encode(next(model._examples([STORY], None)))
    assert len(answer["spans"]) == 2
    read = np.zeros(answer["tokens"] - 2, int)
    vectors = {0: [], 1: []}
    encoder = AutoModel.from_pretrained(runs())
    for feature in features:
        first, start, _ = feature["read"]
        with torch.no_grad():
            rows = encoder(torch.tensor([list(feature["input_ids"])])).last_hidden_state[0]
        for (a, b), (unit, count) in zip(feature["spans"], feature["units"], strict=True):
            read[start + a - first : start + b - first] += 1
            vectors[unit].append(count * unit_length(rows[a:b].mean(0).numpy()))
    assert (read == 1).all()
    expected = unit_length(np.array([np.sum(parts, 0) for parts in vectors.values()]))
    np.testing.assert_allclose(answer["vectors"], expected, atol=1e-5)


def test_units_alone_have_the_vectors_of_documents(runs):
    for task in ("", "pooling: cls", "pooling: max", "pooling: last"):
        answer = ldt.load(runs(task), unit="sentence", late=False)(STORY)
        texts = [STORY[a:b] for a, b in answer["spans"]]
        expected = np.concatenate([each["vectors"] for each in ldt.load(runs(task))(texts)])
        # In the middle of a document words have a space in front of them.
        assert len(expected) == len(answer["vectors"]) > 5
        np.testing.assert_allclose(answer["vectors"][0], expected[0], atol=1e-5)
        assert answer["chunks"] == 1


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        (
            "pooling: cls",
            {"unit": "chunk"},
            "pooling cls; late=false reads each chunk",
        ),
        (
            "vectors: tokens",
            {"unit": "chunk"},
            "unit=chunk: .* a vector for each token",
        ),
        ("", {"dimensions": 8}, "dimensions=8: the vectors were trained with one size alone"),
        ("dimensions: [12, 4]", {"dimensions": 8}, "were trained with 12, 4"),
    ],
)
def test_vectors_that_a_model_does_not_have_are_refused(runs, task, options, message):
    with pytest.raises(UserError, match=message):
        ldt.load(runs(task), **options)


def test_a_shorter_vector_is_the_beginning_with_the_length_one(runs):
    task = "dimensions: [12, 4]"
    whole = ldt.load(runs(task), unit="sentence")(TEXT)["vectors"]
    short = ldt.load(runs(task), unit="sentence", dimensions=4)(TEXT)["vectors"]
    np.testing.assert_allclose(short, unit_length(whole[:, :4]), atol=1e-6)


def test_tokens_have_vectors_with_their_characters_each_once(runs):
    answer = ldt.load(runs("vectors: tokens, size: 5"))(STORY)
    assert answer["unit"] == "token"
    assert answer["vectors"].shape == (answer["tokens"], 5)
    starts = [a for a, _ in answer["spans"]]
    assert starts == sorted(starts)
    np.testing.assert_allclose(np.linalg.norm(answer["vectors"], axis=1), 1, atol=1e-5)


# -- files


def write(path, count=60):
    """Documents of different lengths, one of them empty."""
    texts = [STORY[: 40 + 137 * n % 700] for n in range(count)]
    texts[count // 2] = ""
    lines = [{"id": f"d{n}", "text": text} for n, text in enumerate(texts)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def embed(*arguments):
    return app([*map(str, arguments)], standalone_mode=False)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_every_file_has_the_vectors_that_python_has(runs, tmp_path, dtype):
    source = write(tmp_path / "docs.jsonl")
    records = [json.loads(line) for line in source.read_text().splitlines()]
    answers = ldt.load(runs(), unit="sentence")(records)
    expected = np.concatenate([answer["vectors"] for answer in answers])
    tables = {}
    for name in ("v.parquet", "v.npy", "v.jsonl"):
        options = ("--unit", "sentence", "--dtype", dtype, "--model", runs())
        assert embed("embed", source, "--output", tmp_path / name, *options) == 0
    table = pyarrow.parquet.read_table(tmp_path / "v.parquet")
    assert str(table.schema.field("embedding").type).startswith("fixed_size_list")
    tables["v.parquet"] = table.to_pylist()
    array = np.load(tmp_path / "v.npy")
    assert array.dtype == np.dtype(dtype)
    lines = (tmp_path / "v.ids.jsonl").read_text().splitlines()
    tables["v.npy"] = [
        json.loads(line) | {"embedding": row.tolist()}
        for line, row in zip(lines, array, strict=True)
    ]
    tables["v.jsonl"] = [json.loads(line) for line in (tmp_path / "v.jsonl").open()]
    tolerance = {"float32": 1e-6, "float16": 1e-3, "int8": 5e-3}[dtype]
    for rows in tables.values():
        found = np.array([row.pop("embedding") for row in rows], float)
        found *= np.array([row.pop("scale", 1) for row in rows])[:, None]
        np.testing.assert_allclose(found, expected, atol=tolerance)
        assert rows == [
            {"id": f"{answer['id']}#{number}", "document": answer["id"], "number": number}
            | {"start": start, "end": end, "unread_tokens": 0}
            for answer in answers
            for number, (start, end) in enumerate(answer["spans"])
        ]


def test_an_array_goes_to_a_store_with_its_ids(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = fsspec.filesystem("memory")
    store.store.clear()
    source = write(tmp_path / "docs.jsonl", 4)
    predict(str(source), model=runs(), output="memory://bucket/v.npy")
    assert store.find("/bucket") == ["/bucket/v.ids.jsonl", "/bucket/v.npy"]
    assert [path.name for path in tmp_path.iterdir()] == ["docs.jsonl"]
    store.store.clear()


KILLED = """
import os, sys
from ldt.inference import answer_file
from ldt.cli import app
write, left = answer_file.AnswerFile.write, [2]
def killed(self, answers):
    write(self, answers)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), 9)
answer_file.AnswerFile.write = killed
app(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["parquet", pytest.param("npy", marks=pytest.mark.nightly)])
def test_a_killed_run_two_workers_and_shards_give_the_same_bytes(
    runs, tmp_path, ending, monkeypatch
):
    monkeypatch.setenv("LDT_ONEDNN", "0")  # whichever library the clock would choose
    source = write(tmp_path / "docs.jsonl")
    options = ("--model", runs(), "--unit", "chunk", "--unit-tokens", 20, "--batch-tokens", 256)
    outputs = {name: tmp_path / f"{name}.{ending}" for name in ("whole", "killed", "two", "parts")}
    embed("embed", source, "--output", outputs["whole"], *options)
    command = ["embed", source, "--output", outputs["killed"], *options]
    ended = subprocess.run([sys.executable, "-c", KILLED, *map(str, command)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not outputs["killed"].exists()
    partial = outputs["killed"].with_name(f"{outputs['killed'].name}.partial")
    assert 0 < partial.read_text().count("\n") < 60
    embed(*command, "--resume")
    embed("embed", source, "--output", outputs["two"], *options, "--workers", 2)
    for part in ("1/2", "2/2"):
        embed("embed", source, "--output", outputs["parts"], *options, "--shard", part)
    embed("embed", "--merge", outputs["parts"])
    expected = outputs["whole"].read_bytes()
    assert {name: path.read_bytes() == expected for name, path in outputs.items()} == {
        "whole": True,
        "killed": True,
        "two": True,
        "parts": True,
    }


def test_other_options_do_not_go_on_with_vectors(runs, tmp_path):
    source, target = write(tmp_path / "docs.jsonl", 8), tmp_path / "v.parquet"
    predict(str(source), model=runs(), output=str(target))
    assert predict(str(source), model=runs(), output=str(target), resume=True) == 0
    for options in ({"unit": "chunk"}, {"dtype": "int8"}):
        with pytest.raises(UserError, match=f"finished, with another {next(iter(options))}"):
            predict(str(source), model=runs(), output=str(target), resume=True, **options)
    with pytest.raises(UserError, match="v.csv: vectors are written as .parquet, .npy, .jsonl"):
        predict(str(source), model=runs(), output=str(tmp_path / "v.csv"))


def test_what_is_not_read_is_told_beside_the_vector_and_in_the_log(runs, tmp_path, log):
    run = make_run(runs(), tmp_path / "run", "embedding", overflow="truncate", stride=0)
    source = write(tmp_path / "docs.jsonl", 6)
    predict(str(source), model=str(run), output=str(tmp_path / "v.jsonl"))
    rows = [json.loads(line) for line in (tmp_path / "v.jsonl").open()]
    assert any("cut off" in message and "not read" in message for message in log.messages)
    texts = [json.loads(line)["text"] for line in source.open()]
    tokenizer = AutoTokenizer.from_pretrained(run)
    counts = [len(tokenizer(text)["input_ids"]) for text in texts]
    assert [row["id"] for row in rows] == [f"d{n}" for n in range(6)]
    assert [row["unread_tokens"] for row in rows] == [max(0, n - 64) for n in counts]


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_rounded_arithmetic_gives_vectors_like_those_in_fp32(runs, tmp_path, precision, log):
    source = write(tmp_path / "docs.jsonl", 12)
    tables = []
    for name in ("fp32", precision):
        target = tmp_path / f"{name}.npy"
        options = {"precision": name, "device": "cpu", "max_changed": 1}
        predict(str(source), model=runs(), output=str(target), unit="sentence", **options)
        tables.append(np.load(target))
    cosines = (tables[0] * tables[1]).sum(1)
    assert 0.9 < cosines.min() < 1 - 1e-7
    said = {"bf16": "the least cosine of the vectors is 0.9", "int8": "12 documents: "}[precision]
    assert said in log.text


def test_int8_that_turns_vectors_is_refused(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("ldt.inference.agreement.COSINE", 1.1)
    source, target = write(tmp_path / "docs.jsonl", 12), tmp_path / "v.npy"
    with pytest.raises(PrecisionError, match="changes 12 of 12 answers"):
        predict(str(source), model=runs(), output=str(target), precision="int8", device="cpu")
