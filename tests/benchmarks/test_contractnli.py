import gzip
import json

import numpy as np
import pytest
import scored
from sklearn import metrics as sklearn

from ldt.benchmarks import contractnli
from ldt.benchmarks import contractnli as nli
from ldt.benchmarks.contractnli import LABELS
from ldt.errors import DataError, UserError
from ldt.io.strict_json import JsonFile

NOT, YES, NO = LABELS


def document(id, annotations, spans=4, text="a b. c d. e f. g h."):
    """A contract: {hypothesis: (label, evidence)}."""
    return {
        "id": id,
        "text": text,
        "spans": [[start, start + 4] for start in range(0, 5 * spans, 5)],
        "annotation_sets": [
            {
                "annotations": {
                    key: {"choice": label, "spans": list(evidence)}
                    for key, (label, evidence) in annotations.items()
                }
            }
        ],
    }


def gold_of(*documents):
    keys = documents[0]["annotation_sets"][0]["annotations"]
    labels = {key: {"hypothesis": f"It is {key}.", "short_description": key} for key in keys}
    return {"documents": list(documents), "labels": labels}


def answer(document, key, classes, spans):
    """Probabilities of NotMentioned, Entailment, Contradiction, and of each span."""
    classes = dict(zip(LABELS, classes, strict=True))
    return {"document": document, "key": key, "scores": classes, "span_probs": spans}


def evaluate(gold, answers):
    value = answers if isinstance(answers, dict) else contractnli.published(answers)
    return scored.evaluate("contractnli", JsonFile("gold", gold), JsonFile("pred", value))


def test_a_small_case_is_what_it_is_by_hand():
    # Hypothesis x: in document 1 evidence 0 of scores .9 .6 .6 .1, in 2 evidence 2 of .2 .1 .6 .3.
    # All together, falling: .9 right; .6 .6 .6 with one right; then wrong ones.
    # Average precision 1/2 * 1/1 + 1/2 * 2/4 = .75; recall .8 is reached at .6: precision 2/4.
    # Hypothesis y: in 1 not mentioned, so its spans cost nothing; in 2 evidence 1 of 0 .4 .5 0:
    # average precision 1/2, precision at recall 1/2. Means: .625 and .5.
    # Classes of x: Entailment right, Contradiction taken for Entailment: accuracy .5, F1 of
    # Entailment 2/3, of Contradiction 0. Of y: both right, no Contradiction in gold: F1 of
    # Entailment 1, of Contradiction undefined. Means: .75, 5/6, 0.
    gold = gold_of(
        document(1, {"x": (YES, [0]), "y": (NOT, [])}),
        document(2, {"x": (NO, [2]), "y": (YES, [1])}),
    )
    result = evaluate(
        gold,
        [
            answer(1, "x", [0.1, 0.8, 0.1], [0.9, 0.6, 0.6, 0.1]),
            answer(1, "y", [0.5, 0.2, 0.3], [1.0, 1.0, 1.0, 1.0]),
            answer(2, "x", [0.1, 0.5, 0.4], [0.2, 0.1, 0.6, 0.3]),
            answer(2, "y", [0.2, 0.6, 0.2], [0.0, 0.4, 0.5, 0.0]),
        ],
    )
    figures = {
        **{"span.map": 62.5, "span.precision@recall80": 50, "span.precision@recall90": 50},
        **{"class.accuracy": 75, "class.f1_entailment": 250 / 3, "class.f1_contradiction": 0},
        # Above .5: of x 4 found, 2 right; of y none (.5 is not above): recall 1 and 0.
        **{"span.precision": 25, "span.recall": 50, "span.f1": 100 / 3, "span.accuracy": 75},
    }
    assert {name: result.metrics[name] for name in figures} == pytest.approx(figures)
    # Only x has both classes: its contradiction is taken for an entailment.
    assert result.metrics["class_binary.accuracy"] == 50
    # All spans that are scored together: .9 r, .6 .6 .6 (1 r), .5, .4 r: (1 + 2/4 + 3/6) / 3.
    assert result.subsets["micro_label_micro_doc"]["span.map"] == pytest.approx(200 / 3)
    # By document and hypothesis: 1, 1 (x) and 1/2 (y).
    assert result.subsets["macro_label_macro_doc"]["span.map"] == pytest.approx(75)
    assert result.subsets["micro_label_macro_doc"]["span.map"] == pytest.approx(250 / 3)
    assert result.subsets["x"]["span.map"] == pytest.approx(75)


@pytest.fixture(scope="module")
def dev(shared_data):
    packed = (shared_data / "contractnli" / "dev.json.gz").read_bytes()
    return json.loads(gzip.decompress(packed))


def made_up(gold, digits):
    """Predictions that lean to gold, with many equal probabilities."""
    random = np.random.default_rng(0)
    for item in gold["documents"]:
        for key, right in item["annotation_sets"][0]["annotations"].items():
            classes = random.random(3) + [0.5 * (right["choice"] == label) for label in LABELS]
            spans = random.random(len(item["spans"]))
            spans[right["spans"]] += 0.2
            yield answer(
                item["id"], key, classes.round(digits).tolist(), spans.round(digits).tolist()
            )


@pytest.mark.parametrize("digits", [1, 4])
def test_real_documents_have_the_figures_of_scikit_learn(dev, digits):
    answers = list(made_up(dev, digits))
    result = evaluate(dev, answers)
    by_pair = {(each["document"], each["key"]): each for each in answers}
    figures = []
    for key in dev["labels"]:
        labels, predicted, right, scores = [], [], [], []
        for item in dev["documents"]:
            gold, found = item["annotation_sets"][0]["annotations"][key], by_pair[item["id"], key]
            labels.append(LABELS.index(gold["choice"]))
            predicted.append(int(np.argmax(list(found["scores"].values()))))
            if gold["choice"] != NOT:
                right += [number in gold["spans"] for number in range(len(item["spans"]))]
                scores += found["span_probs"]
        right, scores, labels = np.array(right), np.array(scores), np.array(labels)
        precision, recall, _ = sklearn.precision_recall_curve(right, scores)
        places = [np.flatnonzero(recall >= wanted)[-1] for wanted in (0.8, 0.9)]
        own = {
            "span.map": sklearn.average_precision_score(right, scores),
            "span.roc_auc": sklearn.roc_auc_score(right, scores),
            "span.precision@recall80": precision[places[0]],
            "span.precision@recall90": precision[places[1]],
            "span.f1": sklearn.f1_score(right, scores > 0.5, zero_division=0),
            "span.accuracy": sklearn.accuracy_score(right, scores > 0.5),
            "class.accuracy": sklearn.accuracy_score(labels, predicted),
        }
        for number, name in ((1, "entailment"), (2, "contradiction")):
            two = labels == number, np.array(predicted) == number
            own[f"class.f1_{name}"] = sklearn.f1_score(*two) if two[0].any() else np.nan
            own[f"class.precision_{name}"] = sklearn.precision_score(*two, zero_division=0)
        figures.append(own)
    for name in figures[0]:
        mean = 100 * np.nanmean([own[name] for own in figures])
        assert result.metrics[name] == pytest.approx(mean, abs=1e-9), name
    low, high = result.intervals["span.map"]
    assert low < result.metrics["span.map"] < high
    assert len({item.unit for item in result.items}) == len(dev["documents"])


def test_a_resample_has_the_figures_of_a_file_with_those_documents(dev):
    small = {"documents": dev["documents"][:6], "labels": dev["labels"]}
    answers = list(made_up(small, 1))
    hypotheses = len(dev["labels"])
    counts = np.repeat([[2, 0, 1, 3, 0, 0]], hypotheses, 1)
    figures = evaluate(small, answers).figures(counts)
    documents, copies = [], []
    for number, (item, times) in enumerate(zip(small["documents"], [2, 0, 1, 3], strict=False)):
        for copy in range(times):
            documents.append(item | {"id": f"{number}-{copy}"})
            copies += [
                each | {"document": f"{number}-{copy}"}
                for each in answers
                if each["document"] == item["id"]
            ]
    again = evaluate({"documents": documents, "labels": dev["labels"]}, copies)
    for name, value in again.metrics.items():
        assert figures[name][0] == pytest.approx(value), name


def classes(gold, predicted):
    weights = np.ones((1, len(gold)))
    found = nli.class_figures(weights, np.array(gold), np.array(predicted))
    return {name: value[0] for name, value in found.items()}


def test_a_class_that_gold_never_has_is_undefined_and_one_never_predicted_0():
    figures = classes([1, 1, 0], [1, 2, 2])
    assert np.isnan([figures["recall_contradiction"], figures["f1_contradiction"]]).all()
    assert np.isnan([figures["f1_mean"], figures["f1_hmean"], figures["recall_mean"]]).all()
    assert figures["precision_contradiction"] == 0
    assert figures["precision_mean"] == 50  # both are defined
    figures = classes([2, 1], [1, 1])
    assert (figures["precision_contradiction"], figures["f1_contradiction"]) == (0, 0)
    assert (figures["f1_hmean"], figures["f1_mean"]) == (0, pytest.approx(100 / 3))


def test_undefined_figures_are_left_out_of_means_and_are_no_metric_if_all_are():
    parts = [{"f1": np.array([np.nan])}, {"f1": np.array([40.0])}, {"f1": np.array([80.0])}]
    assert nli.mean_defined(parts)["f1"] == 60
    gold = gold_of(document(1, {"x": (YES, [0])}))
    result = evaluate(gold, [answer(1, "x", [0, 1, 0], [0.9, 0.1, 0.1, 0.1])])
    assert "class.f1_contradiction" not in result.metrics
    assert "class.f1_contradiction" not in result.shown
    assert not any(name.startswith("class_binary") for name in result.metrics)
    assert result.metrics["class.f1_entailment"] == 100


def test_where_nothing_is_mentioned_there_is_no_figure_of_evidence():
    gold = gold_of(document(1, {"x": (NOT, [])}), document(2, {"x": (NOT, [])}))
    answers = [answer(id, "x", [1, 0, 0], [0.9] * 4) for id in (1, 2)]
    result = evaluate(gold, answers)
    assert not any(name.startswith("span.") for name in result.metrics)
    assert result.metrics["class.accuracy"] == 100
    assert "class.accuracy" in result.intervals


@pytest.mark.parametrize(
    ("probabilities", "right"),
    [([0.4, 0.4, 0.2], NOT), ([0.2, 0.4, 0.4], YES), ([0.1, 0.2, 0.7], NO)],
)
def test_a_tie_of_classes_goes_to_the_first_of_not_mentioned_entailment_contradiction(
    probabilities, right
):
    gold = gold_of(document(1, {"x": (right, [] if right == NOT else [0])}))
    result = evaluate(gold, [answer(1, "x", probabilities, [0.9, 0, 0, 0])])
    assert result.metrics["class.accuracy"] == 100


def test_class_binary_leaves_not_mentioned_out_on_both_sides():
    gold = gold_of(
        document(1, {"x": (YES, [0])}),
        document(2, {"x": (NO, [0])}),
        document(3, {"x": (NOT, [])}),
    )
    answers = [
        answer(1, "x", [0.8, 0.1, 0.1], [0.9, 0, 0, 0]),  # a tie is an entailment
        answer(2, "x", [0.8, 0.05, 0.15], [0.9, 0, 0, 0]),
        answer(3, "x", [0.8, 0.05, 0.15], [0.9, 0, 0, 0]),
    ]
    metrics = evaluate(gold, answers).metrics
    assert metrics["class_binary.accuracy"] == 100
    assert metrics["class.accuracy"] == pytest.approx(100 / 3)


def test_choice_and_spans_of_predictions_are_not_looked_at():
    gold = gold_of(document(1, {"x": (YES, [0])}))
    value = contractnli.published([answer(1, "x", [0, 1, 0], [0.9, 0, 0, 0])])
    entry = value[0]["annotation_sets"][0]["annotations"]["x"]
    entry |= {"choice": NO, "spans": [3]}
    result = scored.evaluate("contractnli", JsonFile("gold", gold), JsonFile("pred", value))
    assert result.metrics["class.accuracy"] == result.metrics["span.map"] == 100


def test_a_document_that_gold_does_not_have_is_left_out():
    gold = gold_of(document("1", {"x": (YES, [0])}))
    answers = [answer(id, "x", [0, 1, 0], [0.9, 0, 0, 0]) for id in ("1", "9")]
    result = evaluate(gold, answers)
    assert (result.missing, result.extra) == ([], ["9/x"])


def broken(change):
    """A gold file and predictions of two hypotheses, one of which is changed."""
    gold = gold_of(document(1, {"x": (YES, [0]), "y": (NOT, [])}))
    answers = [answer(1, key, [0, 1, 0], [0.9, 0, 0, 0]) for key in "xy"]
    pred = contractnli.published(answers)
    change(gold, pred)
    return JsonFile("gold", gold), JsonFile("pred", pred)


def of_gold(gold):
    return gold["documents"][0]["annotation_sets"][0]["annotations"]


def of_pred(pred):
    return pred[0]["annotation_sets"][0]["annotations"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g, p: of_gold(g)["x"].update(spans=[4]), "gold: 1/x: span 4 as evidence; the docu"),
        (lambda g, p: of_gold(g).pop("y"), "gold: 1: hypotheses that stand only in"),
        (
            lambda g, p: g["documents"].append(g["documents"][0]),
            "gold: the id '1/x' stands twice; each",
        ),
        (
            lambda g, p: g["documents"][0].update(spans=[[0, 99]]),
            "gold: 1: span [0, 99]; exp",
        ),
        (
            lambda g, p: g["documents"][0].pop("annotation_sets"),
            "gold: 1/x: no label; the",
        ),
        (lambda g, p: g.update(documents=[]), "gold: no pairs in it"),
        (lambda g, p: p.append(p[0]), "pred: the id '1' stands twice; each"),
        (lambda g, p: p.clear(), "pred: no prediction of 2 pairs of document and hypothesis, such"),
        (lambda g, p: of_pred(p).pop("y"), "pred: no prediction of 1 pair of document and hypothe"),
        (
            lambda g, p: of_pred(p)["x"].update(span_probs=[1]),
            "pred: 1/x: 1 span_probs; the docume",
        ),
    ],
)
def test_a_file_that_cannot_be_used(change, message):
    with pytest.raises(DataError) as error:
        scored.evaluate("contractnli", *broken(change))
    assert str(error.value).startswith(message)


def test_written_predictions_have_the_published_keys():
    answers = [
        answer(3, "x", [0.2, 0.7, 0.1], [0.6, 0.5]),
        answer(4, "x", [0.5, 0.5, 0.0], []),
        answer(3, "y", [0.0, 0.1, 0.9], [0.0, 1.0]),
    ]
    written = json.loads(json.dumps(contractnli.published(answers)))
    # A strict reader of the published list: one entry a document, one annotation set in each.
    assert [entry["id"] for entry in written] == [3, 4]
    first = written[0]["annotation_sets"][0]["annotations"]
    assert set(first) == {"x", "y"}
    assert first["x"] == {
        "choice": YES,
        "class_probs": {NOT: 0.2, YES: 0.7, NO: 0.1},
        "spans": [0],  # .5 is not above .5
        "span_probs": [0.6, 0.5],
    }
    assert written[1]["annotation_sets"][0]["annotations"]["x"]["choice"] == NOT


def test_lines_of_ones_own_have_no_place_in_a_published_file():
    line = {"id": "a", "scores": dict.fromkeys(LABELS, 0.3), "span_probs": []}
    with pytest.raises(UserError, match="record a has no 'document', 'key', by which .* [.]jsonl"):
        contractnli.published([line])
