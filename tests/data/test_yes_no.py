"""Yes and no in columns and objects, as offices write them."""

import csv
import json
import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ldt.benchmarks.formats import read
from ldt.data.options import DataSection
from ldt.errors import DataError
from ldt.io.records import Example
from ldt.tasks import Classification

NAMES = ["Cap", "Audit", "Law"]
GOLDS = [["Cap", "Audit"], ["Cap"], ["Audit", "Law"], []]


def write(path, rows):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            out = csv.DictWriter(file, rows[0])
            out.writeheader()
            out.writerows(rows)


def learn(labels, path="label"):
    """What records with these fields teach."""
    found = [Example(fields, n, f"t:{n}") for n, fields in enumerate(labels, 1)]
    return Classification().learn(found, DataSection(label=path))


OFFICE = [
    *("x|", "X|", "x|-", "✓|", "✔|✗", "☒|☐", "yes|no", "Yes|NO", "ja|nein", "Oui|Non", "y|n"),
    *("j|n", "true|false", "WAHR|FALSCH", "1|0", "1.0|0", "yes|", "sí|no"),
]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("words", OFFICE)
def test_columns_have_yes_and_no_as_offices_write_them(tmp_path, words, kind):
    yes, no = words.split("|")
    no = no or ("" if kind == "csv" else None)
    rows = [{name: yes if name in gold else no for name in NAMES} for gold in GOLDS]
    path = tmp_path / f"train.{kind}"
    write(path, [{"text": "t"} | row for row in rows])
    task, data = Classification(), DataSection(label=NAMES)
    problem, _, golds = task.read_labels(read(str(path), data), data, "train")
    assert (problem, golds) == ("multi_label_classification", GOLDS)
    assert list(learn([{"label": row} for row in rows])["label2id"]) == sorted(NAMES)


@pytest.mark.parametrize(
    ("cells", "what"),
    [
        (["x", "", "yes"], "t:3: label 'a' is 'yes', expected yes or no in one pair of words: x a"),
        (["ja", "no"], "t:2: label 'a' is 'no', expected yes or no in one pair of words: x and b"),
        (["✓", "x"], "t:2: label 'a' is 'x', expected yes or no in one pair"),  # x: yes or no?
        (["maybe", "yes"], "t:1: label 'a' is 'maybe', expected yes or no in one pair of words"),
        ([["yes"], "no"], "t:1: label 'a' is a list of 1, expected yes or no in one pair of wor"),
    ],
)
def test_a_column_keeps_to_one_pair(cells, what):
    with pytest.raises(DataError) as caught:
        learn([{"a": cell} for cell in cells], ["a"])
    assert str(caught.value).startswith(what)
    if "t:1" not in what:
        assert str(caught.value).endswith(f"; t:1 is {cells[0]!r}")


def test_blanks_beside_yes_and_no_are_told_and_blanks_beside_x_are_not(caplog):
    rows = [("yes", "x"), ("", ""), ("no", "x"), (" ", "")]
    with caplog.at_level(logging.WARNING, "ldt"):
        learn([{"a": a, "b": b} for a, b in rows], ["a", "b"])
    assert caplog.records[0].getMessage() == (
        "t:2: 2 blanks beside yes and no in 'a', read as no; leave out documents where it is not "
        "known"
    )


def test_one_column_of_x_and_blank_says_how_it_is_read():
    what = r"t:1: label 'label' is 'X' or blank; data.label=\[label\] reads blank as no"
    for cells in (["", "X", "x"], [None, "X"]):
        with pytest.raises(DataError, match=what):
            learn([{"label": cell} for cell in cells])
    with pytest.raises(DataError, match="t:1: label 'label' is '', expected text"):
        learn([{"label": cell} for cell in ("", "other", "other")])
