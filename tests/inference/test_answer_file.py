import json
import os
import resource

import pytest

from ldt.errors import DataError, ResourceError, UserError
from ldt.inference.answer_file import AnswerFile, Rejects
from ldt.inference.predictor import rounded
from ldt.io.records import Example

MADE_BY = {"model": "0123", "text field": "text"}


def ids(path):
    return [json.loads(line)["id"] for line in path.read_bytes().splitlines()]


def test_the_file_appears_only_when_all_answers_are_there(tmp_path):
    target = tmp_path / "answers.jsonl"
    target.write_text("old\n")
    sink = AnswerFile(target, made_by=MADE_BY, overwrite=True)
    sink.write([{"id": 1}, {"id": 2}])
    assert target.read_text() == "old\n"
    sink.write([{"id": 3}])
    sink.finish()
    sink.close()
    assert ids(target) == [1, 2, 3]
    assert sorted(os.listdir(tmp_path)) == [".answers.jsonl.run.json", "answers.jsonl"]


def test_an_unfinished_file_is_not_overwritten_without_being_asked_to(tmp_path):
    target = tmp_path / "answers.jsonl"
    sink = AnswerFile(target, made_by=MADE_BY)
    sink.write([{"id": 1}])
    sink.close()
    with pytest.raises(UserError, match="1 answer of an unfinished run; --resume"):
        AnswerFile(target, made_by=MADE_BY)
    assert ids(tmp_path / "answers.jsonl.partial") == [1]
    with pytest.raises(UserError, match="another .*; --overwrite without --resume starts again"):
        AnswerFile(target, made_by=MADE_BY | {"encoding": "cp1252"}, resume=True)
    again = AnswerFile(target, made_by=MADE_BY | {"encoding": "cp1252"}, overwrite=True)
    assert not again.skip(1)
    again.write([{"id": 2}])
    again.finish()
    assert ids(target) == [2]


def test_resuming_cuts_half_a_line_and_gives_the_same_file(tmp_path):
    target = tmp_path / "answers.jsonl"
    sink = AnswerFile(target, made_by=MADE_BY)
    sink.write([{"id": "a"}, {"id": "b"}])
    sink.close()
    with open(sink.partial, "ab") as file:
        file.write(b'{"id": "c", "lab' + b"x" * 200_000)
    sink = AnswerFile(target, made_by=MADE_BY, resume=True)
    assert sink.count == 2
    assert [sink.skip(id) for id in ("b", "a")] == [False, True]
    sink.write([{"id": "c"}])
    assert [sink.skip(id) for id in ("b", "c")] == [True, False]
    sink.finish()
    assert ids(target) == ["a", "b", "c"]


def test_a_resumed_run_knows_what_the_first_one_noted(tmp_path):
    target = tmp_path / "answers.jsonl"
    sink = AnswerFile(target, made_by=MADE_BY)
    assert sink.remember("library", lambda: "first") == "first"
    sink.write([{"id": 1}])
    sink.close()
    sink = AnswerFile(target, made_by=MADE_BY, resume=True)
    assert sink.remember("library", lambda: "second") == "first"


def test_a_line_that_is_no_answer_is_named_on_resuming(tmp_path):
    target = tmp_path / "answers.jsonl"
    sink = AnswerFile(target, made_by=MADE_BY)
    sink.write([{"id": 1}])
    sink.close()
    with open(sink.partial, "ab") as file:
        file.write(b"[]\n")
    with pytest.raises(UserError, match=r"partial:2: not an answer"):
        AnswerFile(target, made_by=MADE_BY, resume=True).skip(1)


def test_a_link_still_points_to_the_answers(tmp_path):
    link = tmp_path / "link.jsonl"
    link.symlink_to("answers.jsonl")
    sink = AnswerFile(link, made_by=MADE_BY)
    sink.write([{"id": 1}])
    sink.finish()
    assert link.is_symlink()
    assert ids(tmp_path / "answers.jsonl") == [1]


def test_a_run_without_answers_leaves_nothing(tmp_path):
    AnswerFile(tmp_path / "answers.jsonl", made_by=MADE_BY).close()
    assert not list(tmp_path.iterdir())


def test_two_runs_do_not_write_one_file(tmp_path):
    sink = AnswerFile(tmp_path / "answers.jsonl", made_by=MADE_BY)
    with pytest.raises(UserError, match="another process is writing"):
        AnswerFile(tmp_path / "answers.jsonl", made_by=MADE_BY, resume=True)
    sink.close()


@pytest.mark.parametrize(
    ("name", "what"), [("missing/answers.jsonl", "no such folder"), ("", "a folder; name a file")]
)
def test_a_place_that_cannot_hold_answers_is_refused(tmp_path, name, what):
    with pytest.raises(UserError, match=what):
        AnswerFile(tmp_path / name, made_by=MADE_BY)


def test_a_full_disk_keeps_the_groups_before_it(tmp_path):
    sink = AnswerFile(tmp_path / "answers.jsonl", made_by=MADE_BY)
    sink.write([{"id": number} for number in range(10)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (sink.size + 25, before[1]))
    try:
        with pytest.raises(ResourceError, match=r"answers\.jsonl\.partial: File too large"):
            sink.write([{"id": number} for number in range(10, 20)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    sink.close()
    assert ids(sink.partial) == list(range(10))


def test_scores_have_six_decimals():
    assert rounded({"a": [1 / 3, 2], "b": "0.12345678"}) == {"a": [0.333333, 2], "b": "0.12345678"}


def test_rejects_keep_the_line_and_the_reason(tmp_path):
    rejects = Rejects(tmp_path / "docs.rejects.jsonl")
    assert not rejects.path.exists()
    rejects.write(DataError("data/docs.jsonl:3: not JSON"), b'{"text": \r\n')
    rejects.write(DataError("docs.jsonl:4: byte 0xff is not UTF-8"), b'{"text": "\xff"}\n')
    rejects.refuse(DataError("docs.jsonl:5: null"), Example({"text": None}, 5, "docs.jsonl:5"))
    rejects.close()
    lines = [json.loads(line) for line in rejects.path.read_bytes().splitlines()]
    assert lines == [
        {"where": "data/docs.jsonl:3", "error": "data/docs.jsonl:3: not JSON", "line": '{"text": '},
        {
            "where": "docs.jsonl:4",
            "error": "docs.jsonl:4: byte 0xff is not UTF-8",
            "line_base64": "eyJ0ZXh0IjogIv8ifQo=",
        },
        {"where": "docs.jsonl:5", "error": "docs.jsonl:5: null", "line": '{"text": null}'},
    ]
    assert rejects.count == 3
    Rejects(rejects.path).forget()
    assert not rejects.path.exists()
