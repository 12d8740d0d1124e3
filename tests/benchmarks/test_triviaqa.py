import json

import pytest
import scored

from ldt.errors import DataError, UserError
from ldt.io.strict_json import JsonFile, read


def question(id, *aliases, pages=(), found=(), **more):
    return {
        "QuestionId": id,
        "Question": "?",
        "Answer": {"NormalizedAliases": list(aliases)},
        "EntityPages": [{"Filename": name} for name in pages],
        "SearchResults": [{"Filename": name} for name in found],
    } | more


def evaluate(questions, predictions, *, says="Wikipedia", verified=False, **options):
    gold = {"Data": questions, "Domain": says, "VerifiedEval": verified, "Version": 1.0}
    return scored.evaluate(
        "triviaqa", JsonFile("gold", gold), JsonFile("pred", predictions), **options
    )


TWO = [question("q1", "foo bar", pages=["a"], found=["a", "1/b"]), question("q2", "baz")]


def test_wikipedia_is_keyed_by_question_and_missing_ones_count_nothing():
    result = evaluate([*TWO, question("q3", "x")], {"q1": "Foo-Bar", "q2": "a baz b", "zz": "foo"})
    assert result.metrics == {
        "exact_match": pytest.approx(100 / 3),
        "f1": pytest.approx(100 * (1 + 2 / 3) / 3),
        "common": 2,
        "denominator": 3,
        "pred_len": 3,
        "gold_len": 3,
    }
    assert (result.missing, result.extra) == (["q3"], ["zz"])


def test_web_is_keyed_by_question_and_page():
    result = evaluate(TWO, {"q1--a": "foo bar", "q1--1/b": "foo", "q2": "baz"}, says="Web")
    assert result.metrics["denominator"] == 2  # q2 has no page
    assert result.metrics["exact_match"] == 50
    assert result.extra == ["q2"]


def test_the_domain_is_what_the_file_says_or_the_option_never_the_file_name():
    questions = json.loads(json.dumps(TWO))
    gold = JsonFile("web-dev.json", {"Data": questions, "Domain": "Wikipedia"})
    assert scored.evaluate("triviaqa", gold, JsonFile("p", {"q2": "baz"})).metrics["common"] == 1
    nameless = JsonFile("web-dev.json", {"Data": questions})
    with pytest.raises(UserError, match="gold: Domain is null, data.domain is not given; data"):
        scored.evaluate("triviaqa", nameless, JsonFile("p", {}))
    found = scored.evaluate(
        "triviaqa", nameless, JsonFile("p", {"q1--a": "foo bar"}), data={"domain": "web"}
    )
    assert found.metrics["exact_match"] == 50
    with pytest.raises(UserError, match=r"^gold: Domain is 'Wikipedia', data.domain is web; "):
        scored.evaluate("triviaqa", gold, JsonFile("p", {}), data={"domain": "web"})


def marked(id, alias, verified, *pages):
    found = [{"Filename": name, "DocPartOfVerifiedEval": good} for name, good in pages]
    part = {"QuestionPartOfVerifiedEval": verified}
    return question(id, alias, **part) | {"SearchResults": found}


MARKED = [
    marked("q1", "foo", True, ("a", True), ("b", False)),
    marked("q2", "bar", False, ("a", True)),
]


@pytest.mark.parametrize(
    ("says", "keys", "verified"),
    [("Wikipedia", ["q1", "q2"], ["q1"]), ("Web", ["q1--a", "q1--b", "q2--a"], ["q1--a"])],
)
def test_a_file_of_verified_questions_counts_only_them_another_shows_them_beside(
    says, keys, verified
):
    predictions = dict.fromkeys(keys, "foo")
    only = evaluate(MARKED, predictions, says=says, verified=True)
    counts = {"common": 1, "denominator": 1, "pred_len": len(keys), "gold_len": 1}
    assert only.metrics == {"exact_match": 100, "f1": 100} | counts
    assert only.title.endswith("verified only")
    assert only.subsets == {}
    both = evaluate(MARKED, predictions, says=says)
    assert both.metrics["denominator"] == len(keys)
    assert both.metrics["exact_match"] < 100
    assert both.subsets == {"verified": only.metrics}
    assert "verified" not in both.title
    assert list(both.parts) == ["verified "]
    assert len(both.parts["verified "]) == len(verified)


def test_what_people_answered_counts():
    people = question("q", "foo") | {"Answer": {"NormalizedAliases": [], "HumanAnswers": ["A Foo"]}}
    assert evaluate([people], {"q": "foo"}).metrics["exact_match"] == 100


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ([], "gold: no questions in it"),
        ([question("q", "a"), question("q", "b")], "gold: the id 'q' stands twice"),
        ([question("q")], "gold: q: NormalizedAliases is empty"),
        ([{"QuestionId": "q"}], "gold: q: no Answer; the files of a test set"),
    ],
)
def test_a_gold_file_that_cannot_be_used(questions, message):
    with pytest.raises(DataError) as error:
        evaluate(questions, {})
    assert str(error.value).startswith(message)


def test_a_verified_file_without_verified_questions():
    with pytest.raises(DataError, match="gold: no verified questions in it"):
        evaluate(TWO, {}, verified=True)


def test_evidence_gives_length_and_place(tmp_path, caplog):
    for name, text in {
        "wikipedia/a": "one two three Foo-Bar. " + "word " * 8,
        "web/1/b": "中国 at last: foo_bar",
        "web/2": "nothing",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    questions = [question("q", "foo bar", pages=["a"], found=["1/b", "2", "3"])]
    result = evaluate(questions, {}, says="Web", data={"evidence": str(tmp_path)})
    assert [item.words for item in result.items] == [12, 5, 1, None]
    first, second, *rest = [item.place for item in result.items]
    assert 0.1 < first < 0.4 < 0.5 < second < 1
    assert rest == ["not in the document", None]
    assert "web/3 cannot be read: No such file" in caplog.text
    joined = evaluate(questions, {}, data={"evidence": str(tmp_path)}).items[0]
    assert joined.words == 18  # of all pages of the question
    assert joined.place < first


@pytest.mark.parametrize(
    ("name", "figures"),  # of the published script on the same predictions
    [("wikipedia", (50.0, 50.0, 4)), ("web", (42.857142857142854, 61.904761904761905, 7))],
)
def test_the_real_files_give_the_published_figures(shared_data, changed, name, figures):
    gold = read(shared_data / f"triviaqa/qa/{name}-train.json")
    values = {}
    for item in gold.value["Data"]:
        for page in item.get("EntityPages", []) + item.get("SearchResults", []):
            key = item["QuestionId"]
            key = f"{key}--{page['Filename']}" if name == "web" else key
            values[key] = changed(item["Answer"]["Value"], key)
    metrics = scored.evaluate("triviaqa", gold, JsonFile("p", values)).metrics
    assert (metrics["exact_match"], metrics["f1"]) == pytest.approx(figures[:2], abs=1e-9)
    assert {metrics[key] for key in ("common", "denominator", "gold_len")} == {figures[2]}
