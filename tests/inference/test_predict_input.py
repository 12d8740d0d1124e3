"""What ldt predict takes as its input, and what it refuses before the model is loaded."""

import json
import os
import shutil
import sys
from io import BytesIO
from pathlib import Path

import pytest
from classified import RECIPE, answer, lines_of, write

from ldt.errors import DataError, ModelError, UserError
from ldt.inference import engine
from ldt.inference import predict as module
from ldt.inference.predict import predict


def test_each_text_file_of_a_folder_gets_an_answer(fine_tuned, tmp_path, log):
    folder = tmp_path / "contracts"
    (folder / "old").mkdir(parents=True)
    (folder / "b.txt").write_text("this party ends")
    (folder / "old" / "a.txt").write_text("[the] other part")
    (folder / "empty.txt").touch()
    (folder / "c.pdf").touch()
    code, answers = answer(str(folder), fine_tuned, tmp_path)
    assert code == 0
    assert [each["id"] for each in answers] == ["b.txt", "empty.txt", "old/a.txt"]
    assert [each.get("empty") for each in answers] == [None, True, None]
    assert f"{folder}: 3 text files read, not read: 1 .pdf" in log.messages
    assert not module.pauses(str(folder))  # else batches would depend on the speed of the disk
    _, (alone,) = answer(str(folder / "b.txt"), fine_tuned, tmp_path, overwrite=True)
    assert alone["scores"] == pytest.approx(answers[0]["scores"], abs=1e-5)
    assert alone["id"] == "b.txt"


@pytest.mark.parametrize(
    ("name", "content"), [("d.jsonl", ""), ("d.jsonl", "\n\n"), ("d.csv", "name,body.text\n")]
)
def test_an_input_without_documents_is_warned_of(fine_tuned, tmp_path, log, name, content):
    (tmp_path / name).write_text(content)
    assert answer(str(tmp_path / name), fine_tuned, tmp_path) == (0, [])
    assert log.messages[-1] == "no documents in the input, so no answers"


def test_a_text_file_is_text_whatever_the_training_read(fine_tuned, tmp_path):
    run = shutil.copytree(fine_tuned, tmp_path / "run")
    (run / "recipe.yaml").write_text(RECIPE.replace("text: body.text, id: name", "format: conll"))
    source = tmp_path / "docs.txt"
    source.write_text("This party ends.\n")
    assert answer(str(source), run, tmp_path)[1][0]["id"] == "docs.txt"


def test_the_encoding_is_that_of_the_training_but_for_what_shows_utf_8(fine_tuned, tmp_path, log):
    run = shutil.copytree(fine_tuned, tmp_path / "run")
    recipe = RECIPE.replace("text: body.text", "text: body, encoding: cp1252")
    (run / "recipe.yaml").write_text(recipe)
    source = tmp_path / "docs.csv"
    source.write_bytes("name;body\nÉ;this party\n".encode())
    assert answer(str(source), run, tmp_path)[1][0]["id"] == "É"
    told = "the training read cp1252; data.encoding=NAME reads another"
    assert f"{source}: read as utf-8; {told}" in log.messages
    source.write_bytes("name;body\nÉ;this party\n".encode("cp1252"))
    assert answer(str(source), run, tmp_path, overwrite=True)[1][0]["id"] == "É"
    assert f"{source}: read as cp1252; {told}" in log.messages
    with pytest.raises(DataError, match="docs.csv:2: not utf-8: .*|docs.csv:2: not UTF-8"):
        answer(str(source), run, tmp_path, data={"encoding": "utf-8"}, overwrite=True)


@pytest.mark.parametrize(
    ("name", "content", "options", "what"),
    [
        ("d.jsonl", '{"name": "a", "body": {"text": "x"}}', {"id": "nix"}, ":1: no field 'nix'; "),
        ("d.csv", "no,text\n1,this\n", {"text": "text"}, ":2: no field 'name'; "),
        ("d.txt", "this party", {"id": "no"}, "data.id=no: not read, the name of a text file is "),
        (
            "d.txt",
            "this party",
            {"text": "no"},
            "data.text=no: not read, a text file is all text; ",
        ),
        ("d.json", "{}", {"format": "squad", "id": "no"}, "data.id=no: not read, squad says which"),
        (
            "d.jsonl",
            "{}",
            {"evidence": "x"},
            "data.evidence=x: not read, records name no files of ",
        ),
        (
            "d.json",
            "{}",
            {"format": "nq", "evidence": "x"},
            "data.evidence=x: not read, nq names no",
        ),
    ],
)
def test_a_field_that_is_named_must_be_there(fine_tuned, tmp_path, name, content, options, what):
    source = write(tmp_path / name, content.splitlines())
    with pytest.raises(UserError) as error:
        predict(source, model=str(fine_tuned), data=options)
    assert str(error.value).removeprefix(source).startswith(what)


def test_input_of_another_layout_gets_the_one_of_the_training(fine_tuned, tmp_path, log):
    run = shutil.copytree(fine_tuned, tmp_path / "run")
    (run / "recipe.yaml").write_text(
        RECIPE.replace("{train", "{format: squad, train").replace("id: name, ", "")
    )
    source = write(tmp_path / "dev.json", [json.dumps([{"title": "Warsaw", "paragraphs": []}])])
    with pytest.raises(DataError, match=r"item 1: no field "):
        predict(source, model=str(run))
    assert "read as squad" not in log.text
    write(tmp_path / "dev.json", [json.dumps({"data": [{"title": "Warsaw"}]})])
    with pytest.raises(DataError, match=r"data.0.paragraphs: .*field required"):
        predict(source, model=str(run))
    line = f"{source}: read as squad, as the training was; data.format=NAME reads another"
    assert line in log.messages
    write(tmp_path / "dev.json", [json.dumps([{"title": "Warsaw", "paragraphs": []}])])
    with pytest.raises(DataError, match="it has 'title', 'paragraphs'$"):
        predict(source, model=str(run), data={"format": "jsonl"})


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"input": "missing.jsonl"}, "missing.jsonl: no such file"),
        ({"output": "nowhere/answers.jsonl"}, "nowhere: no such folder"),
        ({"output": "docs.jsonl"}, "docs.jsonl: this is the input"),
        ({"output": "link.jsonl"}, "link.jsonl: this is the input"),
        ({"output": "."}, ".: a folder"),
        ({"resume": True}, "--resume needs --output FILE"),
        ({"batch_tokens": 0}, "batch_tokens: expected greater than or equal to 1, got 0"),
        ({"data": {"encoding": "utf-16"}}, "data.encoding: utf-16 has no ASCII in it"),
        ({"output": "old.csv"}, "old.csv exists already; --overwrite replaces it"),
        ({"output": "a.xlsx"}, "a.xlsx: .xlsx is not written; name it .jsonl, "),
        ({"output": "a.csv.gz"}, "a.csv.gz: lines alone are compressed; name it .jsonl.gz"),
        ({"output": "a.bz2"}, "a.bz2: .bz2 is not written; name it "),
        ({"output": "a.json"}, "answers of classification are JSON lines"),
        ({"keep": ["label"]}, "answers of classification have 'label' themselves; --keep my_label"),
        ({"keep": ["scores.yes"]}, "have 'scores.yes' themselves"),
        ({"keep": ["name", "name"]}, "--keep name: 'name' stands twice"),
        ({"keep": ["name", ""]}, "--keep 'name,': a name is empty"),
        ({"keep": ["name"], "output": "a.json"}, "answers of classification are JSON lines"),
        (
            {"layout": "squad"},
            "--output-format squad: none of classification; published ones: 'lexglue'",
        ),
        (
            {"layout": "lexglue", "output": "a.json"},
            "--output-format lexglue: has the classes of ecthr_a, ecthr_b, scotus, eurlex, the "
            "model has 'yes', 'no', '007'; name the output .jsonl, without --output-format",
        ),
        (
            {"model": "recipe.yaml"},
            "--model recipe.yaml: a file; .* finetune",
        ),
        (
            {"input": "recipe.yaml"},
            "recipe.yaml: YAML, such as a recipe, not documents; ",
        ),
        ({"input": "papers"}, "papers: "),
    ],
)
def test_what_cannot_work_is_told_before_the_model_is_loaded(
    options, what, fine_tuned, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine, "PREDICTORS", {"examples": "not:loaded"})
    write(Path("docs.jsonl"), lines_of(1))
    os.link("docs.jsonl", "link.jsonl")
    for name in ("recipe.yaml", "old.csv", "papers/a.pdf"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("a: 1")
    with pytest.raises(UserError, match=what) as raised:
        predict(**{"input": "docs.jsonl", "model": str(fine_tuned), **options})
    assert raised.value.exit_code == 2
    assert sorted(os.listdir()) == ["docs.jsonl", "link.jsonl", "old.csv", "papers", "recipe.yaml"]
    assert Path("old.csv").read_text() == "a: 1"


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("a.jsonl", b"contract one\n", "a.jsonl:1: not JSON"),
        ("a.xlsx", b"PK\x03\x04" + bytes(9), "a.xlsx: an archive or a file of Office"),
        ("a.jsonl", b"\xff\xfea\x00", "a.jsonl: looks like UTF-16"),
    ],
)
def test_the_first_record_is_read_before_the_model_is_loaded(
    name, data, what, fine_tuned, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine, "PREDICTORS", {"examples": "not:loaded"})
    Path(name).write_bytes(data)
    with pytest.raises(DataError, match=what):
        predict(name, model=str(fine_tuned), output="answers.jsonl")
    assert os.listdir() == [name]


def test_a_name_of_the_hub_as_model_gets_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path / "docs.jsonl", lines_of(1))
    with pytest.raises(ModelError, match="some/bert: no such folder; .* hf download ID"):
        predict(source, model="some/bert")


class Terminal(BytesIO):
    def isatty(self):
        return True


def test_a_terminal_as_input_gives_a_hint(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal())
    with pytest.raises(UserError, match="standard input is a terminal; pipe documents"):
        predict("-")


def test_several_files_are_answered_as_one_and_a_finished_output_knows_all_of_them(
    fine_tuned, tmp_path
):
    lines = lines_of(6)
    for number in range(3):
        write(tmp_path / f"docs-{number}.jsonl", lines[2 * number : 2 * number + 2])
    options = {"model": str(fine_tuned), "output": str(tmp_path / "all.jsonl")}
    pattern = str(tmp_path / "docs-*.jsonl")
    assert predict(pattern, **options) == 0
    answers = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [each["id"] for each in answers] == [f"doc-{number}" for number in range(6)]
    listed = [str(tmp_path / f"docs-{number}.jsonl") for number in range(3)]
    assert predict(listed, resume=True, **options) == 0
    with pytest.raises(UserError, match="finished, of other documents than there are now"):
        predict(listed[:2], resume=True, **options)
