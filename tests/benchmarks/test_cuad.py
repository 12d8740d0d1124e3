import gzip
import json

import numpy as np
import pytest
import scored
from sklearn.metrics import auc

from ldt.benchmarks import squad as cuad
from ldt.errors import DataError
from ldt.io.strict_json import JsonFile

TITLE = "ACME LICENSE"


def contract(answers, title=TITLE, context="The Agreement is dated May 1."):
    """A contract with a question for each category: {category: its clauses}."""
    qas = [
        {
            "id": f"{title}__{category}",
            "question": "Highlight",
            "answers": [{"text": text, "answer_start": 0} for text in texts],
        }
        for category, texts in answers.items()
    ]
    return {"title": title, "paragraphs": [{"context": context, "qas": qas}]}


def evaluate(contracts, predictions):
    value = {
        id: [{"text": text, "probability": share} for text, share in spans]
        for id, spans in predictions.items()
    }
    return scored.evaluate("cuad", JsonFile("gold", {"data": contracts}), JsonFile("pred", value))


def plain(gold, predictions):
    """The published steps one by one, of {id: clauses} and {id: [(text, probability)]}."""

    def words(text):
        for sign in ".,;:":
            text = text.replace(sign, "")
        return set(text.lower().replace("/", " ").split(" "))

    def match(id, answer, text):
        one, other = words(answer), words(text)
        inside = "Parties" in id and answer in text
        return len(one & other) / len(one | other) >= 0.5 or inside

    recalls, precisions = [0.0], [1.0]
    for least in [*np.arange(0.99, 0, -0.01), 0.001, 0]:
        tp = fp = fn = 0
        for id, answers in gold.items():
            texts = [t for t, share in dict(predictions[id]).items() if t and share > least]
            hits = [any(match(id, answer, text) for text in texts) for answer in answers]
            tp, fn = tp + sum(hits), fn + len(hits) - sum(hits)
            fp += sum(not any(match(id, answer, text) for answer in answers) for text in texts)
        precisions.append(tp / (tp + fp) if tp + fp else float("nan"))
        recalls.append(tp / (tp + fn) if tp + fn else float("nan"))
    for place in range(len(precisions) - 2, -1, -1):
        precisions[place] = max(precisions[place + 1], precisions[place])
    figures = {"aupr": auc(recalls, precisions)}
    for percent in (80, 90):
        pairs = zip(precisions[:-1], recalls[:-1], strict=True)
        reached = [precision for precision, recall in pairs if recall >= percent / 100]
        figures[f"prec_at_{percent}_recall"] = reached[0] if reached else 0.0
    return {name: 100 * value for name, value in figures.items()}


def test_a_small_case_is_what_it_is_by_hand():
    # Three clauses. Above 0.6: one clause, found. Above 0.3: two found and one wrong. Above 0.1:
    # all three, with two wrong ones. Points (recall, precision): (0, 1), (1/3, 1), (2/3, 2/3),
    # (1, 3/5); trapezoids 1/3, 1/3 * (1 + 2/3) / 2, 1/3 * (2/3 + 3/5) / 2.
    gold = [contract({"Date": ["May 1"], "Cap": ["cap one", "cap two now"], "Audit": []})]
    result = evaluate(
        gold,
        {
            f"{TITLE}__Date": [("May 1", 0.6), ("June", 0.3)],
            f"{TITLE}__Cap": [("cap one", 0.305), ("cap two now", 0.1)],
            f"{TITLE}__Audit": [("", 0.9), ("nothing", 0.105)],
        },
    )
    area = (1 + 5 / 6 + 19 / 30) / 3
    assert result.metrics == pytest.approx(
        {"aupr": 100 * area, "prec_at_80_recall": 60.0, "prec_at_90_recall": 60.0}
    )


def test_the_sample_has_the_figures_of_the_plain_steps(shared_data):
    folder = shared_data / "cuad_v1_layout"
    gold = json.loads(gzip.decompress((folder / "test.json.gz").read_bytes()))
    packed = (folder / "nbest_predictions_.made-up.json.gz").read_bytes()
    value = json.loads(gzip.decompress(packed))
    result = scored.evaluate("cuad", JsonFile("gold", gold), JsonFile("pred", value))
    right = {
        qa["id"]: [answer["text"] for answer in qa["answers"]]
        for article in gold["data"]
        for qa in article["paragraphs"][0]["qas"]
    }
    spans = {id: [(s["text"], s["probability"]) for s in found] for id, found in value.items()}
    assert result.metrics == pytest.approx(plain(right, spans), abs=1e-9)
    assert result.metrics == pytest.approx(
        {"aupr": 70.337569, "prec_at_80_recall": 55.9375, "prec_at_90_recall": 0}, abs=1e-6
    )
    part = {id: answers for id, answers in right.items() if "Parties" in id}
    assert result.subsets["Parties"]["aupr"] == pytest.approx(plain(part, spans)["aupr"])
    low, high = result.intervals["aupr"]
    assert low < result.metrics["aupr"] < high


def curve(*pairs, gold=("a b",), id="x"):
    return cuad.count(id, list(gold), dict(pairs))


def test_a_probability_has_to_be_above_the_threshold():
    found, _ = curve(("a b", 0.001))
    assert found[-2:].tolist() == [0, 1]  # thresholds 0.001 and 0
    assert not curve(("a b", 0.0))[0].any()
    _, wrong = curve(("z", 0.001))
    assert wrong[-2:].tolist() == [0, 1]


def test_the_thresholds_are_numpys_own_with_their_rounding():
    assert len(cuad.THRESHOLDS) == 101
    grid = np.arange(0.99, 0, -0.01)
    place = int(np.abs(grid - 0.3).argmin())
    assert cuad.THRESHOLDS[place] == grid[place] != 0.3
    found, _ = curve(("a b", 0.3))
    assert found[place] == (grid[place] < 0.3)
    assert found.tolist() == [int(least < 0.3) for least in cuad.THRESHOLDS]


def test_of_equal_texts_the_last_probability_counts():
    gold = [contract({"Date": ["May 1"]})]
    sure = {f"{TITLE}__Date": [("May 1", 0.2), ("May 1", 0.995)]}
    last = {f"{TITLE}__Date": [("May 1", 0.995), ("May 1", 0.0)]}
    assert evaluate(gold, sure).metrics["aupr"] == 100
    assert evaluate(gold, last).metrics["aupr"] == 0


@pytest.mark.parametrize(
    ("answer", "prediction", "same"),
    [
        ("May 1, 2020", "may 1 2020.", True),  # case and signs
        ("MAY", "may", True),
        ("a.b,c;d:e", "abcde", True),  # four signs are dropped and part nothing
        ("and/or", "and or", True),  # a slash is a blank
        ("a b", "a b c d", True),  # half is enough
        ("a b", "a b c d e", False),
        ("a a a b", "a b c d", True),  # sets
        ("a  b", "a b", True),  # three words, one of them empty, of which two are shared
        ("a  b", "a c", False),
        ("a\nb", "a b", False),  # a new line parts no words
        ("'a' b", "a b", False),  # other signs stay
    ],
)
def test_a_match_shares_half_of_the_words(answer, prediction, same):
    assert cuad.matches(answer, prediction, substring=False) is same


def test_a_party_inside_a_prediction_is_found_by_any_id_with_parties_in_it():
    long = ("this is between Acme Ltd. and many other firms", 0.5)
    for id, is_found in (("t__Parties", True), ("Parties of t__Date", True), ("t__parties", False)):
        found, wrong = cuad.count(id, ["Acme Ltd."], dict([long]))
        assert (found[-1], wrong[-1]) == (is_found, not is_found), id
    found, _ = cuad.count("t__Parties", ["ACME LTD."], dict([long]))
    assert not found.any()  # letter by letter


def test_one_span_finds_several_clauses_and_several_spans_of_one_cost_nothing():
    found, wrong = curve(("a b", 0.9), ("a b c", 0.9), gold=["a b", "b a"])
    assert (found[-1], wrong[-1]) == (2, 0)


def test_every_span_of_a_question_without_clauses_is_wrong():
    found, wrong = curve(("a", 0.9), ("b", 0.9), gold=[])
    assert (found[-1], wrong[-1]) == (0, 2)


@pytest.mark.parametrize(
    ("pairs", "gold", "aupr", "at_90"),
    [
        # A wrong span first: precision 0 at recall 0, then 1/2 at recall 1.
        ([("z", 0.9), ("a b", 0.5)], ["a b"], 50, 50),
        # The curve begins at recall 0 with precision 1: one point, recall 1 with precision 1/2.
        ([("z", 0.995), ("a b", 0.995)], ["a b"], 75, 50),
        # 3 of 4 are found: nothing is added up to recall 1.
        ([("a b", 0.9), ("c d", 0.8), ("e f", 0.7)], ["a b", "c d", "e f", "g h"], 75, 0),
        # A recall that only threshold 0 reaches is not looked at.
        ([("a b", 0.0005)], ["a b"], 100, 0),
    ],
)
def test_a_curve_by_hand(pairs, gold, aupr, at_90):
    figures = cuad.curve_figures(*curve(*pairs, gold=gold), len(gold))
    assert (figures["aupr"], figures["prec_at_90_recall"]) == pytest.approx((aupr, at_90))


@pytest.mark.parametrize(
    ("found", "at_80", "at_90"), [(15, 0, 0), (16, 100, 0), (17, 100, 0), (18, 100, 100)]
)
def test_a_recall_that_is_just_met_is_reached(found, at_80, at_90):
    counts = np.full(len(cuad.THRESHOLDS), found)
    figures = cuad.curve_figures(counts, np.zeros_like(counts), 20)
    assert (figures["prec_at_80_recall"], figures["prec_at_90_recall"]) == (at_80, at_90)


def test_what_is_undefined_is_0():
    nothing = {"aupr": 0, "prec_at_80_recall": 0, "prec_at_90_recall": 0}
    gold = [contract({"Date": ["May 1"]})]
    assert evaluate(gold, {f"{TITLE}__Date": []}).metrics == nothing
    assert evaluate(gold, {f"{TITLE}__Date": [("", 1.0)]}).metrics == nothing
    none = [contract({"Date": []})]
    assert evaluate(none, {f"{TITLE}__Date": [("x", 0.5)]}).metrics == nothing


def test_a_category_is_scored_with_every_id_that_has_its_name_anywhere():
    gold = [contract({"Date": ["May 1"], "Effective Date": ["June 2"]})]
    found = {f"{TITLE}__Date": [("May 1", 0.995)], f"{TITLE}__Effective Date": []}
    subsets = evaluate(gold, found).subsets
    assert subsets["Date"]["aupr"] == 50  # of the two clauses one is found
    assert subsets["Effective Date"]["aupr"] == 0


def test_intervals_and_groups_are_of_contracts_scored_anew():
    # A contract with all found, and one with nothing found: a resample has 0, 50 or 100.
    gold = [
        contract({"Date": ["May 1"]}, "one", "a " * 10),
        contract({"Date": ["May 1"]}, "two", "a " * 300),
    ]
    result = evaluate(gold, {"one__Date": [("May 1", 0.995)], "two__Date": []})
    assert result.metrics["aupr"] == 50
    assert result.intervals["aupr"] == (0, 100)
    counts = result.figures(np.array([[2, 0], [0, 2], [1, 1]]))
    assert counts["aupr"].tolist() == [100, 0, 50]
    # Questions on one contract are drawn together.
    result = evaluate(
        [contract({"Date": ["May 1"], "Cap": ["x"]})],
        {f"{TITLE}__Date": [("May 1", 0.995)], f"{TITLE}__Cap": []},
    )
    assert len({item.unit for item in result.items}) == 1


@pytest.mark.parametrize(
    ("gold", "predictions", "message"),
    [
        ({"Date": ["x"]}, {}, f"pred: no prediction of 1 question, such as '{TITLE}__Date'; the"),
        ({}, {"z": []}, "gold: no questions in it"),
        (
            {"Date": []},
            {f"{TITLE}__Date": [], "z": []},
            "pred: no gold of 1 question, such as 'z'; the ids of both files are the same",
        ),
        ({"Date": [""]}, {}, f"gold: {TITLE}__Date: the text of an answer is empty"),
    ],
)
def test_a_file_that_cannot_be_used(gold, predictions, message):
    with pytest.raises(DataError) as error:
        scored.evaluate(
            "cuad", JsonFile("gold", {"data": [contract(gold)]}), JsonFile("pred", predictions)
        )
    assert str(error.value).startswith(message)


def test_the_baseline_is_the_commonest_clause():
    gold = JsonFile("gold", {"data": [contract({"Date": ["May"], "Cap": ["May", "x"]})]})
    baselines = scored.evaluate(
        "cuad", gold, dict.fromkeys((f"{TITLE}__Date", f"{TITLE}__Cap"), [])
    ).baselines
    assert baselines["aupr"].answer == "always 'May'"
    assert baselines["aupr"].value == pytest.approx(200 / 3)


def span(text, start, end=0.0):
    return {"answer": text, "start_logit": start, "end_logit": end}


def test_written_predictions_are_the_20_best_with_no_answer_among_them():
    spans = [span(f"t{number}", float(number)) for number in range(30)]
    spans.append(span("t29", -9.0))  # of equal texts the best
    null = {"start_logit": -2.0, "end_logit": -3.0}
    written = cuad.published_n_best([{"id": 7, "n_best": spans, "null": null}])
    assert list(written) == ["7"]
    entries = written["7"]
    # A strict reader: the four keys of the n-best file, the best first, shares of all.
    assert [set(entry) for entry in entries] == [
        {"text", "probability", "start_logit", "end_logit"}
    ] * 20
    assert [entry["text"] for entry in entries] == [f"t{n}" for n in range(29, 10, -1)] + [""]
    assert sum(entry["probability"] for entry in entries) == pytest.approx(1)
    ratio = entries[0]["probability"] / entries[1]["probability"]
    assert ratio == pytest.approx(np.e)
    gold = [contract({"Date": ["May 1"]})]
    best = {"id": f"{TITLE}__Date", "n_best": [span("May 1", 9.0)], "null": null}
    again = scored.evaluate(
        "cuad",
        JsonFile("gold", {"data": gold}),
        JsonFile("pred", json.loads(json.dumps(cuad.published_n_best([best])))),
    )
    assert again.metrics["aupr"] == 100
