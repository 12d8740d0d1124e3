import json
import logging

import pytest

from ldt.benchmarks.formats import read
from ldt.errors import DataError, UserError
from ldt.recipe.recipe import DataSection

DATA = DataSection(format="triviaqa")


def question(id="q1", pages=("a.txt",), found=(), **more):
    return {
        "QuestionId": id,
        "Question": f"{id}?",
        "Answer": {"NormalizedAliases": ["foo bar"], "HumanAnswers": ["The Foo"]},
        "EntityPages": [{"Filename": name} for name in pages],
        "SearchResults": [
            {"Filename": name, "DocPartOfVerifiedEval": good} for name, good in found
        ],
    } | more


@pytest.fixture
def written(tmp_path):
    """Writes questions as qa/web-dev.json, beside a folder of evidence."""
    (tmp_path / "evidence").mkdir()
    (tmp_path / "qa").mkdir()

    def write(*questions, domain="Wikipedia", verified=False, place="qa"):
        whole = {"Data": questions, "Domain": domain, "VerifiedEval": verified, "Version": 1.0}
        file = tmp_path / place / "web-dev.json"
        file.write_text(json.dumps(whole), "utf-8-sig")
        return str(file)

    return write


def test_each_question_and_page_is_an_example(written, tmp_path):
    file = written(question(pages=["a.txt", "é b/c.txt", "a.txt"]), question("q2"))
    examples = list(read(file, DATA))
    assert [example.id for example in examples] == ["q1--a.txt", "q1--é b/c.txt", "q2--a.txt"]
    assert examples[1].fields == {
        "question": "q1?",
        "question_id": "q1",
        "context_file": tmp_path / "evidence/wikipedia/é b/c.txt",
        "answers": ["foo bar", "The Foo"],
    }
    assert examples[1].where == f"{file}: q1--é b/c.txt"


def test_names_are_aliases_and_what_people_answered(written):
    def names(**answer):
        return next(read(written(question(Answer=answer)), DATA)).fields["answers"]

    answer = {"NormalizedAliases": ["foo bar"], "Aliases": ["never read"]}
    assert names(**answer) == ["foo bar"]
    assert names(**answer, HumanAnswers=["The Foo_Bar's"]) == ["foo bar", "The Foo_Bar's"]


def test_the_web_domain_asks_of_each_page_by_itself(written, tmp_path):
    file = written(question(found=[("1/1_2.txt", True)]), domain="Web")
    pages = [(e.fields["question_id"], e.fields["context_file"]) for e in read(file, DATA)]
    folder = tmp_path / "evidence"
    assert pages == [
        ("q1--a.txt", folder / "wikipedia/a.txt"),
        ("q1--1/1_2.txt", folder / "web/1/1_2.txt"),
    ]


def test_the_domain_is_what_the_file_or_the_recipe_says_never_the_file_name(written):
    assert next(read(written(question()), DATA)).fields["question_id"] == "q1"
    nameless = written(question(), domain=None)
    with pytest.raises(UserError, match="Domain is null, data.domain is not given; data"):
        list(read(nameless, DATA))
    web = DATA.model_copy(update={"domain": "web"})
    assert next(read(nameless, web)).fields["question_id"] == "q1--a.txt"
    with pytest.raises(UserError, match="Domain is 'Wikipedia', data.domain is web"):
        list(read(written(question()), web))


def test_what_is_verified_is_marked_and_alone_in_a_file_of_it(written):
    questions = [
        question("q1", (), [("x", True), ("y", False)], QuestionPartOfVerifiedEval=True),
        question("q2", (), [("x", True)], QuestionPartOfVerifiedEval=False),
    ]

    def found(**how):
        examples = read(written(*questions, **how), DATA)
        return [(example.id, example.fields["verified"]) for example in examples]

    assert found(domain="Web") == [("q1--x", True), ("q1--y", False), ("q2--x", False)]
    assert found() == [("q1--x", True), ("q1--y", True), ("q2--x", False)]
    assert found(domain="Web", verified=True) == [("q1--x", True)]
    assert found(verified=True) == [("q1--x", True), ("q1--y", True)]


def test_a_test_set_has_no_answers(written):
    item = question()
    del item["Answer"]
    assert "answers" not in next(read(written(item), DATA)).fields


def test_the_evidence_is_beside_the_folder_the_file_or_where_it_is_said(written, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    said = DATA.model_copy(update={"evidence": str(other)})
    path = next(read(written(question()), said)).fields["context_file"]
    assert path == other / "wikipedia/a.txt"
    beside = written(question(), place="")
    path = next(read(beside, DATA)).fields["context_file"]
    assert path == tmp_path / "evidence/wikipedia/a.txt"
    (tmp_path / "evidence").rmdir()
    with pytest.raises(UserError, match="no folder evidence beside it; data.evidence names"):
        list(read(beside, DATA))
    other.rmdir()
    with pytest.raises(UserError, match="other: no such folder; data.evidence"):
        list(read(beside, said))


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "link", "a\0b"])
def test_a_page_outside_of_the_evidence_is_an_error(written, tmp_path, name):
    (tmp_path / "secret").write_text("foo")
    (tmp_path / "evidence/wikipedia").mkdir()
    (tmp_path / "evidence/wikipedia/link").symlink_to(tmp_path / "secret")
    with pytest.raises(DataError, match="web-dev.json: q1: .*(a page outside of|no name of a)"):
        list(read(written(question(pages=[name])), DATA))


def test_questions_without_a_page_are_counted(written, caplog):
    with caplog.at_level(logging.WARNING, "ldt"):
        assert len(list(read(written(question(pages=[]), question("q2")), DATA))) == 1
    assert "questions without a page, which get no answer: 1" in caplog.text


def test_the_real_files_are_read_in_both_domains(shared_data):
    counts = {}
    for domain in ("wikipedia", "web"):
        examples = list(read(str(shared_data / f"triviaqa/qa/{domain}-train.json"), DATA))
        counts[domain] = len(examples)
        assert len({example.id for example in examples}) == len(examples)
        assert all(open(example.fields["context_file"]).close() is None for example in examples)
    assert counts == {"wikipedia": 7, "web": 7}
