import json
import random

import pytest
from scored import evaluate
from typed import typed

from ldt import benchmarks
from ldt.errors import DataError
from ldt.io.strict_json import JsonFile

GOLD = """\
-DOCSTART- O

Ann B-PER
Lee I-PER
saw O

Rome B-LOC

-DOCSTART- O

Bob B-PER
"""


@pytest.fixture
def gold(tmp_path):
    def gold(text=GOLD):
        file = tmp_path / "gold.conll"
        file.write_text(text, encoding="utf-8")
        return file

    return gold


def test_figures_are_of_the_entities_of_all_documents(gold):
    said = {"1": [["B-PER", "O", "I-LOC"], ["I-LOC"]], "2": [["B-PER"]]}
    result = evaluate("conll", gold(), JsonFile("pred", said))
    assert result.metrics == {
        **{"precision": 50, "recall": pytest.approx(200 / 3), "f1": pytest.approx(400 / 7)},
        **{"LOC_precision": 50, "LOC_recall": 100, "LOC_f1": pytest.approx(200 / 3)},
        **{"PER_precision": 50, "PER_recall": 50, "PER_f1": 50},
    }
    assert [item.words for item in result.items] == [4, 1]


def test_documents_without_a_prediction_count_and_others_are_left_out(gold):
    result = evaluate("conll", gold(), JsonFile("pred", {"2": [["B-PER"]], "3": [["B-PER"]]}))
    assert result.metrics["precision"] == 100
    assert result.metrics["recall"] == pytest.approx(100 / 3)
    assert (result.missing, result.extra) == (["1"], ["3"])


def test_the_interval_is_of_the_figure_of_resampled_documents(gold):
    rng = random.Random(0)
    lines, said, per = [], {}, []
    for number in range(60):
        size = rng.randint(1, 4)
        right = [rng.random() < 0.7 for _ in range(size)]
        lines += ["-DOCSTART- O", "", *["x B-A", "y O"] * size, ""]
        said[str(number + 1)] = [[tag for ok in right for tag in ("B-A" if ok else "O", "O")]]
        per.append((size, sum(right)))
    result = evaluate("conll", gold("\n".join(lines)), JsonFile("pred", said))
    low, high = result.intervals["recall"]
    recall = 100 * sum(right for _, right in per) / sum(size for size, _ in per)
    assert result.metrics["recall"] == pytest.approx(recall)
    assert low < recall < high
    assert result.intervals["precision"] == (pytest.approx(100 * 0.025 ** (1 / 60)), 100)
    draws = []
    for _ in range(2000):
        some = rng.choices(per, k=60)
        draws.append(100 * sum(right for _, right in some) / sum(size for size, _ in some))
    draws.sort()
    assert (low, high) == pytest.approx((draws[50], draws[1950]), abs=1)


def test_the_command_prints_groups_and_names_documents(gold, tmp_path, monkeypatch, capsys):
    gold()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pred.json").write_text(json.dumps({"1": [["O"] * 3, ["B-LOC"]]}))
    files = ["--gold", "gold.conll", "--pred", "pred.json", "--format", "conll"]
    lines = typed(capsys, "evaluate", *files)[1].splitlines()
    assert lines[0] == "conll: 2 documents, 1 predicted; figures from 0 to 100"
    assert lines[3].startswith("f1 50.00 ")
    assert lines[3].endswith(" (always O: 0.00)")
    group = "words of the document: 0 to 249: 2 documents, precision 100.00, recall 33.33, f1 50.00"
    assert group in lines
    found = json.loads(typed(capsys, "evaluate", *files, "--json", "-")[1])
    assert found["metrics"]["f1"] == 50
    assert found["by_length"][0]["metrics"]["f1"] == 50


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"1": ["O"]}, "pred: field 1.0: found 'O'; input should be a valid list"),
        ({"1": [["O"], ["O"]]}, "pred: '1': 2 sentences with 2 tags; the gold file has 2 with 4"),
        ({"1": [["X", "O", "O"], ["O"]]}, "pred: '1': 'X' is no tag; O, B-type and I-type are"),
    ],
)
def test_predictions_that_do_not_go_with_the_gold_file_are_told(gold, said, what):
    with pytest.raises(DataError) as error:
        evaluate("conll", gold(), JsonFile("pred", said))
    assert str(error.value).startswith(what)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "gold.conll: no documents in it"),
        ("a\nb\n", "gold.conll:1: one column only; a gold file has tags in the last"),
        ("a NNP\n", "gold.conll:1: 'NNP' is no tag"),
    ],
)
def test_a_gold_file_without_tags_is_told(gold, text, what):
    with pytest.raises(DataError) as error:
        evaluate("conll", gold(text), JsonFile("pred", {}))
    assert what in str(error.value)


def test_predictions_without_a_right_entity_are_no_better_than_o(gold, tmp_path):
    gold()
    (tmp_path / "pred.json").write_text(json.dumps({"1": [["O"] * 3, ["O"]]}))
    result = benchmarks.evaluate(
        str(tmp_path / "gold.conll"), str(tmp_path / "pred.json"), format="conll"
    )
    assert set(result.baselines) == {"precision", "recall", "f1"}
    assert result.warnings[-1] == "no better than always O: precision 0.00"
