import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import PretrainedConfig

from ldt.benchmarks.formats import read
from ldt.data.labels import LabelReader, near
from ldt.data.options import DataSection
from ldt.errors import DataError, RecipeError
from ldt.io.records import Example
from ldt.tasks import Classification
from ldt.tasks.base import strata_of

SINGLE, MULTI = "single_label_classification", "multi_label_classification"
JOINED = ["Cap|Audit", "Cap", "Audit | Law", "Law", "Cap|Law", ""]
LISTS = [["Cap", "Audit"], ["Cap"], ["Law", "Audit"], []]
GOLDS = [["Audit", "Cap"], ["Cap"], ["Audit", "Law"], []]
VECTORS = [[1, 1, 0], [1, 0, 0], [0, 1, 1], [0, 0, 0]]
FLAGS = [
    {"Cap": True, "Audit": True, "Law": False},
    {"Cap": True, "Audit": False, "Law": False},
    {"Cap": False, "Audit": True, "Law": True},
    {"Cap": False, "Audit": False, "Law": False},
]
NAMES = ["Cap", "Audit", "Law"]


def write_csv(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, rows[0])
        out.writeheader()
        for row in rows:
            out.writerow(
                {
                    name: json.dumps(cell) if isinstance(cell, (list, dict)) else cell
                    for name, cell in row.items()
                }
            )


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def write_parquet(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path)


WRITERS = {"csv": write_csv, "jsonl": write_jsonl, "parquet": write_parquet}


def learnt(path, task=None, **data):
    """The config that a file teaches, and its golds."""
    section = DataSection(train=str(path), **data)
    found, task = list(read(str(path), section)), task or Classification()
    config = PretrainedConfig(**task.learn(found, section))
    return config, [task.gold(example, section, config) for example in found]


def labelled(values):
    return [{"text": f"document {n}", "label": value} for n, value in enumerate(values)]


def columns(prefix=""):
    return [{"text": "t"} | {prefix + name: row[name] for name in NAMES} for row in FLAGS]


# What each layout is read as: problem, classes, golds. Where files differ, one for each kind.
IN_ORDER = (MULTI, NAMES, [sorted(gold, key=NAMES.index) for gold in GOLDS])
LAYOUTS = {
    "text": (labelled("bab"), {}, {}, (SINGLE, ["a", "b"], list("bab"))),
    "whole numbers": (
        labelled([10, 9, 10]),
        {},
        {},
        (SINGLE, ["10", "9"], ["10", "9", "10"]),
    ),
    "true and false": (
        labelled([True, False]),
        {},
        {},
        {
            "csv": (SINGLE, ["False", "True"], ["True", "False"]),
            None: (SINGLE, ["false", "true"], ["true", "false"]),
        },
    ),
    "decimals": (
        labelled([0.5, 2.0]),
        {},
        {},
        {
            "csv": "file:2: labels such as '0.5' are numbers as text; task.problem=regression "
            "reads them so, single_label as 2 classes",
            None: ("regression", ["label"], [0.5, 2.0]),
        },
    ),
    "whole numbers with a point": (
        labelled([0.0, 1.0, 0.0]),
        {},
        {},
        {
            "csv": "file:2: labels such as '0.0' are numbers as text; task.problem=regression "
            "reads them so, single_label as 2 classes",
            None: "file:2: labels such as 0.0 are numbers; task.problem=regression reads them so, "
            "single_label as 2 classes",
        },
    ),
    "whole numbers with a point, as classes": (
        labelled([0.0, 1.0, 0.0]),
        {},
        {"problem": "single_label"},
        {
            "csv": (SINGLE, ["0.0", "1.0"], ["0.0", "1.0", "0.0"]),
            None: (SINGLE, ["0", "1"], ["0", "1", "0"]),
        },
    ),
    "many whole numbers": (
        labelled([*range(1900, 1960), 1900]),
        {},
        {},
        {
            "csv": "file:2: labels such as '1900' are numbers as text; task.problem=regression "
            "reads them so, single_label as 60 classes",
            None: "file:2: labels such as 1900 are numbers; task.problem=regression reads them so, "
            "single_label as 60 classes",
        },
    ),
    "few numbers with halves": (
        labelled([1.5, 2.0] * 4),
        {},
        {},
        {
            "csv": "file:2: labels such as '1.5' are numbers as text; task.problem=regression "
            "reads them so, single_label as 2 classes",
            None: "file:2: labels such as 1.5 are numbers; task.problem=regression reads them so, "
            "single_label as 2 classes",
        },
    ),
    "lists of text": (labelled(LISTS), {}, {}, (MULTI, sorted(NAMES), GOLDS)),
    "JSON lists in text": (
        labelled([*map(json.dumps, LISTS[:3]), ""]),
        {},
        {},
        (MULTI, sorted(NAMES), GOLDS),
    ),
    "several in a cell": (
        labelled(JOINED),
        {},
        {},
        "file:2: labels such as 'Cap|Audit' look like several classes in a cell; "
        "data.label_separator='|' reads 3 classes, data.label_separator=none keeps 5 "
        "combinations as classes",
    ),
    "several in a cell, separator": (
        labelled(JOINED),
        {"label_separator": "|"},
        {},
        (MULTI, sorted(NAMES), [*GOLDS[:3], ["Law"], ["Cap", "Law"], []]),
    ),
    "vectors": (
        labelled(VECTORS),
        {},
        {},
        "file:2: label 'label' is a vector of 3 numbers 0 and 1, of classes without names; "
        "task.labels=[a, b, …] names them in their order",
    ),
    "vectors with names": (labelled(VECTORS), {}, {"labels": NAMES}, IN_ORDER),
    "object of booleans": (labelled(FLAGS), {}, {}, (MULTI, sorted(NAMES), GOLDS)),
    "columns": (columns(), {"label": NAMES}, {}, IN_ORDER),
    "columns of one object": (
        columns("clauses."),
        {"label": [f"clauses.{name}" for name in NAMES]},
        {},
        IN_ORDER,
    ),
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_labels_is_read_or_asked_about(tmp_path, layout, kind):
    rows, data, task, expected = LAYOUTS[layout]
    if isinstance(expected, dict):
        expected = expected.get(kind, expected[None])
    path = tmp_path / f"train.{kind}"
    WRITERS[kind](path, rows)
    if isinstance(expected, str):
        first = 2 if kind == "csv" else 1
        with pytest.raises(DataError) as caught:
            learnt(path, Classification(**task), **data)
        assert str(caught.value) == expected.replace("file:2", f"{path}:{first}")
    else:
        config, golds = learnt(path, Classification(**task), **data)
        names = [config.id2label[number] for number in range(config.num_labels)]
        assert (config.problem_type, names, golds) == expected


def task_learns(*labels, task=None, **data):
    """The config that labels teach, in a field ``label``."""
    found = [Example({"label": label}, n, f"t:{n}") for n, label in enumerate(labels, 1)]
    return PretrainedConfig(**(task or Classification()).learn(found, DataSection(**data)))


def message(*labels, **options):
    with pytest.raises((DataError, RecipeError)) as caught:
        task_learns(*labels, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# lists and objects in text


@pytest.mark.parametrize(
    "cell",
    ['["Cap", "Audit"]', "['Cap', 'Audit']", "{'Cap', 'Audit'}", '{"Cap": true, "Law": false}'],
)
def test_lists_and_objects_in_text_are_read_as_json_or_python_prints_them(cell):
    reader = LabelReader("label")
    gold = reader.gold(Example({"label": cell}, 1, "t:1"), MULTI)
    assert gold == (["Cap"] if "Law" in cell else ["Audit", "Cap"])


@pytest.mark.parametrize("cell", ["['Cap' 'Audit']", "[1 0 0]", "[1. 0.]", '["a" "b"]'])
def test_an_array_as_numpy_prints_it_is_refused_and_not_glued_together(cell):
    assert "neither JSON nor Python; json.dumps writes a list" in message(cell, "[]")
    config = task_learns(cell, "b", label_separator="none")
    assert config.problem_type == SINGLE


def test_classes_that_look_a_little_like_lists_are_classes():
    names = ["[unknown]", "{draft}", "[A] filed", "[1st]", "f(x)"]
    assert list(task_learns(*names).label2id) == sorted(names)


def test_lists_beside_plain_text_are_an_error_and_the_separator_none_keeps_them():
    assert message('["a"]', "b").startswith("t:2: label 'label' is text, at t:1 a list")
    config = task_learns('["a"]', "b", label_separator="none")
    assert (config.problem_type, list(config.label2id)) == (SINGLE, ['["a"]', "b"])


# vectors and objects


@pytest.mark.parametrize("vector", [[1, 0], [True, False], [1.0, 0.0], ["1", "0"], "[1, 0]", "1|0"])
def test_vectors_are_asked_about_and_read_with_names(vector):
    separator = "|" if vector == "1|0" else None
    other = {"1|0": "0|1", "[1, 0]": "[0, 1]"}.get(str(vector), [0, 1])
    if isinstance(vector, list):
        other = vector[::-1]
    what = message(vector, other, label_separator=separator)
    assert what.startswith(
        "t:1: label 'label' is a vector of 2 numbers 0 and 1, of classes without"
    )
    task = Classification(labels=["Law", "Cap"])
    data = DataSection(label_separator=separator)
    gold = task.labels_of(data).gold(Example({"label": vector}, 1, "t:1"), MULTI)
    assert gold == ["Law"]
    assert list(task_learns(vector, other, task=task, label_separator=separator).label2id) == [
        "Law",
        "Cap",
    ]


def test_a_vector_of_another_length_than_the_names_is_an_error():
    what = message([1, 0, 1], [0, 1, 1], task=Classification(labels=["a", "b"]))
    assert what == "t:1: label 'label' is a vector of 3, task.labels has 2 names"


def test_lists_of_class_numbers_are_no_vectors():
    assert list(task_learns([0, 1], [1], [0]).label2id) == ["0", "1"]
    assert list(task_learns([3, 7], [1, 3]).label2id) == ["1", "3", "7"]
    task = Classification(labels=["0", "1"])
    assert task.labels_of(DataSection()).read([0, 1], MULTI, "t:1") == ["0", "1"]


def test_an_object_has_all_its_keys_as_classes_and_null_is_false():
    config = task_learns({"a": True, "never": False}, {"a": None, "b": 1}, {}, None)
    assert (config.problem_type, list(config.label2id)) == (MULTI, ["a", "b", "never"])
    assert message({"a": 0.7}, {"a": 1}).startswith("t:1: label 'label.a' is 0.7, expected yes or")


# several classes in a cell


@pytest.mark.parametrize(
    ("labels", "way"),
    [
        (["a|b", "b|c", "a|c"], "data.label_separator='|' reads 3 classes"),
        (["a; b", "b", "a"], "data.label_separator=';' reads 2 classes"),
        (["a, b", "b", "a", "c"], "data.label_separator=',' reads 3 classes"),
        (["a / b", "b / c", "c", "a"], "data.label_separator=' / ' reads 3 classes"),
        (["a\nb", "b", "a"], "data.label_separator='\"\\n\"' reads 2 classes"),
        (["Law, Venue|Cap", "Cap", "Law, Venue"], "data.label_separator='|' reads 2 classes"),
    ],
)
def test_parts_that_recur_are_asked_about(labels, way):
    what = message(*labels)
    assert "look like several classes in a cell; " in what
    assert way in what
    separator = way.split("=")[1].split(" reads")[0].strip("'\"").replace("\\n", "\n")
    assert task_learns(*labels, label_separator=separator).problem_type == MULTI
    whole = task_learns(*labels, label_separator="none")
    assert (whole.problem_type, list(whole.label2id)) == (SINGLE, sorted(labels))
    known = task_learns(*labels, task=Classification(labels=labels))
    assert known.problem_type == SINGLE


@pytest.mark.parametrize(
    "labels",
    [
        ["Governing Law, Venue", "Notices", "Cap"],
        ["Governing Law, Venue", "Governing Law", "Cap"],
        ["Term; Termination", "Warranty; Duration"],
        ["News/Sports", "News/Politics", "Sports"],
        ["contract | lease", "contract | sale", "letter | private", "letter | official"],
        ["Paris, France", "Lyon, France", "Rome, Italy", "Milan, Italy"],
        ["Smith, John", "Smith, Jane", "Doe, John", "Doe, Jane"],
        ["1,000 EUR", "2,000 EUR"],
    ],
)
def test_names_with_commas_and_the_like_are_names(labels):
    config = task_learns(*labels)
    assert (config.problem_type, list(config.label2id)) == (SINGLE, sorted(labels))


def test_numbers_with_a_decimal_comma_are_asked_about():
    assert message("0,5", "2").startswith("t:1: labels such as '0,5' look like numbers with a dec")


def test_a_separator_goes_with_one_field_of_several_classes():
    single = Classification(problem="single_label")
    what = message("a|b", "b", task=single, label_separator="|")
    assert what == (
        f"data.label_separator: parts the classes of one field, the problem is {SINGLE}"
    )
    assert "look like several classes" in message("a|b", "b", "a", task=single)
    multi = Classification(problem="multi_label")
    assert message("a", "b", task=multi).endswith(
        "a list of classes; data.label_separator parts text"
    )
    data = DataSection(label=["a", "b"], label_separator="|")
    with pytest.raises(RecipeError, match="data.label names several"):
        Classification().learn([Example({"a": True, "b": False}, 1, "t:1")], data)


def test_an_empty_cell_is_no_label_where_there_may_be_several_and_an_error_elsewhere():
    task, data = Classification(), DataSection(label_separator="|")
    config = task_learns("a|b", "a", "", " ", None, label_separator="|")
    for empty in ("", " ", None):
        assert task.gold(Example({"label": empty}, 1, "t:1"), data, config) == []
    assert message("a", "b", "").startswith("t:3: label 'label' is '', expected text")


# fields of yes and no: tests/data/test_yes_no.py


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (["labels.cap", "labels.audit"], ["cap", "audit"]),
        (["a.b.cap", "a.b.x.audit"], ["cap", "x.audit"]),
        (["labels.cap"], ["cap"]),
        (["cap", "audit"], ["cap", "audit"]),
        (["cap", "cap.x"], ["cap", "cap.x"]),
        (["U.S. law", "U.S. rules"], ["U.S. law", "U.S. rules"]),
    ],
)
def test_fields_of_one_object_are_classes_without_its_name(path, names):
    assert list(LabelReader(path).columns.values()) == names


# near names and blanks


def test_blanks_around_a_class_are_no_part_of_it():
    assert list(task_learns("cap ", "cap", "law", "law", " law").label2id) == ["cap", "law"]


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (["Audit Rights", "audit-rights", "AuditRights", "Cap"], 1),
        (["Café", "Cafe\u0301"], 1),
        (["C", "C++", "C#"], 0),
        (["1.0", "10", "-1", "1"], 0),
        (["v1.0", "v10"], 0),
        (["+", "-"], 0),
    ],
)
def test_near_names_differ_in_case_blanks_and_punctuation(names, groups):
    assert len(near(names)) == groups


# splits


def test_strata_are_all_classes_of_a_document_without_blanks_around_them():
    task, data = Classification(), DataSection()
    several = [Example({"label": label}, 1, "t:1") for label in ('["a"]', {"a": True}, ["a"])]
    assert [[*strata_of(task, example, data)] for example in several] == [["a"]] * 3
    joined = Example({"label": "a|b"}, 1, "t:1")
    assert strata_of(task, joined, DataSection(label_separator="|")) == ["a", "b"]
    assert strata_of(task, Example({"label": "a "}, 1, "t:1"), data) == ["a"]
