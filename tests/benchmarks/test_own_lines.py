"""Lines of ldt predict beside the published layout that is written of the same answers."""

import json

import pytest
from passages_made import nq, right_answers, tydi, write
from scored import evaluate

from ldt import benchmarks
from ldt.benchmarks import nq as nq_set
from ldt.benchmarks import squad
from ldt.benchmarks import tydiqa as tydi_set
from ldt.benchmarks.contractnli import LABELS
from ldt.benchmarks.lexglue import TASKS as PARTS
from ldt.errors import DataError
from ldt.inference.answer_file import write_published
from ldt.tasks import TASKS

CONTEXT = "red fox and blue whale"
TEXTS = ("red fox", "blue whale", "fox", "")
IDS = [f"contract {number}__Parties" for number in range(4)]
QAS = [
    {"id": id, "question": "?", "answers": [{"text": "red fox", "answer_start": 0}]} for id in IDS
]
SQUAD = {"data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": QAS}]}]}
LOGITS = {"start_logit": 0.5, "end_logit": 0.25}
SPANS = [
    {"id": id, "answer": text, "null": LOGITS, "score": 0.5}
    | {
        "n_best": [
            {"answer": f"{text} {n}", "start_logit": -n / 7, "end_logit": 0} for n in range(20)
        ]
    }
    for id, text in zip(IDS, TEXTS, strict=True)
]
WIKIHOP = [
    {"id": str(n), "candidates": ["a", "b"], "supports": ["x"], "answer": "a"} for n in range(4)
]
FACTS = [["t", 0]]
HOTPOTQA = [{"_id": str(n), "answer": "red fox", "supporting_facts": FACTS} for n in range(4)]
TRIVIAQA = {
    "Domain": "Wikipedia",
    "Data": [
        {"QuestionId": str(n), "Answer": {"NormalizedAliases": ["fox"]}, "EntityPages": []}
        for n in range(4)
    ],
}
PAIRS = {"x": {"choice": "Entailment", "spans": [0]}, "y": {"choice": "NotMentioned", "spans": []}}
NLI = {
    "documents": [
        {
            "id": 1,
            "text": "ab",
            "spans": [[0, 1], [1, 2]],
            "annotation_sets": [{"annotations": PAIRS}],
        }
    ],
    "labels": {key: {"hypothesis": key} for key in PAIRS},
}
SAID = {
    "unanswerable": False,
    "extractive_spans": ["red fox"],
    "free_form_answer": "",
    "yes_no": None,
}
PAPER = {
    "full_text": [{"section_name": "A", "paragraphs": ["one"]}],
    "qas": [
        {
            "question_id": str(n),
            "question": "?",
            "answers": [{"answer": SAID | {"evidence": ["one"]}}],
        }
        for n in range(4)
    ],
}
CASES = {
    "squad": (SQUAD, SPANS, squad.published),
    "squad2": (SQUAD, SPANS, squad.published),
    "cuad": (SQUAD, SPANS, squad.published_n_best),
    "triviaqa": (
        TRIVIAQA,
        [{"id": str(n), "answer": TEXTS[n], "score": 0.5} for n in range(4)],
        None,
    ),
    "wikihop": (WIKIHOP, [{"id": str(n), "answer": "ab"[n % 2]} for n in range(4)], None),
    "hotpotqa": (
        HOTPOTQA,
        [{"id": str(n), "answer": TEXTS[n], "supporting_facts": FACTS} for n in range(4)],
        None,
    ),
    "contractnli": (
        NLI,
        [
            {"id": f"1/{key}", "document": 1, "key": key, "span_probs": [0.75, 0.5]}
            | {"scores": dict(zip(LABELS, (0.25, 0.5, 0.25), strict=True))}
            for key in PAIRS
        ],
        None,
    ),
    "qasper": (
        {"p": PAPER},
        [{"id": str(n), "answer": TEXTS[n], "evidence": ["one"]} for n in range(4)],
        None,
    ),
}


def writer(format):
    """The writer of the layout, by the task that has it."""
    return next(
        task.answers.layouts[format].write
        for task in TASKS.values()
        if format in task.answers.layouts
    )


@pytest.mark.parametrize("format", CASES)
def test_lines_have_the_figures_of_the_layout_that_is_written_of_them(format, tmp_path):
    gold, lines, published = CASES[format]
    answers, written = tmp_path / "answers.jsonl", tmp_path / "written"
    write(answers, *(line | {"chunks": 1} for line in lines))
    write_published(published or writer(format), answers, written)
    one, other = (evaluate(format, gold, file) for file in (answers, written))
    assert one.metrics == other.metrics
    assert one.intervals == other.intervals
    assert one.baselines == other.baselines


@pytest.mark.parametrize("format", ["nq", "tydiqa"])
def test_lines_of_pages_have_the_figures_of_their_layout(format, tmp_path):
    if format == "nq":
        tokens = "<P> a b </P> <P> c d e </P>".split()
        answers = [[(0, (1, 2))] * 5, [(1, (5, 7))] * 5, ["NO"] * 5, [(None,)] * 5]
        lines = [nq(n, tokens, [(0, 4), (4, 9)], each) for n, each in enumerate(answers)]
    else:
        answers = [[(0, (10, 20), "NONE")] * 3, [(1, None, "YES")] * 3]
        lines = [tydi(n, "x" * 100, [(0, 50), (50, 100)], each) for n, each in enumerate(answers)]
    gold = write(tmp_path / "gold.jsonl", *lines)
    layout = {"nq": nq_set, "tydiqa": tydi_set}[format]
    made = [{"chunks": 1} | each for each in right_answers(gold, format, layout)]
    pred = write(tmp_path / "answers.jsonl", *made)
    write_published(layout.published, tmp_path / "answers.jsonl", tmp_path / "written")
    one, other = (
        benchmarks.evaluate(gold, file, format=format) for file in (pred, str(tmp_path / "written"))
    )
    assert one.metrics == other.metrics
    assert 100 in one.metrics.values()


@pytest.mark.parametrize("part", ["ecthr_a", "scotus"])
def test_lines_of_classes_have_the_figures_of_their_layout(part, tmp_path):
    names = PARTS[part].classes
    several = PARTS[part].several
    gold = [
        {"id": n, "text": "a", "labels" if several else "label": [n] if several else n}
        for n in range(4)
    ]
    answers = [
        {"id": n, "label": [names[1]] if several else names[1], "scores": dict.fromkeys(names, 0.0)}
        for n in range(4)
    ]
    write(tmp_path / "gold", *gold)
    write(tmp_path / "own", *(each | {"chunks": 1} for each in answers))
    write_published(writer("lexglue"), tmp_path / "own", tmp_path / "written")
    one, other = (
        evaluate("lexglue", tmp_path / "gold", tmp_path / name, task=part)
        for name in ("own", "written")
    )
    assert one.metrics == other.metrics
    assert one.metrics["micro-f1"] > 0


@pytest.mark.parametrize(
    ("format", "change", "message"),
    [
        (
            "hotpotqa",
            {"supporting_facts": None},
            "field sp.0: found null; input",
        ),
        ("wikihop", {"answer": ...}, "no field 'answer'; answers of wikihop have one"),
        ("wikihop", {"id": "1"}, "the id '1' stands twice"),
        ("cuad", {"n_best": []}, "0 spans of a question at most; the layout has 20"),
        ("contractnli", {"scores": 3}, "not as ldt predict writes it"),
    ],
)
def test_a_line_that_lacks_something_is_named(format, change, message, tmp_path):
    gold, lines, _ = CASES[format]
    lines = [line | {"chunks": 1} for line in lines]
    changed = lines if format == "cuad" else lines[:1]
    for line in changed:
        line |= change
        for key in [key for key, value in change.items() if value is ...]:
            del line[key]
    with pytest.raises(DataError, match=message):
        evaluate(format, gold, tmp_path / "own" if write(tmp_path / "own", *lines) else None)


def test_a_format_that_is_named_is_taken_and_its_ids_are_not_looked_at():
    gold = json.loads(json.dumps(SQUAD).replace("__Parties", ""))
    pred = {id.removesuffix("__Parties"): [{"text": "red fox", "probability": 0.5}] for id in IDS}
    assert evaluate("cuad", gold, pred).metrics["aupr"] == 100


def test_offsets_of_tydi_are_scored_without_the_text():
    answers = [(0, (10, 20), "NONE")] * 3
    gold = [tydi(1, "short", [(0, 50)], answers)]
    pred = {"example_id": 1, "language": "finnish", "passage_answer_index": 0}
    pred |= {"passage_answer_score": 1, "minimal_answer_score": 1, "yes_no_answer": "NONE"}
    pred |= {"minimal_answer": {"start_byte_offset": 10, "end_byte_offset": 20}}
    assert evaluate("tydiqa", gold, [pred], lines="both").metrics["avg_minimal_f1"] == 100
