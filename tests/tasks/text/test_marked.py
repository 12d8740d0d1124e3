"""Markers in front of passages, and chunks that part as few passages as they can."""

import numpy as np
import pytest

from ldt.data.features import apart
from ldt.tasks.text.marked import mark

WORDS = "aa bb cc dd ee"
OFFSETS = np.array([[3 * n, 3 * n + 2] for n in range(5)], np.int32)


def marked(*passages):
    return mark(range(10, 15), OFFSETS, passages, range(100, 100 + len(passages)))


def test_a_marker_stands_in_front_of_the_first_token_of_its_passage():
    found = marked((3, 8), (8, 14))
    assert found.ids == (10, 100, 11, 12, 101, 13, 14)
    assert found.places.tolist() == [1, 4]
    assert found.numbers.tolist() == [0, 1]
    assert found.offsets[[1, 4]].tolist() == [[3, 3], [8, 8]]
    assert found.offsets[[0, 2, 3, 5, 6]].tolist() == OFFSETS.tolist()


def test_of_passages_that_begin_together_the_outer_one_is_first():
    found = marked((3, 5), (3, 11), (6, 8))
    assert found.ids == (10, 101, 100, 11, 102, 12, 13, 14)
    assert found.numbers.tolist() == [1, 0, 2]


def test_a_passage_without_a_token_has_no_marker():
    found = marked((5, 6), (6, 8), (14, 14))
    assert found.ids == (10, 11, 101, 12, 13, 14)
    assert found.numbers.tolist() == [1]


def test_a_cut_parts_the_passages_that_it_is_inside_of():
    #             10 101 100 11 102 12 13 14
    found = marked((3, 5), (3, 11), (6, 8))
    assert found.parted.tolist() == [0, 0, 1, 2, 1, 2, 1, 0, 0]


def test_without_passages_the_document_is_as_it_was():
    found = mark(range(10, 15), OFFSETS, [], [])
    assert found.ids == (10, 11, 12, 13, 14)
    assert found.parted.tolist() == [0] * 6
    empty = mark([], np.empty((0, 2), np.int32), [(0, 3)], [7])
    assert empty.ids == ()


def nested(rng, start, end, depth):
    """Passages of tokens from ``start`` to before ``end``, some with others in them."""
    while start < end and depth:
        size = int(rng.integers(1, max(2, (end - start) * 2 // 3)))
        yield start, start + size
        yield from nested(rng, start, start + size, depth - 1 if rng.random() < 0.5 else 0)
        start += size + int(rng.integers(0, 4))


@pytest.mark.parametrize("seed", range(40))
def test_chunks_hold_every_passage_that_fits_and_every_token(seed):
    rng = np.random.default_rng(seed)
    length, room = int(rng.integers(20, 120)), int(rng.integers(8, 40))
    stride = int(rng.integers(0, room))
    parts = list(nested(rng, 0, length, 3))
    parted = np.array([sum(a < cut < b for a, b in parts) for cut in range(length + 1)])
    chunks = apart(parted, room, stride)
    assert (chunks[0][0], chunks[-1][1]) == (0, length)
    assert all(0 < b - a <= room for a, b in chunks)
    for (_, before), (start, end) in zip(chunks, chunks[1:], strict=False):
        assert before - stride <= start <= before < end
    for a, b in parts:
        if b - a <= room:
            assert any(start <= a and b <= end for start, end in chunks), (a, b, chunks)


def test_chunks_are_as_long_as_passages_let_them_be_and_share_whole_passages():
    parts = [(0, 4), (4, 9), (9, 12), (12, 20)]
    parted = np.array([sum(a < cut < b for a, b in parts) for cut in range(21)])
    assert apart(parted, 12, 0) == [(0, 12), (12, 20)]
    assert apart(parted, 12, 5) == [(0, 12), (9, 20)]
    assert apart(parted, 10, 5) == [(0, 9), (4, 12), (12, 20)]  # to share more would part the last


def test_a_passage_that_is_too_long_is_parted_between_those_inside():
    parts = [(2, 18), (2, 9), (9, 18)]
    parted = np.array([sum(a < cut < b for a, b in parts) for cut in range(21)])
    assert apart(parted, 10, 0) == [(0, 2), (2, 9), (9, 19), (19, 20)]
