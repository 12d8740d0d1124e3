import pytest
from transformers import AutoTokenizer

from ldt.errors import DataError
from ldt.io.records import Example
from ldt.recipe.recipe import DataSection
from ldt.tasks.text import paragraphs


@pytest.fixture(scope="module")
def tiny(tokenizer_folder):
    return AutoTokenizer.from_pretrained(tokenizer_folder)


EXAMPLE = Example({}, "q", "dev.json: q")


def sized(tiny, *words):
    """Paragraphs with an "a" as title and so many single-token words in each sentence."""
    context = [("a", [" a" * n for n in counts]) for counts in words]
    return paragraphs.encode(context, tiny)


def shape(parts):
    return [[(p.number, [len(ids) for _, ids, _ in p.sentences]) for p in part] for part in parts]


def test_titles_and_sentences_are_tokenized_with_a_space_in_front(tiny):
    context = [(" The party ", ["the party", " agrees ", ""])]
    (found,) = paragraphs.encode(context, tiny)
    assert tiny.decode(found.title) == " The party"
    for (place, ids, offsets), said in zip(found.sentences, context[0][1], strict=True):
        assert tiny.decode(ids).strip() == said.strip()
        assert "".join(said[a:b] for a, b in offsets) == "".join(said.split())
        assert context[0][1][place] == said
    inside = tiny("x the", add_special_tokens=False)["input_ids"]
    assert found.sentences[0][1][: len(inside) - 1] == inside[1:]
    assert found.size == 3 + len(found.title) + sum(len(ids) + 1 for _, ids, _ in found.sentences)


def test_all_that_fits_is_one_part(tiny):
    read = sized(tiny, [2, 3], [4])
    total = sum(paragraph.size for paragraph in read)
    assert (total, [p.size for p in read]) == (20, [11, 9])
    assert paragraphs.chunks(read, 20, EXAMPLE, DataSection()) == ([read], {})
    assert shape(paragraphs.chunks(read, 19, EXAMPLE, DataSection())[0]) == [
        [(0, [2, 3])],
        [(1, [4])],
    ]


def test_parts_hold_whole_paragraphs_in_order(tiny):
    read = sized(tiny, [2], [2], [9], [2], [2])  # 7, 7, 14, 7, 7
    parts, flags = paragraphs.chunks(read, 15, EXAMPLE, DataSection())
    assert [[p.number for p in part] for part in parts] == [[0, 1], [2], [3, 4]]
    assert flags == {}
    parts, flags = paragraphs.chunks(read, 15, EXAMPLE, DataSection(max_windows=2))
    assert ([[p.number for p in part] for part in parts], flags) == (
        [[0, 1], [2]],
        {"truncated": True, "unread_tokens": 14},
    )
    parts, flags = paragraphs.chunks(read, 15, EXAMPLE, DataSection(overflow="truncate"))
    assert ([[p.number for p in part] for part in parts], flags) == (
        [[0, 1]],
        {"truncated": True, "unread_tokens": 28},
    )
    with pytest.raises(
        DataError, match="dev.json: q: the paragraphs of 'q' have 42 tokens, 15 fit"
    ):
        paragraphs.chunks(read, 15, EXAMPLE, DataSection(overflow="error"))


def test_a_paragraph_that_is_too_long_alone_loses_its_end(tiny):
    read = sized(tiny, [2], [3, 9, 1], [2])
    parts, flags = paragraphs.chunks(read, 12, EXAMPLE, DataSection())
    assert shape(parts) == [[(0, [2])], [(1, [3, 3])], [(2, [2])]]
    assert flags == {"truncated": True, "unread_tokens": 8}
    assert all(sum(p.size for p in part) <= 12 for part in parts)
    assert [(place, len(offsets)) for place, _, offsets in parts[1][0].sentences] == [
        (0, 3),
        (1, 3),
    ]


@pytest.mark.parametrize("room", range(paragraphs.LEAST, 20))
def test_a_paragraph_of_any_kind_fits_the_least_room_and_keeps_a_token(tiny, room):
    context = [("a " * 30, ["a " * 30, ""]), ("", ["a " * 30]), ("a", ["", "a " * 30])]
    for paragraph in paragraphs.encode(context, tiny):
        paragraph.cut(room)
        assert paragraph.size <= room
        assert paragraph.sentences


def test_a_context_is_titles_and_sentences():
    item = Example({"context": [["A", ["x."]], ["B", []]]}, 1, "f:1")
    assert paragraphs.read(item, "context") == [("A", ["x."]), ("B", [])]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("text", "field 'context' is text, expected a list"),
        ([["A"]], "field 'context': ['A'], expected [title, list of sentences]"),
        ([["A", "x."]], "field 'context': ['A', 'x.'], expected [title, list of sentences]"),
        ([["A", [None]]], "field 'context': ['A', [None]], expected"),
        ([[1, []]], "field 'context': [1, []], expected"),
        ([], "field 'context': there is not a word in its sentences"),
        ([["A", [" ", ""]]], "field 'context': there is not a word in its sentences"),
    ],
)
def test_a_context_of_another_form_is_told(value, what):
    with pytest.raises(DataError) as error:
        paragraphs.read(Example({"context": value}, 1, "f:1"), "context")
    assert str(error.value).startswith(f"f:1: {what}")
