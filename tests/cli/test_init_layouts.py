"""ldt init on a file of every layout: the recipe names it, and trains as it is written."""

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ldt import cli
from ldt.data.formats import FORMATS
from ldt.data.formats.lexglue import TASKS
from ldt.recipe import load

WORDS = "the party of the first part agrees. "
NUMBERS = range(8)
TEXTS = [f"{n} {WORDS * 3}" for n in NUMBERS]
ROWS = [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(TEXTS)]


def _json(value, name="data.json"):
    Path(name).write_text(json.dumps(value), "utf-8")
    return name


def _lines(rows, name="data.jsonl"):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return name


def _table(delimiter):
    name = "data.csv" if delimiter == "," else "data.tsv"
    with open(name, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ROWS[0], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(ROWS)
    return name


def _parquet():
    pq.write_table(pa.Table.from_pylist(ROWS), "data.parquet")
    return "data.parquet"


def _squad():
    questions = [
        {"id": str(n), "question": "who?", "answers": [{"text": "the party", "answer_start": 2}]}
        for n in NUMBERS
    ]
    paragraphs = [
        {"context": text, "qas": [each]} for text, each in zip(TEXTS, questions, strict=True)
    ]
    return _json({"data": [{"title": str(n), "paragraphs": [p]} for n, p in enumerate(paragraphs)]})


def _triviaqa():
    Path("evidence/wikipedia").mkdir(parents=True)
    Path("qa").mkdir()
    for n, text in enumerate(TEXTS):
        Path(f"evidence/wikipedia/{n}.txt").write_text(text)
    answer = {"NormalizedAliases": ["party"], "Aliases": ["party"], "Value": "party"}
    data = [
        {"QuestionId": f"q{n}", "Question": "who?", "Answer": answer}
        | {"EntityPages": [{"Filename": f"{n}.txt"}], "SearchResults": []}
        for n in NUMBERS
    ]
    return _json({"Data": data, "Domain": "Wikipedia", "VerifiedEval": False}, "qa/data.json")


def _qasper():
    answer = {"unanswerable": False, "extractive_spans": ["the party"], "yes_no": None}
    answer |= {"free_form_answer": "", "evidence": [WORDS], "highlighted_evidence": []}
    return _json(
        {
            f"p{n}": {
                "title": f"{n}",
                "abstract": "",
                "full_text": [{"section_name": "A", "paragraphs": [f"{n} is one.", WORDS]}],
                "qas": [
                    {"question_id": f"q{n}", "question": "who?", "answers": [{"answer": answer}]}
                ],
            }
            for n in NUMBERS
        }
    )


def _contractnli():
    documents = [
        {
            "id": n,
            "text": text,
            "spans": [[0, 20], [20, len(text)]],
            "annotation_sets": [
                {
                    "annotations": {
                        "nda-1": {
                            "choice": ("Entailment", "Contradiction", "NotMentioned")[n % 3],
                            "spans": [] if n % 3 == 2 else [0],
                        }
                    }
                }
            ],
        }
        for n, text in enumerate(TEXTS)
    ]
    return _json({"documents": documents, "labels": {"nda-1": {"hypothesis": "It ends."}}})


def _label_studio():
    value = {"start": 2, "end": 11, "labels": ["P"]}
    result = [{"type": "labels", "from_name": "label", "value": value}]
    return _json(
        [
            {"id": n, "data": {"text": text}, "annotations": [{"result": result}]}
            for n, text in enumerate(TEXTS)
        ]
    )


def _conll():
    documents = [f"-DOCSTART-\tO\n\nIt\tO\nis\tO\n{n}\tO\nRome\tB-LOC\n\n" for n in NUMBERS]
    Path("data.conll").write_text("".join(documents))
    return "data.conll"


def _texts():
    Path("texts").mkdir()
    for n, text in enumerate(TEXTS):
        Path(f"texts/{n}.txt").write_text(text)
    return "texts"


MADE = {
    "jsonl": lambda: _lines(ROWS),
    "csv": lambda: _table(","),
    "tsv": lambda: _table("\t"),
    "parquet": _parquet,
    "text": _texts,
    "summarization": lambda: _lines([{"article": t, "abstract": "It ends."} for t in TEXTS]),
    "doccano": lambda: _lines([{"text": t, "label": [[2, 11, "P"]]} for t in TEXTS]),
    "conll": _conll,
    "ecthr_a": lambda: _lines(
        [{"facts": [t], "violated_articles": ["236"[n % 3]]} for n, t in enumerate(TEXTS)]
    ),
    "ecthr_b": lambda: _lines(
        [
            {"facts": [t], "allegedly_violated_articles": ["2", "3"][: n % 3]}
            for n, t in enumerate(TEXTS)
        ]
    ),
    "scotus": lambda: _lines(
        [{"text": t, "issueArea": str(1 + n % 2)} for n, t in enumerate(TEXTS)]
    ),
    "eurlex": lambda: _lines(
        [
            {"text": t, "labels": [*TASKS["eurlex"].classes[: 1 + n % 2]]}
            for n, t in enumerate(TEXTS)
        ]
    ),
    "hotpotqa": lambda: _json(
        [
            {
                "_id": str(n),
                "question": "who?",
                "answer": "the party",
                "supporting_facts": [["A", 0]],
            }
            | {"context": [["A", [f"{n} {WORDS}"]], ["B", ["No."]]]}
            for n in NUMBERS
        ]
    ),
    "squad": _squad,
    "triviaqa": _triviaqa,
    "wikihop": lambda: _json(
        [
            {"id": str(n), "query": "who", "candidates": ["party", "part"], "answer": "party"}
            | {"supports": [text]}
            for n, text in enumerate(TEXTS)
        ]
    ),
    "contractnli": _contractnli,
    "qasper": _qasper,
    "label-studio": _label_studio,
}
DETECTED = {"jsonl", "csv", "tsv", "parquet", "text"}  # without data.format
PUBLISHED = {"nq": "nq/nq-made-up-dev-00.jsonl.gz", "tydiqa": "tydiqa/tiny_dev.jsonl.gz"}


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main([*map(str, arguments)])
    return ended.value.code


def test_every_layout_is_tried():
    assert set(FORMATS) == {*MADE, *PUBLISHED, "cuad"}  # which is squad's


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MADE, *PUBLISHED])
def test_the_recipe_of_a_layout_trains_as_it_is_written(
    name, tmp_path, monkeypatch, tiny_longformer, tiny_led, request, capsys
):
    monkeypatch.chdir(tmp_path)
    if name in PUBLISHED:
        source = request.getfixturevalue("shared_data") / PUBLISHED[name]
    else:
        source = MADE[name]()
    model = tiny_led if name == "summarization" else tiny_longformer
    given = ("--model", model, "--max-length", 64, "--yes")
    assert run("init", source, *given) == 0, capsys.readouterr().err
    command = "pretrain" if name == "text" else "finetune"
    recipe = load("recipe.yaml", command=command)
    assert recipe.data.format == (None if name in DETECTED else name)
    keys = ["task.max_question=32"] if name in PUBLISHED else []  # the tokenizer reads letters
    assert run(command, "recipe.yaml", "--dry-run", *keys) == 0, capsys.readouterr().err
