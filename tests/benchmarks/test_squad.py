import pytest
from scored import evaluate

from ldt.errors import DataError
from ldt.io.strict_json import JsonFile, read

TEXT = "The red fox saw a blue whale."


def qa(id, *answers):
    found = [{"text": text, "answer_start": TEXT.find(text)} for text in answers]
    return {"id": id, "question": "?", "answers": found}


def data(*paragraphs, context=TEXT):
    """A gold file with an article for each list of questions."""
    articles = [{"paragraphs": [{"context": context, "qas": list(qas)}]} for qas in paragraphs]
    return JsonFile("gold", {"version": "1.1", "data": articles})


def pred(value):
    return JsonFile("pred", value)


GOLD = data([qa("a", "red fox", "fox"), qa("b", "blue whale")], [qa("c", "blue")])
GOLD2 = data([qa("a", "red fox"), qa("b")], [qa("c", "whale"), qa("d")])


def test_squad_counts_missing_as_nothing_over_all_questions():
    result = evaluate("squad", GOLD, pred({"a": "Fox!", "b": "a whale", "zz": "x"}))
    assert result.metrics == pytest.approx(
        {"exact_match": 100 / 3, "f1": 100 * (1 + 2 / 3) / 3}, abs=1e-12
    )
    assert (result.missing, result.extra) == (["c"], ["zz"])


def test_questions_on_one_paragraph_are_resampled_together():
    units = [item.unit for item in evaluate("squad", GOLD, pred({})).items]
    assert units[0] == units[1] != units[2]


def test_length_is_that_of_the_context_and_place_that_of_the_first_answer():
    items = evaluate("squad", GOLD, pred({})).items
    assert {item.words for item in items} == {7}
    starts = [TEXT.index(text) / len(TEXT) for text in ("red fox", "blue whale", "blue")]
    assert [item.place for item in items] == starts
    late = qa("a", "blue whale", "red fox")
    assert evaluate("squad", data([late]), pred({})).items[0].place == starts[0]


@pytest.mark.parametrize("start", [-1, 5, 10**9])
def test_a_start_where_the_answer_does_not_stand_is_no_place(start):
    question = qa("a", "red fox")
    question["answers"][0]["answer_start"] = start
    result = evaluate("squad", data([question]), pred({"a": "red fox"}))
    assert result.metrics["exact_match"] == 100
    assert result.items[0].place == "not at its answer_start"


def test_squad2_has_figures_with_and_without_an_answer():
    result = evaluate("squad2", GOLD2, pred({"a": "fox", "b": "", "c": "whale", "d": "whale"}))
    assert result.metrics == pytest.approx(
        {
            **{"exact": 50.0, "f1": 100 * (2 / 3 + 2) / 4, "total": 4},
            **{"HasAns_exact": 50.0, "HasAns_f1": 100 * (2 / 3 + 1) / 2, "HasAns_total": 2},
            **{"NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 2},
        }
    )
    assert [item.place for item in result.items][1::2] == ["no answer"] * 2


def test_squad2_reads_gold_of_1_where_no_part_is_without_an_answer():
    metrics = evaluate("squad2", GOLD, pred({"a": "fox"})).metrics
    assert "HasAns_f1" in metrics
    assert "NoAns_f1" not in metrics


def test_squad2_counts_a_missing_prediction_as_wrong_also_without_an_answer():
    result = evaluate("squad2", GOLD2, pred({"a": "red fox"}))
    assert (result.metrics["exact"], result.metrics["total"]) == (25, 4)
    assert result.missing == ["b", "c", "d"]


PROBABILITY = {"a": 0.1, "b": 0.9, "c": 0.3, "d": 0.5}


def test_the_best_threshold_comes_from_a_file_or_from_the_entries():
    answers = {"a": "red fox", "b": "fox", "c": "whale", "d": "fox"}
    entries = [
        {"id": key, "prediction_text": text, "no_answer_probability": PROBABILITY[key]}
        for key, text in answers.items()
    ]
    given = JsonFile("na", PROBABILITY | {"stranger": 0})
    by_file = evaluate("squad2", GOLD2, pred(answers), na_prob=given)
    by_entries = evaluate("squad2", GOLD2, pred(entries))
    for result in (by_file, by_entries):
        metrics = result.metrics
        assert (metrics["exact"], metrics["best_exact"], metrics["best_f1"]) == (50, 100, 100)
        assert metrics["best_exact_thresh"] == metrics["best_f1_thresh"] == 0.3
    assert "best_f1" not in evaluate("squad2", GOLD2, pred(answers)).metrics


def test_above_one_a_prediction_counts_as_no_answer_and_that_is_told():
    answers = {"a": "red fox", "b": "fox", "c": "whale", "d": "fox"}
    odds = JsonFile("na", PROBABILITY | {"a": 1.5, "b": 1.5, "c": 1.0})
    result = evaluate("squad2", GOLD2, pred(answers), na_prob=odds)
    assert [item.scores["exact"] for item in result.items] == [0, 1, 1, 0]
    assert result.warnings[:1] == [
        'na: 2 probabilities are above 1; as in the published script those predictions count as ""'
    ]


@pytest.mark.parametrize(
    ("gold", "predictions", "message"),
    [
        (data(), {}, "gold: no questions in it"),
        (data([]), {}, "gold: no questions in it"),
        (data([qa("a", "fox")], [qa("a", "fox")]), {}, "gold: the id 'a' stands twice"),
        (data([qa("a")]), {}, "gold: a: no answers; --format squad2 has such"),
        (data([{"id": "a"}]), {}, "gold: a: no answers; the files of a test set cannot be scored"),
        (data([{"id": 7.5}]), {}, "gold: field data.0.paragraphs.0.qas.0.id: found 7.5; input"),
        (GOLD, [{"id": "a", "prediction_text": "x"}] * 2, "pred: the id 'a' stands twice"),
    ],
)
def test_a_file_that_cannot_be_used(gold, predictions, message):
    with pytest.raises(DataError) as error:
        evaluate("squad", gold, pred(predictions))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("probabilities", "message"),
    [
        ({"a": "0.5"}, "na: field a: found '0.5'; input should be a valid number"),
        ({"b": 0.5}, "na: no probability of 2 predicted questions, such as 'a'; each needs one"),
    ],
)
def test_probabilities_that_cannot_be_used(probabilities, message):
    predictions = pred({"a": "x", "b": "", "c": "x"})
    with pytest.raises(DataError) as error:
        evaluate("squad2", GOLD2, predictions, na_prob=JsonFile("na", probabilities))
    assert str(error.value) == message


def questions(gold):
    return [
        question
        for article in gold.value["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


@pytest.mark.parametrize(
    ("language", "exact", "f1"),  # of the published script on the same predictions
    [
        ("ar", 50.54347826086956, 76.61174912389062),
        ("de", 50.0, 72.97342506240916),
        ("en", 52.35507246376812, 74.8171902938276),
        ("hi", 50.36231884057971, 75.25777129556266),
        ("zh", 50.36231884057971, 51.81590752242927),
    ],
)
def test_xquad_gives_the_published_figures_in_every_language(
    shared_data, changed, language, exact, f1
):
    gold = read(shared_data / f"xquad/xquad.{language}.json.gz")
    asked = questions(gold)
    answers = {q["id"]: changed(q["answers"][0]["text"], q["id"]) for q in asked}
    result = evaluate("squad", gold, pred(answers))
    assert result.metrics == pytest.approx({"exact_match": exact, "f1": f1}, abs=1e-9)
    assert all(isinstance(item.place, float) for item in result.items)
    assert 50 < sum(item.words for item in result.items) / len(result.items) < 250


def test_cuad_gives_the_published_figures(shared_data, chance, changed):
    gold = read(shared_data / "cuad/cuad_qa.dev.squad2.json.gz")
    answers = {}
    for q in questions(gold):
        guess = "" if chance(q["id"]) < 0.5 else "x"
        answers[q["id"]] = changed(q["answers"][0]["text"], q["id"]) if q["answers"] else guess
    probabilities = JsonFile("na", {key: chance(key[::-1]) for key in answers})
    result = evaluate("squad2", gold, pred(answers), na_prob=probabilities)
    assert result.metrics == pytest.approx(
        {
            **{"exact": 54.666666666666664, "f1": 74.6654571589921, "total": 300},
            **{"HasAns_exact": 52.94117647058823, "HasAns_f1": 85.02479758127076},
            **{"HasAns_total": 187, "NoAns_total": 113},
            **{"NoAns_exact": 57.52212389380531, "NoAns_f1": 57.52212389380531},
            **{"best_exact": 54.666666666666664, "best_exact_thresh": 0.9917424158193171},
            **{"best_f1": 74.6654571589921, "best_f1_thresh": 0.9937627650797367},
        },
        abs=1e-9,
    )
    assert len({item.unit for item in result.items}) == 30
