"""`ldt evaluate` from the outside: what it prints, writes, warns of and refuses."""

import json
import subprocess
import sys

import pytest
from typed import typed

CONTEXT = "The red fox saw a blue whale."
LAST = CONTEXT.index("blue")
GOLD = {
    "squad": {
        "data": [
            {"paragraphs": [{"context": CONTEXT, "qas": [{"id": id, "answers": [answer]}]}]}
            for id, answer in (
                ("a", {"text": "red fox", "answer_start": 4}),
                ("b", {"text": "blue whale", "answer_start": LAST}),
                ("[/c]", {"text": "fox", "answer_start": 8}),
            )
        ]
    },
    "wikihop": [{"id": "a", "candidates": ["x", "y"], "supports": ["one two"], "answer": "x"}],
    "hotpotqa": [{"_id": "a", "answer": "x", "supporting_facts": [["t", 0]]}],
    "triviaqa": {
        "Domain": "Web",
        "Data": [
            {
                "QuestionId": "q",
                "Answer": {"NormalizedAliases": ["x"]},
                "EntityPages": [{"Filename": "f"}],
            }
        ],
    },
}
PREDICTIONS = {
    "squad": {"a": "the red fox", "b": "whale", "zz": "x"},
    "wikihop": {"a": "x"},
    "hotpotqa": {"answer": {"a": "x"}, "sp": {"a": [["t", 0]]}},
    "triviaqa": {"q--f": "X"},
}
LINES = """\
squad 1.1: 3 questions, 2 predicted; figures from 0 to 100
exact_match 33.33 0.00 to 100.00 (always 'red fox': 33.33)
f1 55.56 0.00 to 100.00 (always 'red fox': 55.56)
intervals: 95%, 2,000 resamples of the paragraphs, seed 0
words of the document: 0 to 249: 3 questions, exact_match 33.33, f1 55.56
where the answer stands: first quarter: 1 question, exact_match 100.00, f1 100.00
where the answer stands: second quarter: 1 question, exact_match 0.00, f1 0.00
where the answer stands: third quarter: 1 question, exact_match 0.00, f1 66.67
"""


@pytest.fixture
def ldt(tmp_path, capsys, monkeypatch):
    """Run ``ldt evaluate`` in a folder with ``gold`` and ``pred`` files: (exit code, out, err)."""
    monkeypatch.chdir(tmp_path)

    def ldt(format, *options, gold=None, pred=None):
        for name, value in (("gold", gold), ("pred", pred)):
            table = GOLD if name == "gold" else PREDICTIONS
            value = table[format.removesuffix("2")] if value is None else value
            text = value if isinstance(value, str) else json.dumps(value)
            (tmp_path / name).write_text(text)
        files = ["--gold", "gold", "--pred", "pred"]
        return typed(capsys, "evaluate", *files, "--format", format, *options)

    return ldt


def test_a_pipe_gets_lines_and_ids_that_do_not_meet_a_warning(ldt):
    assert ldt("squad") == (
        0,
        LINES,
        "warning: pred: 1 question without a whole prediction; what lacks counts 0: '[/c]'\n"
        "warning: pred: 1 question predicted but not in the gold file, left out: 'zz'\n"
        "warning: no better than always 'red fox': exact_match 33.33\n",
    )


def test_json_has_full_precision_in_a_file_or_alone_on_standard_output(ldt, tmp_path):
    code, out, err = ldt("squad", "--json", "all.json")
    assert (code, out) == (0, LINES)
    assert err.endswith("all.json: written\n")
    written = json.loads((tmp_path / "all.json").read_text())
    assert json.loads(ldt("squad", "--json", "-")[1]) == written
    assert written["metrics"]["f1"] == 100 * (1 + 2 / 3) / 3
    assert written["scale"] == "0 to 100"
    assert written["baseline"]["f1"] == {
        "answer": "always 'red fox'",
        "value": pytest.approx(100 * (1 + 2 / 3) / 3),
    }
    interval = written["interval"]
    assert interval.pop("metrics").keys() == {"exact_match", "f1"}
    assert interval == {"level": 0.95, "resamples": 2000, "resampled": "paragraphs", "seed": 0}
    assert written["missing"] == {"count": 1, "first": ["[/c]"]}
    assert written["extra"] == {"count": 1, "first": ["zz"]}
    assert written["by_position"][2] == {
        "label": "third quarter",
        "part": [0.5, 0.75],
        "questions": 1,
        "metrics": {"exact_match": 0, "f1": 100.0 * (2 / 3)},
    }
    assert written["by_length"][0]["words"] == [0, 250]


def test_the_baseline_may_be_no_answer_and_is_of_all_questions_alone(ldt):
    gold = json.loads(json.dumps(GOLD["squad"]))
    gold["data"][0]["paragraphs"][0]["qas"][0]["answers"] = []
    gold["data"][1]["paragraphs"][0]["qas"][0]["answers"] = []
    _, out, err = ldt("squad2", gold=gold, pred={"a": "", "b": "x", "[/c]": "fox"})
    assert "exact 66.67 0.00 to 100.00 (always no answer: 66.67)" in out.splitlines()
    assert "HasAns_f1 100.00" in out.splitlines()
    assert "warning: no better than always no answer: exact 66.67" in err
    assert "no better" not in ldt("squad2", gold=gold, pred={"a": "", "b": "", "[/c]": "fox"})[2]


def test_the_first_three_ids_are_named_and_all_counted(ldt):
    _, _, err = ldt("squad", pred={str(number): "x" for number in range(1000)})
    assert err.splitlines() == [
        "warning: pred: 3 questions without a whole prediction; what lacks counts 0: "
        "'a', 'b', '[/c]'",
        "warning: pred: 1,000 questions predicted but not in the gold file, left out: "
        "'0', '1', '2', ...",
        "warning: no better than always 'red fox': exact_match 33.33",
    ]


@pytest.mark.parametrize(
    ("format", "line"),
    [
        ("squad2", "HasAns_f1 55.56 0.00 to 100.00"),
        ("wikihop", "accuracy 100.00 (a candidate at random: 50.00)"),
        ("hotpotqa", "joint_f1 100.00 (always 'x': 0.00)"),
        ("triviaqa", "exact_match 100.00 (always 'x': 100.00)"),
    ],
)
def test_every_format_prints_its_metric(ldt, format, line):
    code, out, _ = ldt(format)
    assert code == 0
    assert line in out.splitlines()


NLI = {
    "documents": [
        {
            "id": 1,
            "text": "a b",
            "spans": [[0, 1], [2, 3]],
            "annotation_sets": [{"annotations": {"x": {"choice": "Entailment", "spans": [1]}}}],
        }
    ],
    "labels": {"x": {"hypothesis": "It is."}},
}
CLASSES = {"NotMentioned": 0, "Entailment": 1, "Contradiction": 0}
NLI_PREDICTED = [
    {
        "id": 1,
        "annotation_sets": [
            {"annotations": {"x": {"class_probs": CLASSES, "span_probs": [0.2, 0.1]}}}
        ],
    }
]
CUAD = {
    "data": [
        {
            "title": "t",
            "paragraphs": [
                {"context": "a b", "qas": [{"id": "t__Cap", "answers": [{"text": "a b"}]}]}
            ],
        }
    ]
}
NOTHING = {"unanswerable": True, "evidence": [], "extractive_spans": [], "free_form_answer": ""}
PAPER = {
    "1": {
        "full_text": [],
        "qas": [{"question": "?", "question_id": "q", "answers": [{"answer": NOTHING}]}],
    }
}
SAID = {"question_id": "q", "predicted_answer": "Unanswerable", "predicted_evidence": []}
SPANS = {"t__Cap": [{"text": "a b", "probability": 0.995}]}
LABELS = {"text": "a b", "labels": [3]}


@pytest.mark.parametrize(
    ("format", "gold", "pred", "options", "lines"),
    [
        (
            "contractnli",
            NLI,
            NLI_PREDICTED,
            [],
            [
                "contractnli: 1 pair, 1 predicted; figures from 0 to 100",
                "span.map 50.00 (always the commonest class: 50.00)",
                "class.accuracy 100.00 (always the commonest class: 100.00)",
                "micro_label_macro_doc span.map 50.00",
                "x class.f1_entailment 100.00",
            ],
        ),
        (
            "cuad",
            CUAD,
            SPANS,
            [],
            ["prec_at_90_recall 100.00 (always 'a b': 100.00)", "Cap aupr 100.00"],
        ),
        (
            "qasper",
            PAPER,
            SAID,
            ["--text-evidence-only"],
            [
                "Answer F1 100.00 (always 'Unanswerable': 100.00)",
                "Missing predictions 0",
                "Answer F1 by type none 100.00",
            ],
        ),
        (
            "lexglue",
            LABELS,
            {"id": 0, "labels": [3]},
            ["--task", "ecthr_b"],
            [
                "lexglue, ecthr_b: 1 document, 1 predicted; figures from 0 to 100",
                "micro-f1 100.00 (always 6: 100.00)",
                "macro-f1 9.09 (always 6: 9.09)",
            ],
        ),
    ],
)
def test_formats_with_files_of_their_own_print_their_metrics(
    ldt, format, gold, pred, options, lines
):
    code, out, _ = ldt(format, *options, gold=gold, pred=pred)
    assert code == 0
    for line in lines:
        assert line in out.splitlines()
    assert json.loads(ldt(format, *options, "--json", "-", gold=gold, pred=pred)[1])["metrics"]


@pytest.mark.parametrize(
    ("format", "gold", "pred", "code", "line"),
    [
        ("cuad", CUAD, {}, 4, "pred: no prediction of 1 question, such as 't__Cap'"),
        ("cuad", SPANS, CUAD, 4, "gold: field data: found an object of 1 key; field required"),
        ("contractnli", NLI, [], 4, "pred: no prediction of 1 pair of document and hypothesis"),
        ("qasper", PAPER, PAPER, 4, "pred: field 0.question_id: found an object of 1 key; field"),
        ("nq", {"predictions": []}, [], 4, "gold:1: field example_id: found an object of 1 key;"),
        ("lexglue", LABELS, {"labels": [3]}, 2, "pred: lines do not tell the number of classes; "),
        ("lexglue", "0\t0.1", LABELS, 4, "gold:1: text after the object"),
    ],
)
def test_what_is_missing_or_swapped_is_one_line(ldt, format, gold, pred, code, line):
    found, out, err = ldt(format, gold=gold, pred=pred)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert err.startswith(f"error: {line}")


def test_what_is_not_known_is_told(ldt):
    out = ldt("wikihop")[1].splitlines()
    assert out[0] == "wikihop: 1 question, 1 predicted; figures from 0 to 100"
    assert "no intervals: they take two different questions at least" in out
    assert "words of the document: 0 to 249: 1 question, accuracy 100.00" in out
    assert "where the answer stands: not known; a wikihop file does not tell" in out
    out = ldt("triviaqa")[1].splitlines()
    assert "words of the document: not known; data.evidence=FOLDER would tell" in out
    out = ldt("hotpotqa")[1].splitlines()
    assert "words of the document: not known; the gold file has no context" in out


def test_what_is_verified_stands_beside_the_rest(ldt):
    gold = json.loads(json.dumps(GOLD["triviaqa"]))
    gold["Data"][0]["QuestionPartOfVerifiedEval"] = True
    gold["Data"][0]["EntityPages"].append({"Filename": "g", "DocPartOfVerifiedEval": True})
    out = ldt("triviaqa", gold=gold)[1].splitlines()
    assert "exact_match 50.00 (always 'x': 100.00)" in out
    assert "verified exact_match 0.00" in out
    assert "verified denominator 1" in out


@pytest.mark.parametrize(
    ("format", "files", "line"),
    [
        ("squad", {"gold": "{"}, "gold: not JSON: "),
        ("squad", {"pred": '{"a": "x", "a": "y"}'}, "pred: key 'a' stands twice in one object"),
        ("squad", {"pred": {"a": 3}}, "pred: field a: found 3; input should be a valid string"),
        ("wikihop", {"pred": ["x"]}, "pred: found a list of 1; input should be a valid dictionary"),
        ("wikihop", {"gold": []}, "gold: no questions in it"),
        ("triviaqa", {"gold": {}}, "gold: field Data: found an object, empty; field required"),
        (
            "squad",
            {"gold": GOLD["wikihop"]},
            "gold: found a list of 1; input",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_and_exit_code_4(ldt, format, files, line):
    code, out, err = ldt(format, **files)
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert err.startswith(f"error: {line}")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--na-prob", "x"], "--na-prob is an option of --format squad2, not of squad"),
        (["--task", "scotus"], "--task is an option of --format lexglue, not of squad"),
        (["--text-evidence-only"], "--text-evidence-only is an option of --format qasper, not"),
        (["--json", "no/all.json"], "no: no such folder"),
        (["--json", "."], ".: a folder; name a file"),
        (["--json", "pred"], "--json pred: a file that is read; name another"),
        (["--gold", "more"], "the questions of squad 1.1 are one file, got 2: gold and 1 more"),
        (["--pred", "gone*"], "gone*: no file has such a name"),
        (["--gold", "-", "--pred", "-"], "standard input can be one file only; name the other"),
    ],
)
def test_an_option_that_cannot_work_is_one_line_and_exit_code_2(ldt, options, line):
    code, out, err = ldt("squad", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {line}")


def test_no_torch_is_imported_and_predictions_may_come_from_a_pipe(tmp_path):
    (tmp_path / "gold").write_text(json.dumps(GOLD["squad"]))
    code = (
        "import sys\n"
        "from ldt.cli import main\n"
        "try:\n"
        "    main(['evaluate', '--gold', 'gold', '--pred', '-', '--format', 'squad'])\n"
        "finally:\n"
        "    heavy = {'torch', 'transformers', 'datasets', 'pyarrow'}\n"
        "    print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(PREDICTIONS["squad"]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, LINES)
    assert done.stderr.splitlines()[-1] == "[]"
    assert "warning: stdin: 1 question predicted" in done.stderr
