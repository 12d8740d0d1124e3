import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

from ldt.benchmarks.formats import read
from ldt.data import profile
from ldt.data.findings import KINDS
from ldt.recipe.recipe import load
from ldt.training import check as module
from ldt.training import train as train_by
from ldt.training.check import check, first_look

# Clauses, of which a document is made; no two documents have three words in a row in common.
VERBS = (
    "sells buys grants keeps moves loans rents makes sends brings takes gives ships lends".split()
)
NOUNS = (
    "the boat and a house of that field for this horse with all lamp the ring and a stone "
    "under that table by this river"
).split()
CITIES = [f"{first}{last}" for first in ("Ash", "Oak", "Elm", "Fir") for last in ("ton", "ford")]


def prose(number, words=40):
    """A document of its own words."""
    rng = random.Random(number)
    return " ".join(
        f"{rng.choice(NOUNS)} {rng.choice(VERBS)}{number} {rng.choice(CITIES)}{rng.randrange(999)}"
        for _ in range(words // 3)
    )


def rows(count, start=0):
    return [
        {"id": f"d{n}", "text": prose(n), "label": "ab"[n % 2]} for n in range(start, start + count)
    ]


def write(name, lines):
    """Write JSON lines; text is a line as it is."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    Path(name).write_text("".join(f"{each}\n" for each in texts), "utf-8")


def checked(place, model, train, evaluation=None, task="classification", data="", **options):
    """The report on these rows."""
    write("train.jsonl", train)
    named = "train: train.jsonl"
    if evaluation is not None:
        write("dev.jsonl", evaluation)
        named += ", eval: dev.jsonl"
    Path("r.yaml").write_text(
        f"task: {{name: {task}}}\nmodel: {{path: {model}}}\ndata: {{{named}{data}}}\n"
    )
    return check(load("r.yaml", command="finetune"), **options)


def found(report):
    return {(finding.kind, finding.set): finding for finding in report.findings}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edited(text, share):
    words = text.split()
    for number in range(0, len(words), round(1 / share)):
        words[number] = f"new{number}"
    return " ".join(words)


def with_text(text):
    """Rows of which the sixth has another text."""
    some = rows(12)
    some[5]["text"] = text
    return some


def with_labels(*labels):
    return [row | {"label": label} for row, label in zip(rows(len(labels)), labels, strict=True)]


SPANISH = (
    "el contrato entre las partes y los socios es una obligación para el que lo firma con los "
)
EVAL = rows(4, 100)
SETS = {"train": "train", "eval": "dev"}
PLANTED = {  # kind: rows to train on, to evaluate on, the set and places where it is to be found
    "unreadable": ([*rows(12), '{"text": '], EVAL, "train", ["train.jsonl:13"]),
    "unusable": ([*rows(12), {"id": "x", "label": "a"}], EVAL, "train", ["train.jsonl:13"]),
    "duplicate_id": ([*rows(12), rows(1)[0] | {"text": prose(50)}], EVAL, "train", None),
    "empty": (with_text(" -- \n"), EVAL, "train", ["train.jsonl:6"]),
    "giant": (with_text(prose(5) * 6000), EVAL, "train", ["train.jsonl:6"]),
    "control_characters": (with_text(prose(5) + "\x00"), EVAL, "train", ["train.jsonl:6"]),
    "wrong_encoding": (with_text("CafÃ© " + prose(5)), EVAL, "train", ["train.jsonl:6"]),
    "mixed_languages": (with_text(SPANISH * 3), EVAL, "train", ["train.jsonl:6"]),
    "duplicate": ([*rows(12), rows(1)[0] | {"id": "x"}], EVAL, "train", ["train.jsonl:13"]),
    "contradiction": (
        [*rows(12), rows(1)[0] | {"id": "x", "label": "b"}],
        *(EVAL, "train", ["train.jsonl:13"]),
    ),
    "near_duplicate": (
        [*rows(12), {"id": "x", "text": edited(prose(3), 0.1), "label": "b"}],
        *(EVAL, "train", ["train.jsonl:13"]),
    ),
    "leak": (rows(12), [*EVAL, rows(1)[0]], "eval", ["dev.jsonl:5"]),
    "near_leak": (
        rows(12),
        [*EVAL, {"id": "x", "text": edited(prose(3), 0.1), "label": "b"}],
        *("eval", ["dev.jsonl:5"]),
    ),
    "same_files": (rows(12), rows(12), "train", ["dev.jsonl"]),
    "one_label": (with_labels(*"aaaa"), None, "train", None),
    "rare_label": (with_labels(*"aabbc"), None, "train", ["train.jsonl:5"]),
    "unseen_label": (rows(12), [*EVAL, rows(1, 70)[0] | {"label": "z"}], "eval", ["dev.jsonl:5"]),
    "unevaluated_label": (
        with_labels(*"aabbcc"),
        EVAL,
        "train",
        ["train.jsonl:5", "train.jsonl:6"],
    ),
    "small_evaluation": (with_labels(*"aabbcc"), EVAL, "train", None),
    "ambiguous_labels": (
        with_labels("cap", "cap", "term", "term", "cap|term"),
        *(None, "train", ["train.jsonl:5"]),
    ),
    "unlabelled": (with_labels("a", "a", None, " ", "b", "b"), None, "train", None),
    "stray_blanks": (with_labels("a", "a", "b ", "b"), None, "train", ["train.jsonl:3"]),
    "near_names": (with_labels("Cap", "Cap", "term", "term", "cap ", "cap "), None, "train", None),
    "many_labels": (with_labels(*(f"id{n}" for n in range(30))), None, "train", None),
    "majority": (with_labels(*"aaaaaaaab"), None, "train", None),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_fault_is_named_with_its_place(kind, place, tiny_longformer):
    train, evaluation, where, places = PLANTED[kind]
    report = checked(place, tiny_longformer, train, evaluation)
    finding = found(report)[kind, where]
    assert finding.level == KINDS[kind].level
    if places is not None:
        assert list(finding.where) == places
        assert finding.count == len(places)
    assert report.exit_code == (4 if finding.level != "note" else report.exit_code)


@pytest.mark.parametrize("kind", ["wrong_encoding", "duplicate", "near_leak", "empty"])
def test_one_fault_makes_one_finding(kind, place, tiny_longformer):
    train, evaluation, _, _ = PLANTED[kind]
    report = checked(place, tiny_longformer, train, evaluation)
    assert [finding.kind for finding in report.findings] == [kind]


def test_in_clean_data_nothing_is_found(place, tiny_longformer):
    report = checked(place, tiny_longformer, rows(40), rows(10, 100))
    assert report.findings == []
    assert report.exit_code == 0
    assert report.documents == {"train": 40, "eval": 10}
    assert report.unit == "tokens"
    assert report.lengths["train"]["documents"] == 40


def test_where_all_records_fail_alike_the_keys_are_to_be_mended(place, tiny_longformer):
    train = [row | {"label": {"Cap": "perhaps"}} for row in rows(12)]
    (finding,) = checked(place, tiny_longformer, train).findings
    assert (finding.kind, finding.count, finding.of) == ("unusable", 12, 12)
    assert finding.detail.startswith("label 'label.Cap' is 'perhaps', expected yes or no in one pa")
    assert finding.would_do.startswith("all fail alike: mend the keys of data: that name these fi")
    train[0] = rows(1)[0]
    findings = checked(place, tiny_longformer, train).findings
    (finding,) = [each for each in findings if each.kind == "unusable"]
    assert finding.would_do == "mend or remove these records"


def test_all_faults_are_found_at_once(place, tiny_longformer):
    train = [*rows(12), "{", {"id": "x"}, rows(1, 30)[0] | {"label": None}, rows(1)[0]]
    kinds = {
        finding.kind: finding.count for finding in checked(place, tiny_longformer, train).findings
    }
    assert kinds == {
        **{"unreadable": 1, "unusable": 1, "unlabelled": 1},
        **{"duplicate": 1, "duplicate_id": 1},
    }


QUESTION = {"id": "q", "question": "Who sells?", "context": prose(1)}
SQUAD = [
    {"id": f"q{n}", "question": f"Who sells {n}?", "context": prose(n), "answers": [prose(n)[:7]]}
    for n in range(4)
]
HOPS = [
    {
        "id": f"q{n}",
        "query": f"where {n}",
        "candidates": ["Ashton", "Elmford"],
        "supports": [f"Ashton lies by {prose(n)}.", "Elmford does not."],
        "answer": "Ashton",
    }
    for n in range(4)
]


@pytest.mark.parametrize(
    ("task", "row", "kind"),
    [
        ("squad", {"answers": ["nowhere to be read"]}, "answer_not_in_context"),
        (
            "squad",
            {"answers": [{"text": prose(9)[2:9], "answer_start": 7}]},
            "answer_not_in_context",
        ),
        ("squad", {"answers": [prose(9)[1:6]]}, "span_cuts_word"),
        ("squad", {"answers": [prose(9)[:60].rpartition(" ")[0]]}, "answer_too_long"),
        ("triviaqa", {"answers": [prose(9)[:400].rpartition(" ")[0]]}, "answer_in_no_input"),
        ("triviaqa", {"answers": ["nowhere to be read"]}, "answer_not_mentioned"),
        ("wikihop", {"answer": "Oakton"}, "answer_not_in_candidates"),
        ("wikihop", {"candidates": ["Ashton", "Oakton"]}, "candidate_never_occurs"),
    ],
)
def test_a_task_finds_what_is_wrong_with_its_answers(task, row, kind, place, tiny_longformer):
    good = (
        HOPS
        if task == "wikihop"
        else [{**each, "context": f"Ann {each['context']}", "answers": ["Ann"]} for each in SQUAD]
    )
    new = (good[0] | {"query": "new"} if task == "wikihop" else QUESTION) | {"id": "new"}
    if task != "wikihop":
        new["context"] = prose(9)
    report = checked(place, tiny_longformer, [*good, new | row], task=task)
    finding = found(report)[kind, "train"]
    assert finding.where == ("train.jsonl:5",)
    assert finding.count == 1


def test_entities_that_cut_words_are_found(place, tiny_longformer):
    text = "Anna sells boats to Bert"
    spans = [(0, 4), (0, 4), (0, 3)]
    train = [
        {
            "id": str(n),
            "text": f"{text} {prose(n)}",
            "entities": [{"start": start, "end": end, "label": "P"}],
        }
        for n, (start, end) in enumerate(spans)
    ]
    report = checked(place, tiny_longformer, train, task="token_classification")
    assert found(report)["span_cuts_word", "train"].where == ("train.jsonl:3",)


def test_questions_on_a_document_of_the_training_set_are_told(place, tiny_longformer):
    new = [SQUAD[0] | {"id": "n", "question": "Another one?"}]
    report = checked(place, tiny_longformer, SQUAD, new, task="squad")
    assert found(report)["shared_document", "eval"].where == ("dev.jsonl:1",)
    assert ("leak", "eval") not in found(report)


def test_what_is_cut_off_is_told_with_its_share(place, tiny_longformer):
    data = ", max_length: 64, overflow: truncate"
    report = checked(place, tiny_longformer, rows(6), data=data)
    cut = found(report)["cut", "train"]
    assert cut.count == 6
    share = float(cut.detail.split("%")[0]) / 100
    assert share == pytest.approx(1 - report.lengths["train"]["read"], abs=1e-3)
    table = report.lengths["train"]["by_max_length"]
    assert table[-1]["whole"] == 1
    assert table[-1]["inputs"] == 6


def test_without_a_model_lengths_are_in_words(place):
    report = checked(place, "no/model/here", rows(6))
    assert report.unit == "words"
    assert report.lengths["train"]["median"] == 39
    assert "no/model/here" in report.remarks[0]


def test_lengths_of_a_large_set_are_those_of_a_sample(place, tiny_longformer, monkeypatch):
    monkeypatch.setattr(profile, "SAMPLE", 10)
    report = checked(place, tiny_longformer, rows(100))
    assert report.lengths["train"]["every"] == 16
    assert report.lengths["train"]["documents"] == 7
    assert report.remarks == ["train: lengths are those of 7 documents, every 16th"]


def test_near_copies_weigh_more_where_they_may_be_on_both_sides(place, tiny_longformer):
    train = PLANTED["near_duplicate"][0]
    report = checked(place, tiny_longformer, train, data=", eval_fraction: 0.2")
    assert found(report)["near_duplicate", "train"].level == "warning"


def test_the_cost_is_told_where_a_training_would_begin(place, tiny_longformer, caplog):
    (line,) = checked(place, tiny_longformer, rows(9), cost=True).cost
    assert line.startswith("cost: about ")
    assert "steps" in line
    assert not caplog.messages  # the report says it all
    assert checked(place, tiny_longformer, [*rows(9), "{"], cost=True).cost == []
    assert checked(place, "no/model/here", rows(9), cost=True).cost == []


def test_the_cost_of_many_documents_is_judged_by_some(place, tiny_longformer, monkeypatch):
    def steps():
        (line,) = checked(place, tiny_longformer, rows(64), cost=True).cost
        return line.split()[2], line

    whole, line = steps()
    assert "by one" not in line
    monkeypatch.setattr(module, "_COSTED", 16)
    few, line = steps()
    assert line.endswith("(by one document in 4)")
    assert few == whole


def test_a_training_begins_with_the_worst_of_it(place, tiny_longformer):
    train, evaluation = PLANTED["leak"][:2]
    checked(place, tiny_longformer, [*train, train[1] | {"id": "x"}], evaluation)
    recipe = load("r.yaml", command="finetune")
    sets = {name: list(read(f"{file}.jsonl", recipe.data)) for name, file in SETS.items()}
    assert first_look(recipe, sets) == [
        "eval: 1 of 5 are in the training set too: scores will be too high (dev.jsonl:5)",
        "train: 1 of 13 came before (train.jsonl:13)",
        "ldt check examines all data, and gives a remedy for each",
    ]
    sets["eval"], sets["train"] = sets["eval"][:4], sets["train"][:12]
    assert first_look(recipe, sets) == []
    for number in (3, 7):
        sets["train"][number].fields["label"] = "rare"
    assert first_look(recipe, sets) == [
        "train: 2 of 12 have a class that the evaluation set lacks: 1 of 3 classes: 'rare' "
        "(train.jsonl:4, train.jsonl:8)",
        "train: the evaluation set is too small for so many classes: 4 documents for 3 classes",
        "ldt check examines all data, and gives a remedy for each",
    ]


def test_a_corpus_is_checked(place, tiny_longformer):
    lines = [prose(n, 60) for n in range(20)]
    lines += [lines[3], edited(lines[4], 0.1), "Yes.", "Yes.", "\x00" + prose(30)]
    Path("text.txt").write_text("\n".join(lines) + "\n")
    Path("dev.txt").write_text(f"{prose(40)}\n{lines[7]}\n")
    Path("r.yaml").write_text(
        f"task: {{name: mlm}}\nmodel: {{path: {tiny_longformer}}}\n"
        "data: {train: text.txt, eval: dev.txt, document_unit: line}\n"
    )
    report = check(load("r.yaml", command="pretrain"))
    assert {key: finding.where for key, finding in found(report).items()} == {
        ("duplicate", "train"): ("text.txt:21",),
        ("near_duplicate", "train"): ("text.txt:22",),
        ("control_characters", "train"): ("text.txt:25",),
        ("leak", "eval"): ("dev.txt:2",),
    }
    assert np.isclose(report.lengths["train"]["read"], 1)


@pytest.mark.parametrize("name", ["text.txt", "copy.txt"])
def test_a_corpus_that_is_its_own_evaluation_set_is_told(place, tiny_longformer, name):
    text = "".join(f"{prose(n, 60)}\n" for n in range(4))
    for path in ("text.txt", "copy.txt"):
        Path(path).write_text(text)
    Path("r.yaml").write_text(
        f"task: {{name: mlm}}\nmodel: {{path: {tiny_longformer}}}\n"
        f"data: {{train: text.txt, eval: {name}, document_unit: line}}\n"
    )
    report = check(load("r.yaml", command="pretrain"))
    assert {key: finding.where for key, finding in found(report).items()} == {
        ("same_files", "train"): (name,)
    }


@pytest.mark.parametrize(
    ("train", "dev", "lines"),
    [
        ([3, 4, 5, 3], [6], ["train: 1 of 6 came before"]),
        ([3, 4], [5, 4], ["eval: 1 of 4 are in the training set too: scores will be too high"]),
        ([3, 4], [5], []),
    ],
)
def test_a_pretraining_begins_with_copies(place, tiny_longformer, caplog, train, dev, lines):
    caplog.set_level("INFO", "ldt")
    for name, numbers in (("train", train), ("dev", dev)):
        texts = ["Yes.", "Yes.", *(prose(number, 60) for number in numbers)]
        Path(f"{name}.txt").write_text("\n\n".join(texts) + "\n")
    Path("r.yaml").write_text(
        f"task: {{name: mlm}}\nmodel: {{path: {tiny_longformer}}}\n"
        "data: {train: train.txt, eval: dev.txt, document_unit: blank_line, max_length: 64}\n"
    )
    train_by(load("r.yaml", command="pretrain"), dry_run=True)
    assert [line for line in caplog.messages if re.match(r"(train|eval): \d+ of \d", line)] == lines
