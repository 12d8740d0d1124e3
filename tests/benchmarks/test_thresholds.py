"""The best threshold against the plain loop of the published scripts."""

import numpy as np
import pytest

from ldt.benchmarks.passage_qa import TARGETS, Curve, Scored


def loop(answers):
    """The figures by one pass over falling scores, in which equal scores overwrite each other."""
    gold, said, right, points = sum(a.has_gold for a in answers), 0, 0.0, {}
    for answer in sorted(answers, key=lambda a: -a.score):
        said += answer.answered
        right += answer.right
        points[answer.score] = (right / said if said else 0, right / gold if gold else 0)
    best = [0, 0, 0, 0]
    reached = dict.fromkeys(TARGETS, (0, 0))
    for threshold, (precision, recall) in points.items():
        for target in TARGETS:
            if precision >= target and recall > reached[target][0]:
                reached[target] = recall, precision
        both = precision + recall
        f1 = 2 * precision * recall / both if both else 0
        if f1 > best[0]:
            best = [f1, precision, recall, threshold]
    found = [100 * best[0], 100 * best[1], 100 * best[2], best[3]]
    for recall, precision in reached.values():
        found += [100 * recall, 100 * precision]
    return found


def answer(has_gold, answered, right, score):
    return Scored(has_gold, answered, right if has_gold and answered else 0.0, score)


def figures(answers, counts=None):
    counts = np.ones(len(answers), int) if counts is None else counts
    return Curve(answers).best(counts[None], "")


@pytest.mark.parametrize("seed", range(30))
def test_every_figure_is_that_of_the_published_loop(seed):
    random = np.random.default_rng(seed)
    size = int(random.integers(1, 40))
    answers = [
        answer(
            bool(random.random() < 0.6),
            bool(random.random() < 0.7),
            float(random.choice([0, 0.5, 1])),
            float(random.integers(-3, 3)),  # many ties
        )
        for _ in range(size)
    ]
    assert [float(value[0]) for value in figures(answers).values()] == pytest.approx(loop(answers))
    # And of a resample: questions that stand there twice or not at all.
    counts = random.integers(0, 3, size)
    drawn = [each for each, count in zip(answers, counts, strict=True) for _ in range(count)]
    found = [float(value[0]) for value in figures(answers, counts).values()]
    assert found == pytest.approx(loop(drawn))


def test_figures_of_all_answers_count_parts_and_leave_silence_out():
    # Half a right answer of 2 and of 2 to give; then the first one twice: 1 of 3 and of 3.
    answers = [answer(True, True, 0.5, 1.0), answer(False, True, 0.0, 1.0)]
    answers.append(answer(True, False, 0.0, 1.0))
    found = Curve(answers).whole(np.array([[1, 1, 1], [2, 1, 1]]), "")
    for name in ("f1", "precision", "recall"):
        assert found[name] == pytest.approx([25, 100 / 3])


def test_nothing_answered_and_nothing_to_answer_are_0():
    for answers in ([answer(True, False, 0.0, 1.0)], [answer(False, True, 0.0, 1.0)]):
        assert {float(value[0]) for value in figures(answers).values()} == {0.0}
        whole = Curve(answers).whole(np.ones((1, 1), int), "")
        assert {float(value[0]) for value in whole.values()} == {0.0}
