"""What answers have that are given without reading, task by task."""

from types import SimpleNamespace

import pytest

from ldt.benchmarks.passage_qa import PassageGold as Gold
from ldt.benchmarks.qasper import Reference
from ldt.metrics.entities import Entity
from ldt.tasks import TASKS
from ldt.tasks.base import Task


def one(text):
    return {"answers": [text]}


def claim(label, evidence):
    return {"label": label, "evidence": evidence, "spans": 2, "key": None, "document": None}


ASKED = {"question": 1, "verified": False}
SINGLE = {"problem_type": "single_label_classification", "id2label": {0: "cap", 1: "no cap"}}
MULTI = {"problem_type": "multi_label_classification", "id2label": dict(enumerate("abc"))}
PAPERS = (
    [],
    [
        {"references": [Reference("Yes", "boolean", ["p"])]},
        {"references": [Reference("Unanswerable", "none", [])]},
    ],
    {},
    {"Answer F1": ("always 'Unanswerable'", 50), "Evidence F1": ("always 'Unanswerable'", 50)},
)
BASELINES = {  # task: right answers of training, of evaluation; config; some of the figures
    "classification": (
        ["no cap", "cap", "no cap"],
        ["no cap", "no cap", "no cap", "cap"],
        SINGLE,
        {"accuracy": ("always 'no cap'", 75), "macro_f1": ("always 'no cap'", 300 / 7)},
    ),
    "classification, several labels": (
        [["a"], ["a", "b"], ["c"]],
        [["a"], ["a", "b"], ["c"], ["b"]],
        MULTI,
        {
            "exact_match": ("always 'a'", 25),
            "macro_f1": ("always all classes", 100 * (2 / 3 + 2 / 3 + 0.4) / 3),
        },
    ),
    "classification, none of several labels": (
        [["a"], ["b"], ["c"]],
        [[], ["a"]],
        MULTI,
        {"exact_match": ("always no class", 50)},
    ),
    "classification, regression": (
        [1.0, 3.0],
        [2.0, 4.0],
        {"problem_type": "regression"},
        {"mse": ("always 2", 2.0), "pearson": ("always 2", 0.0)},
    ),
    "token_classification": (
        [[Entity(0, 1, "A")]],
        [[Entity(2, 3, "A")]],
        {"label2id": {"O": 0, "B-A": 1, "I-A": 2}},
        {"f1": ("always O", 0)},
    ),
    "multiple_choice": (
        [{"choice": 2}, {"choice": 1}, {"choice": 2}],
        [{"choice": 2}, {"choice": 0}],
        {},
        {"accuracy": ("always choice 2", 50)},
    ),
    "wikihop": (
        [],
        [{"answer": "x", "candidates": 2}, {"answer": "y", "candidates": 4}],
        {},
        {"accuracy": ("a candidate at random", 37.5)},
    ),
    "passage_qa": (
        [],
        [Gold(((passage, [], None),), 0, None) for passage in (0, 1, None)],
        {},
        {"passage_f1": ("always the first paragraph", 40)},  # 1 of 3 named, of 2 that there are
    ),
    "qasper": PAPERS,
    "qasper_generation": PAPERS,
    "squad": (
        [one("x y"), one("z"), one("x y")],
        [one("y"), one("x y")],
        {"no_answer_threshold": None},
        {"exact_match": ("always 'x y'", 50), "f1": ("always 'x y'", 500 / 6)},
    ),
    "squad, no answer": (
        [one("x y"), {"answers": []}],
        [one("x y"), {"answers": []}, {"answers": []}],
        {"no_answer_threshold": 0.5},
        {"f1": ("always no answer", 200 / 3)},
    ),
    "summarization": (
        [{"summary": "a b"}, {"summary": "c d e f"}],
        [
            {"summary": "x y", "text": ["x y z u", "v"]},
            {"summary": "x y z", "text": ["x", "u z"]},
        ],
        {},
        # the first three words; F1 of x y z is 2·2/(3 + 2), of x u z 2·2/(3 + 3)
        {"rouge1": ("the first 3 words", 100 * (4 / 5 + 4 / 6) / 2)},
    ),
    "triviaqa": (
        [one("x") | ASKED, {"answers": ["y", "z"]} | ASKED, {"answers": ["z"]} | ASKED],
        [one("z") | ASKED, one("x") | ASKED | {"question": 2}],
        {},
        {"exact_match": ("always 'z'", 50)},
    ),
    "embedding": (
        [],
        [{"documents": [1, 2], "right": 1}, {"documents": [3, 1], "right": 2}],
        {},
        # of three documents: (1 + 1/log2(3) + 1/2) / 3 for one right one, 1 for the first query
        # and twice as much divided by 1 + 1/log2(3) for the second
        {"ndcg@10": ("documents in a random order", 50 * (1 + 2 / 1.63093) * 2.13093 / 3)},
    ),
    "embedding, graded": (
        [],
        [{"documents": [1], "right": 1, "score": 2.0}],
        {},
        {"spearman": ("always the same similarity", 0)},
    ),
    "coreference": (
        [],
        [[[(0, 3), (5, 8)]]],
        {},
        {"conll_f1": ("no clusters", 0)},
    ),
    "reranking": (
        [],
        [[1.0, 0.0, 0.0], [1.0, 2.0]],
        {"problem_type": None},
        # of three documents (1 + 1/log2(3) + 1/2) / 3; of two 1.5 (1 + 1/log2(3)) of 2 + 1/log2(3)
        {"ndcg@10": ("documents in a random order", 50 * (2.13093 / 3 + 1.5 * 1.63093 / 2.63093))},
    ),
    "reranking, pairs": (
        [[0.0], [1.0]],
        [[1.0], [1.0]],
        {"problem_type": "regression"},
        {"mse": ("always 0.5", 0.25)},
    ),
    "evidence_classification": (
        [claim("a", [0]), claim("a", []), claim("b", [])],
        [claim("a", [1]), claim("b", [])],
        {"id2label": {0: "a", 1: "b"}},
        {"class.accuracy": ("always 'a'", 50), "span.map": ("always 'a'", 50)},
    ),
    "hotpotqa": (
        [{"answer": "yes", "facts": set()}],
        [{"answer": "yes", "facts": {("t", 0)}}, {"answer": "x", "facts": set()}],
        {},
        {"em": ("always 'yes'", 50), "joint_f1": ("always 'yes'", 0)},
    ),
}


@pytest.mark.parametrize("name", BASELINES)
def test_a_task_knows_what_an_answer_without_reading_has(name):
    trained, golds, config, figures = BASELINES[name]
    task = TASKS[name.partition(",")[0]]()
    found = task.baseline(trained, golds, SimpleNamespace(**config))
    for metric, (answer, value) in figures.items():
        assert found[metric] == (answer, pytest.approx(value))
    assert "no_answer_threshold" not in found


def test_every_task_with_answers_has_a_baseline():
    answering = {name for name, task in TASKS.items() if issubclass(task, Task)}
    assert answering == {name.partition(",")[0] for name in BASELINES}
