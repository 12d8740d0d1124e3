import pytest

from ldt.metrics import entities as conll
from ldt.metrics.entities import Entity

# Tags, and what conlleval counts as entities in them.
CASES = [
    ("O O", []),
    ("B-A I-A O B-A", [(0, 2, "A"), (3, 4, "A")]),
    ("B-A B-A", [(0, 1, "A"), (1, 2, "A")]),
    ("I-A I-A", [(0, 2, "A")]),  # IOB1: I begins where nothing of its type went before
    ("O I-A O I-A", [(1, 2, "A"), (3, 4, "A")]),
    ("I-A B-A", [(0, 1, "A"), (1, 2, "A")]),  # IOB1: B parts two neighbours
    ("B-A I-B I-B", [(0, 1, "A"), (1, 3, "B")]),
    ("B-A O I-A", [(0, 1, "A"), (2, 3, "A")]),
    ("B-a-b I-a-b", [(0, 2, "a-b")]),  # all behind the first hyphen is the type
    ("B-A I-A E-A S-B O", [(0, 3, "A"), (3, 4, "B")]),  # IOBES
    ("B-A L-A U-A U-A", [(0, 2, "A"), (2, 3, "A"), (3, 4, "A")]),  # BILOU
    ("B-A M-A E-A W-A", [(0, 3, "A"), (3, 4, "A")]),  # BMES and BMEW
    ("E-A I-A S-A I-A", [(0, 1, "A"), (1, 2, "A"), (2, 3, "A"), (3, 4, "A")]),  # ends at E and S
    ("", []),
]


@pytest.mark.parametrize(("tags", "found"), CASES, ids=[tags for tags, _ in CASES])
def test_entities_are_those_of_conlleval(tags, found):
    assert conll.entities(tags.split()) == found


@pytest.mark.parametrize("tag", ["", "B", "I-", "B-", "X-A", "ES-A", "A", "o", "0"])
def test_another_tag_is_refused(tag):
    with pytest.raises(ValueError, match="is no tag; O, B-type and I-type are"):
        conll.entities(["O", tag])


def test_tags_are_iob2_and_end_with_the_words():
    tags = conll.tags_of([Entity(0, 2, "A"), Entity(2, 3, "A"), Entity(4, 9, "B")], 6)
    assert tags == ["B-A", "I-A", "B-A", "O", "B-B", "I-B"]
