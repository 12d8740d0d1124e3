import json

import pytest
import scored

from ldt.benchmarks import qasper
from ldt.benchmarks.qasper import Reference
from ldt.errors import DataError
from ldt.io.strict_json import JsonFile

FLOAT = "FLOAT SELECTED: Table 1"


def said(text="", evidence=(), *, spans=(), yes_no=None, unanswerable=False):
    return {
        "answer": {
            "unanswerable": unanswerable,
            "extractive_spans": list(spans),
            "yes_no": yes_no,
            "free_form_answer": text,
            "evidence": list(evidence),
        }
    }


def question(id, *answers):
    return {"question": "What?", "question_id": id, "answers": list(answers)}


def paper(*questions, paragraphs=("one", "two")):
    return {
        "title": "t",
        "abstract": "a",
        "full_text": [{"section_name": None, "paragraphs": list(paragraphs)}],
        "qas": list(questions),
    }


def line(id, answer, *evidence):
    return {"question_id": id, "predicted_answer": answer, "predicted_evidence": list(evidence)}


def evaluate(gold, *lines, **options):
    return scored.evaluate(
        "qasper", JsonFile("gold", gold), JsonFile("pred", list(lines)), **options
    )


def test_a_small_case_is_what_it_is_by_hand():
    # a: "red fox" of "a red fox, the" (red fox by then): 1; the other annotator has 0. Evidence:
    # the first annotator has one of two, precision 1: 2/3; the second has none of its own: 0.
    # b: Yes of Yes: 1; evidence both empty: 1. c: no prediction: 0 and 0. d: "blue" of "blue sky,
    # grey sea": precision 1, recall 1/4: 2/5; evidence none of one: 0.
    gold = {
        "1": paper(
            question("a", said("a red fox, the", ["one", "two"]), said("dog", ["three"])),
            question("b", said(yes_no=True)),
        ),
        "2": paper(
            question("c", said(unanswerable=True)),
            question("d", said(spans=["blue sky", "grey sea"], evidence=["one"])),
        ),
    }
    lines = line("a", "Red fox", "one"), line("b", "yes"), line("d", "blue")
    result = evaluate(gold, *lines, line("z", "x"))
    assert result.metrics == pytest.approx(
        {"Answer F1": 60, "Evidence F1": 100 * (2 / 3 + 1) / 4, "Missing predictions": 1}
    )
    assert result.subsets["Answer F1 by type"] == pytest.approx(
        {"extractive": 40, "abstractive": 100, "boolean": 100, "none": 0}
    )
    assert (result.missing, result.extra) == (["c"], ["z"])


def test_the_sample_has_the_figures_worked_out_by_hand(shared_data):
    # Answers: 1, 1, 1, 1, "17 points" of "17.2 points of F1" (172 points of f1): 2 * 1/2 * 1/4 /
    # (3/4) = 1/3, "LSTM-CRF" of "LSTM-CRF, a list of names" (lstmcrf list of names): 2/5.
    # Evidence: 1, 1, 1, 1, one of two, one of two: 2/3 each.
    folder = shared_data / "qasper"
    gold, predictions = folder / "made_up.json", folder / "made_up.predictions.jsonl"
    result = scored.evaluate("qasper", gold, predictions)
    assert result.metrics == pytest.approx(
        {
            "Answer F1": 100 * (4 + 1 / 3 + 2 / 5) / 6,
            "Evidence F1": 100 * (4 + 4 / 3) / 6,
            "Missing predictions": 0,
        }
    )
    assert result.subsets["Answer F1 by type"] == pytest.approx(
        {"extractive": 70, "abstractive": 100 / 3, "boolean": 100, "none": 100}
    )
    # Without the table the fifth has all of its evidence.
    text_only = scored.evaluate("qasper", gold, predictions, text_evidence_only=True)
    assert text_only.metrics["Evidence F1"] == pytest.approx(100 * (5 + 2 / 3) / 6)


def test_answers_and_evidence_are_the_best_over_annotators_each_on_its_own():
    example = {
        "references": [
            Reference("red", "extractive", ["b"]),
            Reference("blue", "extractive", ["a"]),
        ]
    }
    scores = qasper.score(example, {"answer": "red", "evidence": ["a"]})
    assert scores == {"Answer F1": 1, "Evidence F1": 1}


@pytest.mark.parametrize(
    ("prediction", "answer", "f1"),
    [
        ("The red-fox!", "redfox", 1),  # punctuation is deleted
        ("", "", 0),  # also where both are empty
        ("the", "a", 0),
        ("Unanswerable", "Unanswerable", 1),
    ],
)
def test_an_answer_is_scored_by_the_words_of_squad(prediction, answer, f1):
    assert qasper.answer_f1(prediction, answer) == f1


@pytest.mark.parametrize(
    ("prediction", "evidence", "f1"),
    [
        ([], [], 1),
        ([], ["a"], 0),
        (["a"], [], 0),
        (["a"], ["a", "b"], 2 / 3),
        (["a", "a"], ["a"], 2 / 3),  # shared once, listed twice
        (["a"], ["a", "a"], 2 / 3),
        (["a "], ["a"], 0),  # letter by letter
    ],
)
def test_evidence_is_scored_by_equal_paragraphs(prediction, evidence, f1):
    assert qasper.evidence_f1(prediction, evidence) == pytest.approx(f1)


def test_what_is_unanswerable_has_no_evidence_whatever_is_listed():
    gold = {"1": paper(question("a", said("x", ["one"], unanswerable=True)))}
    assert evaluate(gold, line("a", "Unanswerable")).metrics["Evidence F1"] == 100
    assert evaluate(gold, line("a", "Unanswerable", "one")).metrics["Evidence F1"] == 0


def test_a_type_is_that_of_the_annotator_who_is_met_best_and_the_first_at_a_tie():
    references = [
        Reference("red fox", "extractive", []),
        Reference("Yes", "boolean", []),
        Reference("yes", "abstractive", []),
    ]
    assert qasper.best_type(references, "yes") == "boolean"
    assert qasper.best_type(references, "fox") == "extractive"
    assert qasper.best_type(references, "whale") == "extractive"


def test_a_question_without_a_prediction_counts_0_but_in_no_type():
    gold = {"1": paper(question("a", said("x")), question("b", said("x")))}
    result = evaluate(gold, line("a", "x"))
    assert result.metrics["Answer F1"] == 50
    assert result.subsets["Answer F1 by type"]["abstractive"] == 100


def test_a_later_line_replaces_the_earlier():
    gold = {"1": paper(question("a", said("x")))}
    assert evaluate(gold, line("a", "x"), line("a", "y")).metrics["Answer F1"] == 0


def test_tables_count_as_evidence_unless_they_are_left_out():
    gold = {"1": paper(question("a", said("x", [FLOAT])))}
    assert evaluate(gold, line("a", "x")).metrics["Evidence F1"] == 0
    assert evaluate(gold, line("a", "x"), text_evidence_only=True).metrics["Evidence F1"] == 100


def test_intervals_are_of_papers():
    gold = {
        "1": paper(question("a", said("x"))),
        "2": paper(question("b", said("x")), question("c", said("x"))),
    }
    result = evaluate(gold, line("a", "x"), line("b", "y"), line("c", "y"))
    assert result.intervals["Answer F1"] == (0, 100)
    assert result.intervals["Answer F1 by type abstractive"] == (0, 100)
    first, second, third = (item.unit for item in result.items)
    assert first != second == third


@pytest.mark.parametrize(
    ("gold", "lines", "message"),
    [
        (paper(question("a", said("x")), question("a", said("x"))), [], "gold: the id 'a' stands"),
        (paper(question("a")), [], "gold: 1: a: no answers; a question needs one at least"),
        (
            paper(question("a", said())),
            [],
            "gold: 1: a: an answer that says nothing; expected unan",
        ),
    ],
)
def test_a_file_that_cannot_be_used(gold, lines, message):
    with pytest.raises(DataError) as error:
        evaluate({"1": gold}, *lines)
    assert str(error.value).startswith(message)


def test_written_predictions_are_lines_that_the_script_reads(tmp_path):
    answers = [
        {"id": "a", "answer": "x", "evidence": ["one"]},
        {"id": "b", "answer": "", "evidence": ["two"]},
    ]
    file = tmp_path / "pred.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in qasper.published(answers)))
    # A strict reader: the three keys, a text and texts in them, a line each.
    found = [json.loads(text) for text in file.read_text().splitlines()]
    assert found == [line("a", "x", "one"), line("b", "Unanswerable")]
    gold = {"1": paper(question("a", said("x", ["one"])), question("b", said(unanswerable=True)))}
    result = scored.evaluate("qasper", gold, file)
    assert result.baselines["Answer F1"] == ("always 'Unanswerable'", 50)
    assert result.metrics == {"Answer F1": 100, "Evidence F1": 100, "Missing predictions": 0}
