"""TyDi QA by its published rules, one test for each of their traps."""

import json
import tracemalloc

import pytest
from passages_made import tydi, write

from ldt.benchmarks import evaluate
from ldt.benchmarks.passage_qa import PassageAnswer as Prediction
from ldt.benchmarks.passage_qa import overlap, score_parts
from ldt.benchmarks.tydiqa import TydiQAScorer
from ldt.errors import DataError

TEXT = "x" * 100
SILENT = (None, [], None)
NOBODY = [(None, None, "NONE")] * 3
RIGHT = [(0, (10, 20), "NONE")] * 3


def predicted(id, language="finnish", index=-1, score=1.0, span=(-1, -1), **more):
    return {
        "example_id": id,
        "language": language,
        "passage_answer_index": index,
        "passage_answer_score": score,
        "minimal_answer": {"start_byte_offset": span[0], "end_byte_offset": span[1]},
        "minimal_answer_score": score,
        "yes_no_answer": "NONE",
    } | more


@pytest.fixture
def score(tmp_path):
    """Score predictions of questions, pairs of language and annotations: a `Result`."""

    def score(questions, predictions):
        lines = [
            tydi(n, TEXT, [(0, 50), (50, 100)], answers, language)
            for n, (language, answers) in enumerate(questions)
        ]
        gold = write(tmp_path / "gold.jsonl", *lines)
        return evaluate(gold, write(tmp_path / "pred.jsonl", *predictions), format="tydiqa")

    return score


def minimal_of(annotations, span=None, yes_no=None):
    answer = Prediction(None, 0.0, [span] if span else [], 0.0, yes_no)
    return score_parts(annotations, answer, overlap)[1]


def test_a_small_case_worked_out_by_hand(score):
    # Finnish 0: passage right at score 2, span 10 to 20 against 15 to 35: 5 bytes shared,
    # precision 1/2, recall 1/4, F1 1/3. Finnish 1: no gold, answered at score 1.
    # Passages: score >= 2 precision 1, recall 1, F1 1. Minimal: >= 2 precision, recall, F1 1/3.
    # Thai 2: passage wrong, minimal silent: 0 and 0. English 3: all right, not in the means.
    far = [(0, (15, 35), "NONE")] * 2 + [(None, None, "NONE")]
    questions = [("finnish", far), ("finnish", NOBODY), ("thai", RIGHT), ("english", RIGHT)]
    predictions = [
        predicted(0, index=0, score=2.0, span=(10, 20)),
        predicted(1, index=1, score=1.0, span=(0, 5)),
        predicted(2, "thai", index=1),
        predicted(3, "english", index=0, span=(10, 20)),
    ]
    found = score(questions, predictions)
    assert found.metrics["avg_passage_f1"] == pytest.approx((100 + 0) / 2)
    assert found.metrics["avg_minimal_f1"] == pytest.approx((100 / 3 + 0) / 2)
    assert found.subsets["english"]["minimal-best-threshold-f1"] == 100
    assert found.subsets["finnish"]["passage-best-threshold"] == 2
    assert "threshold chosen on the scored set" in found.notes["avg_passage_f1"]
    assert "finnish minimal-best-threshold-f1" in found.intervals


def test_the_official_sample_has_the_official_figures(shared_data):
    folder = shared_data / "tydiqa"
    gold = str(folder / "small_gold_annotation.jsonl.gz")
    found = evaluate(gold, str(folder / "sample_prediction.jsonl"), format="tydiqa")
    assert round(found.metrics["avg_passage_f1"], 2) == 66.67
    assert round(found.metrics["avg_minimal_f1"], 2) == 52.36


def test_two_of_three_annotations_make_a_gold_answer_and_any_of_them_is_right():
    first, second = (0, [(1, 2)], None), (1, [(5, 9)], None)
    assert score_parts([first, second, SILENT], Prediction(1), overlap)[0][:3] == (True, True, 1.0)
    assert score_parts([first, SILENT, SILENT], Prediction(0), overlap)[0][:3] == (False, True, 0.0)
    assert minimal_of([first, second, SILENT], (5, 9))[:3] == (True, True, 1.0)
    assert minimal_of([first, SILENT, SILENT], (1, 2))[:3] == (False, True, 0.0)


def test_spans_and_yes_or_no_vote_together_and_a_span_against_yes_is_0():
    yes, span = (0, [], "yes"), (0, [(1, 5)], None)
    assert minimal_of([yes, span, SILENT], yes_no="yes").right == 1.0
    assert minimal_of([yes, span, SILENT], yes_no="no").right == 0.0
    assert minimal_of([yes, yes, SILENT], (1, 5))[:3] == (True, True, 0.0)


def test_a_span_has_the_best_f1_in_bytes_over_the_annotations():
    annotations = [(0, [(0, 10)], None), (0, [(4, 6)], None), SILENT]
    # Of 4 to 8: against 0 to 10 precision 1, recall 4/10: 4/7; against 4 to 6 1/2 and 1: 2/3.
    assert minimal_of(annotations, (4, 8)).right == pytest.approx(2 / 3)
    assert minimal_of(annotations, (20, 30)).right == 0.0


def test_each_language_has_a_threshold_of_its_own(score):
    questions = [("finnish", RIGHT), ("finnish", NOBODY), ("thai", RIGHT), ("thai", NOBODY)]
    predictions = [
        predicted(0, index=0, score=9.0),
        predicted(1, index=0, score=8.0),
        predicted(2, "thai", index=0, score=2.0),
        predicted(3, "thai", index=0, score=1.0),
    ]
    found = score(questions, predictions)  # with one threshold for both F1 would be below 100
    assert found.metrics["avg_passage_f1"] == 100


def test_the_mean_of_f1_is_not_the_f1_of_the_means(score):
    questions = [("finnish", RIGHT), ("finnish", RIGHT), ("thai", RIGHT), ("thai", NOBODY)]
    predictions = [predicted(0, index=0, score=2.0), predicted(1)]
    predictions += [predicted(2, "thai", index=0), predicted(3, "thai", index=0)]
    metrics = score(questions, predictions).metrics  # precision 1, 1/2; recall 1/2, 1; F1 2/3 each
    assert metrics["avg_passage_f1"] == pytest.approx(200 / 3)
    assert metrics["avg_passage_precision"] == metrics["avg_passage_recall"] == 75


def test_a_language_without_predictions_is_left_out_and_told(score):
    found = score([("finnish", RIGHT), ("thai", RIGHT)], [predicted(0, index=0)])
    assert found.metrics["avg_passage_f1"] == 100
    assert any("no prediction in thai, left out" in line for line in found.warnings)
    assert "thai" not in found.subsets


def test_a_language_without_gold_counts_0_and_is_told(score):
    found = score([("finnish", RIGHT)], [predicted(0, index=0), predicted(8, "thai", index=0)])
    assert found.metrics["avg_passage_f1"] == 50
    assert any("no gold in thai, which counts 0" in line for line in found.warnings)


def test_english_has_no_part_in_the_means_and_alone_they_are_0_which_is_told(score):
    found = score([("english", RIGHT)], [predicted(0, "english", index=0)])
    assert any("in english alone, left out of the means, which are 0" in x for x in found.warnings)
    assert found.metrics["avg_passage_f1"] == 0
    assert found.subsets["english"]["passage-best-threshold-f1"] == 100


def test_a_missing_prediction_is_a_wrong_answer_of_score_0_where_gold_has_none(score):
    # Of two missing ones that without gold is answered, at score 0: above -1 it costs precision.
    questions = [("finnish", RIGHT), ("finnish", NOBODY), ("finnish", RIGHT)]
    found = score(questions, [predicted(0, index=0, score=-1.0, span=(10, 20))])
    for part in ("passage", "minimal"):
        assert found.metrics[f"avg_{part}_precision"] == 50
        assert found.metrics[f"avg_{part}_recall"] == 50
    assert any("2 questions without a prediction" in line for line in found.warnings)
    assert found.missing == ["1", "2"]


def test_a_prediction_of_another_language_than_gold_is_ignored(score):
    questions = [("finnish", RIGHT), ("thai", RIGHT), ("finnish", RIGHT)]
    predictions = [predicted(0, "thai", index=0), predicted(1, "thai", index=0), predicted(2)]
    found = score(questions, predictions)
    assert found.subsets["thai"]["passage-best-threshold-f1"] == 100
    assert found.subsets["finnish"]["passage-best-threshold-f1"] == 0
    assert found.extra == ["0"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"minimal_answer_score": None}, "field 0.minimal_answer_score: found null; input"),
        ({"language": "Finnish"}, "field 0.language: found 'Finnish'; string should match"),
        ({"example_id": 4.9e18}, "field 0.example_id.*: found 4.9e\\+18; input should be"),
        (
            {"minimal_answer": {"start_byte_offset": 4, "end_byte_offset": 4}},
            "0: start_byte_offset 4, end_byte_offset 4; expected 0 <= start < end",
        ),
        (
            {
                "yes_no_answer": "YES",
                "minimal_answer": {"start_byte_offset": 4, "end_byte_offset": 6},
            },
            "0: yes beside a minimal answer",
        ),
    ],
)
def test_what_the_published_script_refuses_is_one_line(score, change, message):
    with pytest.raises(DataError, match=f"pred.jsonl: {message}") as raised:
        score([("finnish", RIGHT)], [predicted(0) | change])
    assert "\n" not in str(raised.value)


def test_a_line_without_minimal_answer_is_refused_and_does_not_reuse_the_one_before(score):
    bare = predicted(1)
    del bare["minimal_answer"]
    with pytest.raises(DataError, match="pred.jsonl: field 1.minimal_answer: .*; field required"):
        score([("finnish", RIGHT)] * 2, [predicted(0), bare])


def test_a_prediction_that_stands_twice_is_refused(score):
    with pytest.raises(DataError, match="pred.jsonl: the id '0' stands twice"):
        score([("finnish", RIGHT)], [predicted(0), predicted(0)])


def test_questions_on_one_page_are_drawn_together(tmp_path):
    lines = [tydi(n, TEXT, [(0, 50)], RIGHT, document_url="https://a") for n in range(2)]
    gold = write(tmp_path / "gold.jsonl", *lines, tydi(2, TEXT, [(0, 50)], RIGHT))
    pred = write(tmp_path / "pred.jsonl", *(predicted(n, index=0) for n in range(3)))
    first, second, other = evaluate(gold, pred, format="tydiqa").items
    assert first.unit == second.unit != other.unit


def test_resamples_and_groups_leave_out_a_language_of_which_no_question_counts(score):
    found = score(
        [("finnish", RIGHT), ("thai", RIGHT)],
        [predicted(0, index=0), predicted(1, "thai", index=0)],
    )
    assert found.intervals["avg_passage_f1"] == (pytest.approx(100 * 0.025**0.5), 100)


@pytest.mark.slow
def test_gold_is_read_a_line_at_a_time_and_of_each_little_is_kept(tmp_path):
    text = "word " * 4000  # 20 kB, in 400 lines 8 MB
    with open(tmp_path / "gold.jsonl", "w") as file:
        for number in range(400):
            file.write(json.dumps(tydi(number, text, [(0, 50)], NOBODY)) + "\n")
    tracemalloc.start()
    items = TydiQAScorer().gold([str(tmp_path / "gold.jsonl")])
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(items) == 400
    assert kept < 400 * 1000
    assert most < kept + 1_000_000
