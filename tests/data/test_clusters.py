"""Documents with clusters: each JSON layout read, and what is faulty in one refused."""

import json

import pytest

from ldt.data import clusters
from ldt.errors import DataError
from ldt.io import records
from ldt.io.records import Example

SENTENCES = [["Ann", "saw", "her", "😀"], ["She", "left"]]
WORDS = {"sentences": SENTENCES}
TEXT = "Ann saw her 😀\r\nShe left"
CLUSTERS = [[(0, 1), (2, 3), (4, 5)], [(3, 4)], [(2, 4)]]
PAIRS = [[[0, 0], [2, 2], [4, 4]], [[3, 3]], [[2, 3]]]
CHARACTERS = [[[0, 3], [8, 11], [14, 17]], [[12, 13]], [[8, 13]]]
TRIPLES = [[[0, 0, 1], [0, 2, 3], [1, 0, 1]], [[0, 3, 4]], [[0, 2, 4]]]
INCLUSIVE = [[[n, a, b - 1] for n, a, b in cluster] for cluster in TRIPLES]
OBJECTS = [[{"start": a, "end": b} for a, b in cluster] for cluster in CHARACTERS]
SAID = [
    {"tokens": [{"text": word} for word in words], "speaker": name}
    for words, name in zip(SENTENCES, ("A", None), strict=True)
]


def document(fields):
    return clusters.read(Example(fields, "d", "f:1"))


@pytest.mark.parametrize(
    "fields",
    [
        WORDS | {"clusters": PAIRS},
        WORDS | {"clusters": OBJECTS},
        WORDS | {"mention_clusters": TRIPLES},
        WORDS | {"coref_chains": INCLUSIVE},
        {"sentences": SAID, "coref_chains": INCLUSIVE},
        {"tokens": sum(SENTENCES, []), "clusters": PAIRS},
        {"text": TEXT.replace("\r\n", "\n"), "clusters": CHARACTERS},
        {"text": TEXT.replace("\r\n", "\n"), "clusters": OBJECTS},
    ],
)
def test_the_layouts_say_the_same(fields):
    read = document(fields)
    assert read.clusters == CLUSTERS
    assert read.characters() == [[(a, b) for a, b in cluster] for cluster in CHARACTERS]
    assert [read.text[a:b] for a, b in read.words] == sum(SENTENCES, [])
    assert read.sentences == ([(0, 4), (4, 6)] if "sentences" in fields else [])
    assert read.pretokenized is ("text" not in fields)


def test_a_line_end_of_two_characters_counts_two():
    moved = [[[a + (a > 13), b + (a > 13)] for a, b in cluster] for cluster in CHARACTERS]
    assert document({"text": TEXT, "clusters": moved}).clusters == CLUSTERS


def test_a_mention_has_the_words_that_it_has_a_part_of_and_counts_where_it_stands_first():
    read = document({"text": "Annabel saw her", "clusters": [[[0, 3], [0, 7]], [[2, 9], [1, 2]]]})
    assert read.clusters == [[(0, 1)], [(0, 2)]]


@pytest.mark.parametrize(
    ("speakers", "expected"),
    [
        ([["a", "a", None, "b"], ["c", ""]], ["a", "a", "", "b", "c", ""]),
        (["a", "a", None, "b", "c", ""], ["a", "a", "", "b", "c", ""]),
        (["a", "b"], ["a"] * 4 + ["b"] * 2),
        (None, None),
    ],
)
def test_speakers_are_of_words_or_of_sentences(speakers, expected):
    assert document(WORDS | {"speakers": speakers}).speakers == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"clusters": PAIRS}, "no field 'text'"),
        ({"sentences": [["a"], "b"]}, "field 'sentences': 'b', expected a list of words"),
        (WORDS | {"clusters": [[0, 1]]}, "0, expected [start, end] of a mention"),
        (WORDS | {"clusters": {}}, "an object, empty, expected a list of lists of mentions"),
        (WORDS | {"clusters": [[[5, 6]]]}, "a mention from word 5 to 6; there are 6, from 0"),
        (WORDS | {"clusters": [[[2, 1]]]}, "a mention from word 2 to 1"),
        (WORDS | {"clusters": [[[0, 0, 0]]]}, "a list of 3, expected [start, end]"),
        (WORDS | {"coref_chains": [[[2, 0, 0]]]}, "a mention of sentence 2; the document has 2"),
        (WORDS | {"mention_clusters": [[[1, 1, 3]]]}, "a mention from word 1 to 3; there are 2"),
        ({"text": "a b", "clusters": [[[1, 2]]]}, "no word from character 1 to 2 of 3"),
        ({"text": "a b", "clusters": [[[2, 4]]]}, "no word from character 2 to 4 of 3"),
        (WORDS | {"speakers": ["a"] * 3}, "3 speakers of 6 words; each word has one"),
    ],
)
def test_a_fault_is_told_with_its_place(fields, message):
    with pytest.raises(DataError) as error:
        document(fields)
    assert str(error.value).startswith("f:1: ")
    assert message in str(error.value)


@pytest.mark.parametrize("layout", ["s2e", "preco", "coref-data"])
def test_what_is_written_is_read_again(layout, tmp_path):
    read = document(WORDS | {"clusters": PAIRS, "speakers": [["a"] * 4, ["b"] * 2]})
    file = tmp_path / "lines"
    file.write_text("".join(json.dumps(x) + "\n" for x in clusters.json_lines([read], layout)))
    (example,) = records.read(file)
    again = clusters.read(example)
    assert again.id == "d"
    if layout == "preco":  # which has no speakers
        read.speakers = None
    assert again == read


def test_a_raw_text_is_written_with_its_characters():
    read = document({"text": TEXT, "clusters": [[[0, 3], [8, 11]]]})
    (line,) = clusters.json_lines([read])
    assert line == {"doc_key": "d", "text": TEXT, "clusters": [[[0, 3], [8, 11]]]}


def test_a_mention_over_the_end_of_a_sentence_has_no_triple():
    read = document(WORDS | {"clusters": [[[3, 4]]]})
    assert document(next(clusters.json_lines([read]))).clusters == [[(3, 5)]]
    with pytest.raises(DataError, match="d: the mention from word 3 to 4 stands in two sentences"):
        list(clusters.json_lines([read], "preco"))
