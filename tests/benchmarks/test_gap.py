"""GAP: rows read, decisions of clusters, and the figures of the published script."""

import json

import pytest

from ldt import benchmarks
from ldt.benchmarks import gap
from ldt.data.options import DEFAULTS
from ldt.errors import DataError

HEADER = "\t".join(gap.COLUMNS)
TEXT = '"Ann 😀 met Kim Lee", and {} left Kim.'
ROWS = [("she", "TRUE", "FALSE"), ("her", "FALSE", "FALSE"), ("he", "FALSE", "TRUE")]
ROWS += [("His", "FALSE", "TRUE")]


def row(number, pronoun, a, b):
    text = TEXT.format(pronoun)
    cells = [f"t-{number}", text, pronoun, text.index(pronoun), "Ann", 1, a, "Kim Lee", 11, b, "u"]
    return "\t".join(map(str, cells))


@pytest.fixture
def gold(tmp_path):
    file = tmp_path / "gap.tsv"
    lines = [HEADER, *(row(number, *each) for number, each in enumerate(ROWS))]
    file.write_bytes("\r\n".join(lines).encode())
    return str(file)


def test_a_row_has_three_spans_and_two_labels(gold):
    examples = [*gap.read(gold, DEFAULTS)]
    assert [example.id for example in examples] == ["t-0", "t-1", "t-2", "t-3"]
    assert examples[0].fields == {
        "text": TEXT.format("she"),
        "pronoun": {"start": 25, "end": 28, "text": "she"},
        "a": {"start": 1, "end": 4, "text": "Ann"},
        "b": {"start": 11, "end": 18, "text": "Kim Lee"},
        "labels": [True, False],
    }


def test_the_figures_are_those_of_the_published_script(gold, tmp_path):
    pred = tmp_path / "pred.tsv"
    pred.write_text("t-0\tTRUE\tTRUE\nt-2\tfalse\tTRUE\nt-3\tTRUE\tFALSE\n")
    result = benchmarks.evaluate(gold, str(pred), format="gap")
    assert result.missing == ["t-1"]  # both of whose names count as not found
    # Right, wrongly found and not found: 2 2 3; masculine 1 1 1; feminine 1 1 2.
    assert result.metrics["f1"] == pytest.approx(100 * 4 / 9)
    assert result.metrics["masculine_f1"] == pytest.approx(50)
    assert result.metrics["feminine_f1"] == pytest.approx(100 * 2 / 5)
    assert result.metrics["bias"] == pytest.approx(80)
    # Trivial decisions are scored beside them, and must not take their place.
    assert [item.scores["all:right"] for item in result.items] == [1, 0, 1, 0]


def spans(*pairs):
    return [{"start": start, "end": end} for start, end in pairs]


@pytest.mark.parametrize(
    ("clusters", "expected"),
    [
        ([spans((25, 28), (1, 4))], [True, False]),
        ([spans((25, 28), (1, 4), (11, 18))], [True, True]),
        ([spans((25, 28), (1, 6), (34, 37))], [True, False]),  # more than the name; another place
        ([spans((25, 28), (11, 14))], [False, True]),  # a part of the name
        ([spans((25, 28), (1, 18)), spans((1, 4))], [False, True]),  # the shortest that has all
        ([spans((1, 4), (11, 18))], [False, False]),
        ([], [False, False]),
    ],
)
def test_clusters_decide(clusters, expected, gold, tmp_path):
    example = next(gap.read(gold, DEFAULTS))
    assert gap.decisions(example.fields, clusters) == expected
    file = tmp_path / "pred.jsonl"
    file.write_text(json.dumps({"id": "t-0", "clusters": clusters}) + "\n")
    metrics = benchmarks.evaluate(gold, str(file), format="gap").metrics
    assert metrics["recall"] == pytest.approx(100 * expected[0] / (1 + 2 * 3))  # three lack


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("\tAnn\t1\t", "\tAnn\t2\t"), ":2: A-offset 2: there stands no 'Ann' in the text"),
        (("\tTRUE\t", "\tyes\t"), ":2: 'yes', expected TRUE or FALSE"),
        (("\tu", ""), ":2: 10 columns, expected 11: ID, Text"),
    ],
)
def test_a_row_that_cannot_be_read_is_told(change, message, tmp_path):
    file = tmp_path / "gap.tsv"
    file.write_text(HEADER + "\n" + row(0, *ROWS[0]).replace(*change) + "\n", "utf-8")
    with pytest.raises(DataError) as error:
        list(gap.read(str(file), DEFAULTS))
    assert str(error.value).startswith(f"{file}{message}")


def test_a_line_of_decisions_has_three_columns(gold, tmp_path):
    file = tmp_path / "pred.tsv"
    file.write_text("t-0\tTRUE\n")
    with pytest.raises(DataError, match="pred.tsv:1: 2 columns, expected ID, A-coref, B-coref"):
        benchmarks.evaluate(gold, str(file), format="gap")
