import csv
import json

import pyarrow.parquet
import pytest

from ldt.errors import UserError
from ldt.inference import answer_file
from ldt.inference.answer_file import AnswerFile, json_line
from ldt.io import records

CLASSES = [
    {"id": "a", "label": "yes", "scores": {"yes": 0.75, "no": 0.25}, "chunks": 1},
    {"id": "b", "label": "no", "scores": {"yes": 0.5, "no": 0.5}, "chunks": 2, "truncated": True},
]


def written(answers, target, overwrite=False, published=None):
    """The path of a file of answers, as a run leaves it."""
    layout = answer_file.layout_of(target, published)
    sink = AnswerFile(target, made_by={}, layout=layout, overwrite=overwrite)
    sink.write(answers)
    sink.finish()
    return target


def cells(path, delimiter=","):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter=delimiter))


def test_several_labels_have_a_column_of_1_and_0_each(tmp_path):
    scores = {"x": 0.75, "y": 0.25}
    answers = [{"id": n, "label": label, "scores": scores} for n, label in enumerate([["x"], None])]
    heads, first, silent = cells(written(answers, tmp_path / "a.csv"))
    assert heads == ["id", "label", "label.x", "label.y", "scores.x", "scores.y"]
    assert (first[1:4], silent[1:4]) == (['["x"]', "1", "0"], [""] * 3)


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.TSV", "\t")])
def test_csv_has_a_column_for_each_class_and_for_the_score_of_the_label(tmp_path, name, delimiter):
    assert cells(written(CLASSES, tmp_path / name), delimiter) == [
        ["id", "label", "score", "scores.yes", "scores.no", "chunks", "truncated"],
        ["a", "yes", "0.75", "0.75", "0.25", "1", ""],
        ["b", "no", "0.5", "0.5", "0.5", "2", "true"],
    ]


def test_csv_quotes_text_and_has_json_for_lists_and_leaves_formulas(tmp_path):
    text = 'a, "b"\r\nc\rd\ne'
    answer = {"id": "=1+1", "label": ["x", "ä"], "answer": text, "start": None, "n": [{"a": 1}]}
    path = written([answer], tmp_path / "a.csv")
    header, row = cells(path)
    assert dict(zip(header, row, strict=True)) == {
        "id": "=1+1",
        "label": '["x", "ä"]',
        "answer": text,
        "start": "",
        "n": '[{"a": 1}]',
    }


def test_parquet_has_types_and_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(answer_file, "ROW_GROUP", len(json_line(CLASSES[0])))
    path = written(CLASSES, tmp_path / "a.parquet")
    with pyarrow.parquet.ParquetFile(path) as file:
        assert file.metadata.num_row_groups == 2
        table = file.read()
    assert {field.name: str(field.type) for field in table.schema} == {
        "id": "string",
        "label": "string",
        "score": "double",
        "scores.yes": "double",
        "scores.no": "double",
        "chunks": "int64",
        "truncated": "bool",
    }
    assert table.column("truncated").to_pylist() == [None, True]


@pytest.mark.parametrize(
    ("values", "kind", "read"),
    [
        ([1, 2.5, None], "double", [1.0, 2.5, None]),
        ([(1 << 60) + 1, 0], "int64", [(1 << 60) + 1, 0]),
        ([7, "a"], "string", ["7", "a"]),
        ([1 << 70], "string", [str(1 << 70)]),
        ([None, None], "string", [None, None]),
        ([["x"], []], "list<element: string>", [["x"], []]),
        ([[], []], "list<element: string>", [[], []]),
        (
            [{"a": [], "b": None}],
            "struct<a: list<element: string>, b: string>",
            [{"a": [], "b": None}],
        ),
        ([[1], [0.5]], "list<element: double>", [[1.0], [0.5]]),
        ([["title", 3]], "string", ['["title", 3]']),
        ([{}, {"a": 1}], "struct<a: int64>", [{"a": None}, {"a": 1}]),
        ([{}, None], "string", ["{}", None]),
        (
            [[{"start": 1}], [{"label": "x"}]],
            "list<element: struct<start: int64, label: string>>",
            [[{"start": 1, "label": None}], [{"start": None, "label": "x"}]],
        ),
        ([True, 1], "string", ["true", "1"]),
    ],
)
def test_a_column_of_parquet_has_the_type_of_its_values(tmp_path, values, kind, read):
    answers = [{"id": number, "kept": value} for number, value in enumerate(values)]
    table = pyarrow.parquet.read_table(written(answers, tmp_path / "a.parquet"))
    column = table.column("kept")
    assert (str(column.type), column.to_pylist()) == (kind, read)


NESTED = [
    {"id": "a", "answer": "x", "n_best": [{"answer": "x", "score": 0.5, "start": 3}], "chunks": 1},
    {"id": "b", "answer": "", "n_best": [], "chunks": 2, "truncated": True},
]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_answers_are_documents_again(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(answer_file, "ROW_GROUP", 1)
    path = written(NESTED, tmp_path / f"a{suffix}")
    found = [example.fields for example in records.read(path)]
    assert found == [{"truncated": None} | answer for answer in NESTED]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.GZ"])
def test_compressed_lines_are_documents_again(name, tmp_path):
    path = written(NESTED, tmp_path / name)
    assert [example.fields for example in records.read(path)] == NESTED
    again = written(NESTED, tmp_path / f"again-{name}")
    assert again.read_bytes() == path.read_bytes()
    with pytest.raises(UserError, match=r"b\.json\.gz: lines alone are compressed"):
        answer_file.layout_of(tmp_path / "b.json.gz", None)
    with pytest.raises(UserError, match="lines alone are compressed"):
        answer_file.layout_of(path, lambda answers: {})


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_no_answers_are_a_table_without_rows(tmp_path, name):
    path = written([], tmp_path / name)
    if name == "a.csv":
        assert path.read_bytes() == b"id\r\n"
    else:
        assert pyarrow.parquet.read_table(path).num_rows == 0


def test_other_endings_are_lines_and_some_are_refused(tmp_path):
    path = written(CLASSES, tmp_path / "a.out")
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == CLASSES
    with pytest.raises(UserError, match="b.xlsx: .xlsx is not written"):
        answer_file.layout_of(tmp_path / "b.xlsx", None)
