import os

import pytest
from classified import lines_of, read, write

from ldt.errors import DataError, UserError
from ldt.inference import engine
from ldt.inference.answer_file import AnswerFile
from ldt.inference.predict import predict

MADE_BY = {"model": "0123"}


@pytest.fixture
def finished(fine_tuned, tmp_path, monkeypatch):
    """Options of a run that has ended; from now on no model can be loaded."""
    options = {
        "input": write(tmp_path / "docs.jsonl", lines_of(5)),
        "model": str(fine_tuned),
        "output": str(tmp_path / "answers.csv"),
    }
    assert predict(**options) == 0
    monkeypatch.setattr(engine, "PREDICTORS", {"examples": "not:loaded"})
    return options


def test_resuming_a_finished_run_leaves_it_and_says_so(finished, tmp_path, log):
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert predict(**finished, resume=True) == 0
    assert log.messages[-1] == (
        f"{finished['output']}: finished by the same model and options; nothing to do"
    )
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_finished_run_with_rejects_keeps_its_exit_code(fine_tuned, tmp_path, log):
    source = write(tmp_path / "docs.jsonl", [*lines_of(2), "{"])
    options = {"model": str(fine_tuned), "output": str(tmp_path / "a.jsonl"), "on_error": "skip"}
    for _ in range(2):
        assert predict(source, **options, resume=True) == 7
    assert "without 1 rejected record; nothing to do" in log.messages[-1]
    assert len(read(tmp_path / "a.jsonl.rejects.jsonl")) == 1
    with pytest.raises(DataError, match="docs.jsonl:3: "):
        predict(source, **options | {"on_error": "stop"}, resume=True)
    write(tmp_path / "docs.jsonl", [*lines_of(2), "["])
    with pytest.raises(UserError, match="of other documents"):
        predict(source, **options, resume=True)


def test_a_finished_run_of_other_documents_or_options_is_not_this_one(finished, tmp_path):
    def refused(what, **changes):
        with pytest.raises(UserError, match=f"{what}.*--overwrite replaces it") as raised:
            predict(**finished | changes, resume=True)
        assert raised.value.exit_code == 2

    refused("finished, with another --keep;", keep=["name"])
    refused(
        "finished, with another id field and another precision;",
        data={"id": "key"},
        precision="bf16",
    )
    lines = lines_of(5)
    for others in (lines[:4], lines_of(6), [*lines[:4], lines[4].replace(': "', ': "a')]):
        write(tmp_path / "docs.jsonl", others)
        refused("finished, of other documents than there are now")
    write(tmp_path / "docs.jsonl", lines)
    assert predict(**finished, resume=True) == 0
    with open(finished["output"], "a") as file:
        file.write("b")
    refused("was changed after it was finished")
    os.unlink(tmp_path / ".answers.csv.run.json")
    refused("exists already, and nothing beside it says what made it")


def test_overwriting_answers_anew(fine_tuned, tmp_path):
    output = tmp_path / "a.jsonl"
    source = write(tmp_path / "docs.jsonl", lines_of(3))
    options = {"model": str(fine_tuned), "output": str(output)}
    output.write_text("old")
    assert predict(source, **options, overwrite=True) == 0
    write(tmp_path / "docs.jsonl", lines_of(4))
    with pytest.raises(UserError, match="a.jsonl exists already; --overwrite replaces it"):
        predict(source, **options)
    assert len(read(output)) == 3
    assert predict(source, **options, overwrite=True, resume=True) == 0
    assert len(read(output)) == 4


def test_a_run_that_was_to_overwrite_is_resumed_and_does(tmp_path):
    target = tmp_path / "a.jsonl"
    target.write_text("old")
    sink = AnswerFile(target, made_by=MADE_BY, overwrite=True)
    sink.write([{"id": 1}])
    sink.close()
    sink = AnswerFile(target, made_by=MADE_BY, resume=True)
    sink.finish()
    assert read(target) == [{"id": 1}]


def test_a_file_that_came_meanwhile_is_not_replaced(tmp_path):
    target = tmp_path / "a.jsonl"
    sink = AnswerFile(target, made_by=MADE_BY)
    sink.write([{"id": 1}])
    target.write_text("of another program")
    for resumed in (sink, None):
        with pytest.raises(UserError, match="a.jsonl exists already; --overwrite"):
            (resumed or AnswerFile(target, made_by=MADE_BY, resume=True)).finish()
        sink.close()
    assert target.read_text() == "of another program"
    assert read(sink.partial) == [{"id": 1}]
    AnswerFile(target, made_by=MADE_BY, resume=True, overwrite=True).finish()
    assert read(target) == [{"id": 1}]
