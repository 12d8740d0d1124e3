"""Natural Questions by its published rules, one test for each of their traps."""

import gzip
import json

import pytest
from passages_made import NULL, nq, write

from ldt.benchmarks import evaluate
from ldt.benchmarks import nq as layout
from ldt.benchmarks.nq import same
from ldt.benchmarks.passage_qa import NOTE, same_set, score_parts
from ldt.benchmarks.passage_qa import PassageAnswer as Prediction
from ldt.errors import DataError

TOKENS = "<P> a b </P> <P> c d e </P>".split()
CANDIDATES = [(0, 4), (4, 9)]
BOTH = layout.PageSpan(10, 20, 1, 3)
OTHER = layout.PageSpan(30, 40, 5, 7)
SILENT = (None, [], None)


def predicted(id, long=NULL, score=1.0, short=(), short_score=1.0, yes_no="NONE"):
    return {
        "example_id": id,
        "long_answer": dict(long),
        "long_answer_score": score,
        "short_answers": list(short),
        "short_answers_score": short_score,
        "yes_no_answer": yes_no,
    }


def tokens(start, end):
    return {"start_byte": -1, "end_byte": -1, "start_token": start, "end_token": end}


@pytest.fixture
def score(tmp_path):
    """Score predictions of questions with these annotations each: a `Result`."""

    def score(annotations, predictions):
        lines = [nq(n, TOKENS, CANDIDATES, each) for n, each in enumerate(annotations)]
        gold = write(tmp_path / "gold.jsonl", *lines)
        pred = write(tmp_path / "pred.json", {"predictions": predictions})
        return evaluate(gold, pred, format="nq")

    return score


def long_of(spans, answer):
    annotations = [(span, [], None) for span in spans]
    return score_parts(annotations, Prediction(answer), same_set, same)[0]


def short_of(annotations, spans=(), yes_no=None):
    answer = Prediction(None, 0.0, spans, 0.0, yes_no)
    return score_parts(annotations, answer, same_set, same)[1]


def test_a_small_case_worked_out_by_hand(score):
    # Question 0: 2 of 5 say the first candidate, predicted, score 3: right.
    # Question 1: 2 of 5 say the second, the first is predicted, score 2: wrong.
    # Question 2: 1 of 5, so gold is null; predicted, score 1: wrong.
    # Question 3: 3 of 5, nothing predicted, score 4.
    # Gold 3. Score >= 3: precision 1/1, recall 1/3, F1 1/2. >= 2: 1/2, 1/3, F1 0.4. >= 1: F1 1/3.
    annotations = [
        [(0,), (0,), (None,), (None,), (None,)],
        [(1,), (1,), (None,), (None,), (None,)],
        [(0,), (None,), (None,), (None,), (None,)],
        [(0,), (1,), (1,), (None,), (None,)],
    ]
    predictions = [
        predicted(0, tokens(0, 4), 3.0),
        predicted(1, tokens(0, 4), 2.0),
        predicted(2, tokens(0, 4), 1.0),
        predicted(3, NULL, 4.0),
    ]
    found = score(annotations, predictions)
    metrics = found.metrics
    assert metrics["long-best-threshold-f1"] == pytest.approx(50)
    assert metrics["long-best-threshold-precision"] == 100
    assert metrics["long-best-threshold-recall"] == pytest.approx(100 / 3)
    assert metrics["long-best-threshold"] == 3
    assert metrics["long-answer-f1"] == pytest.approx(100 / 3)
    assert metrics["long-answer-n"] == 4
    assert metrics["long-recall-at-precision>=0.9"] == pytest.approx(100 / 3)
    assert found.notes["long-best-threshold-f1"] == NOTE
    assert found.baselines["long-answer-recall"].value == pytest.approx(200 / 3)


def test_two_of_five_annotations_make_a_gold_answer_and_one_does_not():
    assert long_of([BOTH, BOTH, None, None, None], BOTH)[:3] == (True, True, 1.0)
    assert long_of([BOTH, None, None, None, None], BOTH)[:3] == (False, True, 0.0)


def test_the_answer_of_a_single_annotation_is_right_once_two_have_one():
    assert long_of([BOTH, OTHER, None, None, None], OTHER).right == 1.0


def test_spans_and_yes_or_no_vote_together_for_a_short_answer():
    mixed = [(None, [BOTH], None), (None, [], "yes"), SILENT, SILENT, SILENT]
    assert short_of(mixed, yes_no="yes")[:3] == (True, True, 1.0)
    assert short_of(mixed, [BOTH])[:3] == (True, True, 1.0)
    assert short_of(mixed, yes_no="no").right == 0.0
    assert short_of(mixed[1:], yes_no="yes")[:3] == (False, True, 0.0)


def test_a_set_of_short_spans_is_right_whole_in_any_order_and_wrong_in_part():
    gold = [(None, [BOTH, OTHER], None), (None, [BOTH], None), SILENT]
    assert short_of(gold, [OTHER, BOTH, OTHER]).right == 1.0
    assert short_of(gold, [BOTH]).right == 1.0
    assert short_of(gold, [OTHER]).right == 0.0
    assert short_of([gold[0], gold[0]], [BOTH]).right == 0.0


def test_spans_that_are_parted_over_two_annotations_are_no_set_of_either():
    gold = [(None, [BOTH], None), (None, [OTHER], None)]
    assert short_of(gold, [BOTH, OTHER]).right == 0.0


def test_silence_is_never_the_set_of_a_silent_annotation():
    assert short_of([SILENT, (None, [BOTH], None), (None, [BOTH], None)])[:3] == (True, False, 0.0)


def test_spans_are_equal_by_bytes_or_by_tokens():
    two = [BOTH, BOTH]
    assert long_of(two, layout.PageSpan(10, 20, -1, -1)).right == 1.0
    assert long_of(two, layout.PageSpan(-1, -1, 1, 3)).right == 1.0
    assert long_of(two, layout.PageSpan(10, 20, 7, 8)).right == 1.0  # the tokens are others
    assert long_of(two, layout.PageSpan(11, 20, 1, 3)).right == 1.0  # the bytes are others
    assert long_of(two, layout.PageSpan(11, 20, 1, 4)).right == 0.0
    # What is unknown on both sides is not equal.
    bare = layout.PageSpan(-1, -1, 1, 3)
    assert long_of([bare, bare], layout.PageSpan(-1, -1, 1, 4)).right == 0.0


def test_neither_the_list_of_candidates_nor_top_level_has_a_part_in_the_metric(tmp_path):
    # Of 0 an answer that is no candidate, of 1 a nested candidate; 2 is answered by no candidate.
    lines = [nq(n, TOKENS, CANDIDATES, [(1,)] * 2) for n in range(3)]
    for each in lines[0]["annotations"]:
        each["long_answer"] |= tokens(1, 3)
    lines[1]["long_answer_candidates"][1]["top_level"] = False
    answers = [predicted(n, tokens(*pair)) for n, pair in enumerate([(1, 3), (4, 9), (2, 3)])]
    gold = write(tmp_path / "gold.jsonl", *lines)
    found = evaluate(gold, write(tmp_path / "p.json", {"predictions": answers}), format="nq")
    assert found.metrics["long-answer-precision"] == pytest.approx(200 / 3)
    assert found.metrics["long-answer-recall"] == pytest.approx(200 / 3)


def test_figures_without_thresholds_take_all_predictions(score):
    gold = [[(0,)] * 5, [(None,)] * 5]
    found = score(gold, [predicted(0, tokens(0, 4), 1.0), predicted(1, tokens(0, 4), 9.0)])
    assert found.metrics["long-answer-precision"] == 50
    assert found.metrics["long-best-threshold-f1"] == found.metrics["long-answer-f1"]


def test_a_null_span_among_short_ones_is_dropped(score):
    gold = [[(0, (1, 2))] * 2 + [(None,)] * 3]
    right = predicted(0, short=[dict(NULL), tokens(1, 2)])
    assert score(gold, [right]).metrics["short-answer-f1"] == 100


def test_absent_answers_are_null_and_yes_is_read_in_any_case(score):
    bare = {"example_id": 0, "long_answer_score": 0, "short_answers_score": 1}
    gold = [["YES", "YES", (None,), (None,), (None,)]]
    assert score(gold, [bare]).metrics["short-answer-recall"] == 0
    assert score(gold, [bare | {"yes_no_answer": "Yes"}]).metrics["short-answer-recall"] == 100


@pytest.mark.parametrize("name", ["long_answer_score", "short_answers_score"])
def test_a_score_may_not_be_absent_even_of_a_null_answer(score, name):
    bare = predicted(0)
    del bare[name]
    with pytest.raises(DataError, match=f"predictions.0.{name}: .*; field required"):
        score([[(None,)] * 5], [bare])


def test_the_baseline_is_the_first_paragraph_and_not_the_first_candidate(tmp_path):
    page = "<Table> a </Table> <P> b </P>".split()
    gold = write(tmp_path / "gold.jsonl", nq(0, page, [(0, 3), (3, 6)], [(1,)] * 5))
    found = evaluate(gold, write(tmp_path / "p.json", {"predictions": [predicted(0)]}), format="nq")
    assert found.baselines["long-answer-f1"] == ("always the first paragraph", 100)


def test_gold_of_one_annotation_is_told_to_have_no_answers(score):
    found = score([[(0,)]], [predicted(0, tokens(0, 4))])
    assert found.metrics["long-best-threshold-f1"] == 0
    assert any("one annotation a question" in line for line in found.warnings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"example_id": 1.4e18}, "field predictions.0.example_id.*: found 1.4e\\+18; input"),
        ({"short_answers_score": "1"}, "field predictions.0.short_answers_score: found '1'"),
        ({"yes_no_answer": "YES", "short_answers": [tokens(1, 2)]}, "0: yes beside short answers"),
        ({"long_answer": tokens(3, -1)}, "0: start_token 3, end_token -1; expected 0 <= start"),
        ({"long_answer": tokens(3, 3)}, "0: start_token 3, end_token 3; expected 0 <= start"),
        ({"example_id": 7}, "no prediction of 1 question, such as '0'"),
    ],
)
def test_what_the_published_script_refuses_is_one_line(score, change, message):
    with pytest.raises(DataError, match=message) as raised:
        score([[(0,)] * 5], [predicted(0) | change])
    assert "\n" not in str(raised.value)


def test_ids_of_both_files_are_the_same_and_come_once(score):
    with pytest.raises(DataError, match="no gold of 1 question, such as '5'"):
        score([[(0,)] * 5], [predicted(0), predicted(5)])
    with pytest.raises(DataError, match="the id '0' stands twice"):
        score([[(0,)] * 5], [predicted(0), predicted(0)])


def test_intervals_choose_the_threshold_anew_and_pages_stay_whole(score):
    gold = [[(0,)] * 5] * 6 + [[(None,)] * 5] * 6
    answers = [predicted(n, tokens(0, 4), float(n % 5)) for n in range(12)]
    found = score(gold, answers)
    for name in ("long-best-threshold-f1", "long-answer-f1"):
        low, high = found.intervals[name]
        assert low < found.metrics[name] < high
    assert "long-best-threshold" not in found.intervals
    assert found.units == "pages"
    assert {item.unit for item in found.items} == {f"page of {n}" for n in range(12)}


def test_the_sample_has_the_counts_of_a_plain_loop_over_its_questions(shared_data):
    gold, pred = sorted((shared_data / "nq").glob("nq-made-up-dev-*")), "predictions.made-up.json"
    with gzip.open(gold[0]) as file:
        questions = [json.loads(line) for line in file]
    answers = {
        item["example_id"]: item["long_answer"]["start_byte"]
        for item in json.loads((shared_data / "nq" / pred).read_text())["predictions"]
    }
    there = right = 0
    for question in questions:
        starts = [each["long_answer"]["start_byte"] for each in question["annotations"]]
        starts = [start for start in starts if start >= 0]
        there += len(starts) > 1
        right += len(starts) > 1 and answers[question["example_id"]] in starts
    found = evaluate(str(gold[0]), str(shared_data / "nq" / pred), format="nq")
    said = sum(start >= 0 for start in answers.values())
    assert 0 < right < there
    assert found.metrics["long-answer-precision"] == pytest.approx(100 * right / said)
    assert found.metrics["long-answer-recall"] == pytest.approx(100 * right / there)
