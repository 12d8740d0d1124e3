"""JSON lines of ldt predict beside the layout that --layout writes of the same answers."""

import gzip
import io
import json
import random
import tracemalloc
from functools import partial

import pytest
from passages_made import nq, right_answers, tydi, write

from ldt import metrics
from ldt.data.formats import nq as nq_layout
from ldt.data.formats import tydiqa as tydiqa_layout
from ldt.data.formats.contractnli import LABELS
from ldt.data.formats.lexglue import TASKS as PARTS
from ldt.data.options import DataSection
from ldt.errors import DataError, UserError
from ldt.inference.answer_file import layout_of, write_published
from ldt.metrics import nq as nq_metric
from ldt.metrics import own_lines
from ldt.metrics.own_lines import KINDS
from ldt.metrics.result import as_json
from ldt.tasks import TASKS

TEXTS = ["red fox", "The red fox jumps.", "yes", "blue whale", "old man and the sea"]
CONTEXT = " ".join(TEXTS)
SOURCE = random.Random(0)
RIGHT = [SOURCE.choice(TEXTS) for _ in range(9)]
FOUND = [SOURCE.choice(TEXTS) for _ in range(9)]
BOTH = list(enumerate(zip(RIGHT, FOUND, strict=True)))
QUESTIONS = {
    "data": [
        {
            "title": f"contract {number}",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "id": f"contract {number}__Parties",
                            "question": "?",
                            "answers": [{"text": right, "answer_start": CONTEXT.index(right)}],
                        }
                    ],
                }
            ],
        }
        for number, (right, _) in BOTH
    ]
}
N_BEST = [{"answer": f"{FOUND[0]} {n}", "start_logit": -n / 7, "end_logit": 0.1} for n in range(25)]
SPANS = [
    {"id": f"contract {number}__Parties", "answer": found, "score": number / 3}
    | {"n_best": [{**N_BEST[0], "answer": found}, *N_BEST[1:]]}
    | {"null": {"start_logit": -0.5, "end_logit": 0.0}, "no_answer": 0.25}
    for number, (_, found) in BOTH
]
CONCEPTS = PARTS["eurlex"].classes


def passages(line, layout, format, folder):
    """Gold, and answers that are right but for every third."""
    gold = write(folder / "gold", *map(line, range(9)))
    answers = right_answers(gold, format, layout)
    for number, answer in enumerate(answers):
        answer |= {"passage_score": number / 3, "span_score": -number / 7}
        if number % 3 == 0:
            answer["offsets"] = answers[number - 1]["offsets"]
    return answers


def nq_line(n):
    tokens, answers = "<P> a b </P> <P> c d e </P>".split(), [(n % 2, (1, 3)), (1,), "YES"]
    return nq(n, tokens, [(0, 4), (4, 9)], [answers[n % 3]] * 5)


def tydi_line(n):
    answers = [(n % 2, (10, 20), "NONE"), (1, None, "NO")]
    language = ("finnish", "thai")[n % 2]
    return tydi(n, "x" * 100, [(0, 50), (50, 100)], [answers[n % 2]] * 3, language)


# Of each format: gold (a value, lines, or a text), answers, the task, its layout, and options.
CASES = {
    "squad": (QUESTIONS, SPANS, "squad", "squad"),
    "squad2": (QUESTIONS, SPANS, "squad", "squad"),
    "cuad": (QUESTIONS, SPANS, "squad", "cuad-nbest"),
    "triviaqa": (
        {
            "Domain": "Web",
            "Data": [
                {
                    "QuestionId": str(number),
                    "Answer": {"NormalizedAliases": [right]},
                    "EntityPages": [{"Filename": "a.txt"}],
                }
                for number, (right, _) in BOTH
            ],
        },
        [
            {"id": f"{number}--{page}", "question_id": f"{number}--a.txt", "answer": answer}
            | {"score": score}
            for number, (right, found) in BOTH
            for page, answer, score in (("a.txt", found, None), ("b.txt", right, number / 3))
        ],
        "triviaqa",
        "triviaqa",
    ),
    "wikihop": (
        [
            {"id": str(number), "candidates": TEXTS, "supports": ["a b"], "answer": right}
            for number, (right, _) in BOTH
        ],
        [
            {"id": str(number), "answer": "" if number % 2 else found, "best": found}
            for number, (_, found) in BOTH
        ],
        "wikihop",
        "wikihop",
    ),
    "hotpotqa": (
        [
            {"_id": str(number), "answer": right, "supporting_facts": [["t", 0], ["u", 1]]}
            for number, (right, _) in BOTH
        ],
        [
            {"id": str(number), "answer": found, "supporting_facts": [["t", number % 2]]}
            for number, (_, found) in BOTH
        ],
        "hotpotqa",
        "hotpotqa",
    ),
    "conll": (
        "-DOCSTART- O\n\nAnn B-PER\nsaw O\n\nRome B-LOC\n\n-DOCSTART- O\n\nBob B-PER\n",
        [
            {"id": 1, "entities": [], "tags": [["B-PER", "I-PER"], ["B-LOC"]]},
            {"id": 2, "entities": [], "tags": [["O"]]},
        ],
        "token_classification",
        "conll",
    ),
    "nq": (nq_line, nq_layout, "passage_qa", "nq"),
    "tydiqa": (tydi_line, tydiqa_layout, "passage_qa", "tydiqa"),
    "contractnli": (
        {
            "documents": [
                {
                    "id": number,
                    "text": "a b. c d.",
                    "spans": [[0, 4], [5, 9]],
                    "annotation_sets": [
                        {"annotations": {"x": {"choice": LABELS[number % 3], "spans": [0]}}}
                    ],
                }
                for number in range(6)
            ],
            "labels": {"x": {"hypothesis": "It is.", "short_description": "x"}},
        },
        [
            {"id": f"{number}/x", "document": number, "key": "x", "span_probs": [0.3, number / 7]}
            | {"scores": {LABELS[0]: 0.25, LABELS[1]: number / 7, LABELS[2]: 0.5}}
            for number in range(6)
        ],
        "evidence_classification",
        "contractnli",
    ),
    "qasper": (
        {
            str(number): {
                "title": "t",
                "abstract": "a",
                "full_text": [{"section_name": None, "paragraphs": ["one", "two"]}],
                "qas": [
                    {
                        "question": "What?",
                        "question_id": str(number),
                        "answers": [
                            {
                                "answer": {
                                    "unanswerable": number == 0,
                                    "extractive_spans": [],
                                    "yes_no": None,
                                    "free_form_answer": right if number else "",
                                    "evidence": ["one"],
                                }
                            }
                        ],
                    }
                ],
            }
            for number, (right, _) in BOTH
        },
        [
            {"id": str(number), "answer": found if number else "", "evidence": ["two", "one"]}
            for number, (_, found) in BOTH
        ],
        "qasper",
        "qasper",
    ),
    "lexglue": (
        [{"text": "a b", "labels": [number, 7]} for number in range(6)],
        [
            {"id": number, "label": [CONCEPTS[number % 4], CONCEPTS[9]]}
            | {"scores": dict.fromkeys(CONCEPTS, 0.5)}
            for number in range(6)
        ],
        "classification",
        "lexglue",
        {"task": "eurlex"},
    ),
    "summarization": (
        [{"id": str(n), "text": CONTEXT, "summary": f"{right}\nA b."} for n, (right, _) in BOTH],
        [
            {"id": str(number), "summary": f"A b.{end}{found} ran.<n>It did.\n"}
            for (number, (_, found)), end in zip(BOTH, "\n\r\v\f\x85\u2028 \n\n", strict=True)
        ],
        "summarization",
        "summarization",
    ),
}


def test_every_published_format_is_a_case():
    assert set(CASES) == set(metrics.METRICS)


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    """(score, answers) of a format: score says what lines of answers have."""
    gold, answers, task, layout, *more = CASES[request.param]
    if callable(gold):
        answers = passages(gold, answers, request.param, tmp_path)
    elif isinstance(gold, list) and request.param in ("lexglue", "summarization"):
        write(tmp_path / "gold", *gold)
    else:
        (tmp_path / "gold").write_text(gold if isinstance(gold, str) else json.dumps(gold))
    evaluate = partial(metrics.evaluate, str(tmp_path / "gold"), format=request.param)
    options = more[0] if more else {}

    def score(answers, published=False, table=None):
        write(tmp_path / "pred", *answers)
        if table:
            layout_of(tmp_path / table, None)(tmp_path / "pred", tmp_path / table)
            return evaluate(str(tmp_path / table), **options)
        if not published:
            return evaluate(str(tmp_path / "pred"), **options)
        writer = TASKS[task].answers.layouts[layout].write
        write_published(writer, tmp_path / "pred", tmp_path / "pred.out")
        return evaluate(str(tmp_path / "pred.out"), **options)

    return score, [answer | {"windows": 1} for answer in answers], request.param


def test_lines_have_the_figures_of_the_layout_that_is_written_of_them(case):
    score, answers, _ = case
    lines, published = score(answers), score(answers, published=True)
    assert as_json(lines) == as_json(published)
    assert lines.items == published.items
    assert max(lines.metrics.values()) > 0
    assert lines.warnings == [line.replace("pred.out", "pred") for line in published.warnings]


UNCHANGED = ("nq", "tydiqa", "lexglue", "conll", "contractnli")  # by the letters below


@pytest.mark.parametrize("format", sorted({*KINDS, "summarization"} - {*UNCHANGED}))
def test_a_gold_file_is_read_in_its_encoding(tmp_path, format):
    gold, answers, *_ = CASES[format]
    lines = [json.dumps(gold)] if format != "summarization" else map(json.dumps, gold)
    text = "\n".join(lines).replace("red fox", "réd föx").replace("blue", "blüe")
    (tmp_path / "gold").write_text(text, encoding="latin-1")
    write(tmp_path / "pred", *({"windows": 1} | answer for answer in answers))
    paths = [str(tmp_path / name) for name in ("gold", "pred")]
    with pytest.raises(DataError, match="not UTF-8: byte"):
        metrics.evaluate(*paths, format=format)
    data = DataSection(encoding="latin-1")
    assert metrics.evaluate(*paths, format=format, data=data).items


@pytest.mark.parametrize("table", ["pred.csv", "pred.parquet"])
def test_a_table_has_the_figures_of_its_lines(case, table):
    score, answers, format = case
    found = score(answers, table=table)
    if format == "hotpotqa":  # a file of one JSON object has them in another order
        assert found.metrics == score(answers).metrics
    else:
        assert as_json(found) == as_json(score(answers))


def test_a_line_without_what_the_layout_needs_says_what_to_write(case):
    score, answers, format = case
    if format not in KINDS:
        pytest.skip("its lines are read as they are")
    for key in KINDS[format].keys:
        lacking = {name: value for name, value in answers[1].items() if name != key}
        with pytest.raises(DataError) as error:
            score([answers[0], lacking, *answers[2:]])
        assert str(error.value).endswith(f"pred:2: no field {key!r}; {KINDS[format].otherwise}")


def test_a_line_whose_values_are_others_is_named(case):
    score, answers, format = case
    broken = {
        "contractnli": (
            {"scores": {"yes": 1.0}},
            "pred:2: not as ldt predict writes it for contractnli (no key '",
        ),
        "cuad": ({"n_best": 3}, "pred:2: not as ldt predict writes it for cuad ("),
        "nq": (
            {"offsets": {}},
            "pred:2: not as ldt predict writes it for nq (no key 'long_answer')",
        ),
        "squad": ({"answer": ["x"]}, "pred: 'contract 1__Parties': the prediction is a list"),
    }
    if format in broken:
        change, line = broken[format]
        with pytest.raises(DataError) as error:
            score([answers[0], answers[1] | change])
        assert line in str(error.value)


@pytest.mark.parametrize("format", ["squad", "wikihop", "hotpotqa", "qasper", "triviaqa"])
def test_gold_lines_of_a_training_are_no_answers(format, tmp_path):
    gold, answers, *_ = CASES[format]
    (tmp_path / "gold").write_text(json.dumps(gold))
    documents = {"context": CONTEXT, "supports": [CONTEXT], "query": "?", "question": "?"}
    write(tmp_path / "pred", *(answer | documents for answer in answers))
    with pytest.raises(DataError, match="pred:1: looks like a gold file, .* --pred swapped"):
        metrics.evaluate(str(tmp_path / "gold"), str(tmp_path / "pred"), format=format)


def test_an_id_comes_once_and_answers_of_few_spans_are_no_n_best(tmp_path):
    (tmp_path / "gold").write_text(json.dumps(QUESTIONS))
    gold, pred = str(tmp_path / "gold"), str(tmp_path / "pred")
    write(tmp_path / "pred", SPANS[0], SPANS[0])
    with pytest.raises(DataError, match="pred:2: the id 'contract 0__Parties' stands twice"):
        metrics.evaluate(gold, pred, format="squad")
    write(tmp_path / "pred", *(each | {"n_best": N_BEST[:5]} for each in SPANS))
    with pytest.raises(DataError, match="pred:9: 5 spans of a question at most; .* --n-best 20"):
        metrics.evaluate(gold, pred, format="cuad")
    with pytest.raises(UserError, match="answers of squad are one file, got 2"):
        metrics.evaluate(gold, [pred, gold], format="squad")


def test_lines_may_be_compressed_or_come_through_a_pipe(tmp_path, capsys, monkeypatch):
    (tmp_path / "gold").write_text(json.dumps(QUESTIONS))
    write(tmp_path / "pred", *SPANS)
    wanted = metrics.evaluate(str(tmp_path / "gold"), str(tmp_path / "pred"), format="squad")
    packed = tmp_path / "pred.gz"
    packed.write_bytes(gzip.compress((tmp_path / "pred").read_bytes()))
    found = metrics.evaluate(str(tmp_path / "gold"), str(packed), format="squad")
    assert found.metrics == wanted.metrics
    pipe = io.TextIOWrapper(io.BufferedReader(io.BytesIO((tmp_path / "pred").read_bytes())))
    monkeypatch.setattr("sys.stdin", pipe)
    found = metrics.evaluate(str(tmp_path / "gold"), "-", format="squad")
    assert found.metrics == wanted.metrics


def test_lines_of_natural_questions_take_no_more_memory_than_their_layout(tmp_path):
    answers = [
        answer | {"id": 10 * number + place, "windows": 1}
        for number in range(300)
        for place, answer in enumerate(passages(nq_line, nq_layout, "nq", tmp_path)[:1])
    ]
    write(tmp_path / "pred", *answers)
    write_published(
        TASKS["passage_qa"].answers.layouts["nq"].write, tmp_path / "pred", tmp_path / "pred.json"
    )
    most = {}
    for name, read in (
        ("pred.json", nq_metric.read_predictions),
        ("pred", lambda file: own_lines.read(file, "nq", nq_metric)),
    ):
        tracemalloc.start()
        assert len(read(str(tmp_path / name)).value) == 300
        most[name] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert most["pred"] < most["pred.json"]
