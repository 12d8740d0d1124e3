import bz2

import pytest

from ldt.benchmarks.formats import read
from ldt.errors import DataError, UserError
from ldt.recipe.recipe import DataSection

TWO_DOCUMENTS = """\
-DOCSTART- -X- -X- O

EU NNP I-NP B-ORG
rejects VBZ I-VP O

Peter NNP I-NP B-PER

-DOCSTART- -X- -X- O

Rome NNP I-NP B-LOC
"""


@pytest.fixture
def conll(tmp_path):
    """Reads text or bytes as a CoNLL file."""

    def conll(content, **options):
        file = tmp_path / "dev.conll"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return list(read(str(file), DataSection(format="conll", **options)))

    return conll


def test_documents_lie_between_their_marks(conll):
    first, second = conll(TWO_DOCUMENTS)
    assert first.fields == {
        "tokens": [["EU", "rejects"], ["Peter"]],
        "tags": [["B-ORG", "O"], ["B-PER"]],
    }
    assert second.fields == {"tokens": [["Rome"]], "tags": [["B-LOC"]]}
    assert [first.id, second.id] == [1, 2]
    assert [first.where.rpartition(":")[2], second.where.rpartition(":")[2]] == ["1", "8"]


def test_without_marks_each_sentence_is_a_document(conll):
    found = conll("\n\na O\nb B-X\n\n\n \nc O")
    assert [item.fields["tokens"] for item in found] == [[["a", "b"]], [["c"]]]
    assert [item.id for item in found] == [1, 2]
    assert [item.where.rpartition(":")[2] for item in found] == ["3", "8"]


def test_an_empty_document_keeps_its_number(conll):
    found = conll("-DOCSTART- O\n-DOCSTART- O\n\na O\n\n-DOCSTART- O\n")
    assert [item.fields["tokens"] for item in found] == [[], [["a"]], []]
    assert [item.id for item in found] == [1, 2, 3]


def test_words_without_tags_are_read(conll):
    (found,) = conll("EU\nrejects\n")
    assert found.fields == {"tokens": [["EU", "rejects"]]}


def test_a_file_of_any_kind_of_text_loses_nothing(conll):
    lines = "\ufeffNew York\tB-L\r\na\u00a0b\tO\n\u2028\tO\nשלום\tO\r\n👩‍👧\tO\n"
    (found,) = conll(lines)
    assert found.fields["tokens"] == [["New York", "a\u00a0b", "\u2028", "שלום", "👩‍👧"]]
    (packed,) = conll(bz2.compress(b"EU  NNP \tB-ORG\n"))
    assert packed.fields == {"tokens": [["EU  NNP"]], "tags": [["B-ORG"]]}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("a O\nb\n", "dev.conll:2: columns: 1, in the lines before 2"),
        ("a O\n\n-DOCSTART- O\n\nb O\n", "dev.conll:3: -DOCSTART-, but the file does not begin"),
        (
            b"a O\nb\xff O\n",
            "dev.conll:2: not UTF-8: byte 0xff at byte offset 5",
        ),
        (bz2.compress(b"a O\n" * 99)[:40], "dev.conll:1: the bz2 data are damaged or cut off"),
    ],
)
def test_a_damaged_file_is_told_by_its_line(conll, content, what):
    with pytest.raises(DataError) as error:
        conll(content)
    assert what in str(error.value)


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("# id 4\tdomain=en\nthe _ _ O\n\n# id 5\tdomain=en\ncat _ _ B-A\n", ["the", "cat"]),
        ("# id 4\tdomain=en\nthe O\n\n# id 5\tdomain=en\ncat B-A\n", ["the", "cat"]),
        ("#begin document (x); part 0\na x O\n\nb x O\n\n#end document\n", ["a", "b"]),
        ("-DOCSTART- O\n\n# text = a b\na\tO\nb\tO\n", ["a b"]),
        ("# O\n5 O\n\n# B-A\n\nx O\n", ["# 5", "#", "x"]),  # words
        ("a O\n# O\n", ["a #"]),
        ("#hash\ntag\n", ["#hash tag"]),
    ],
)
def test_comments_before_a_sentence_are_none_of_its_words(conll, content, tokens):
    words = [
        " ".join(word for part in item.fields["tokens"] for word in part) for item in conll(content)
    ]
    assert words == tokens


UNIVERSAL = """\
# sent_id = 1
1-2\tvámonos\t_\t_
1\tvamos\tVERB\tO
2\tnos\tPRON\tB-A
2.1\tya\tADV\t_

# sent_id = 2
1\tal\tX\tI-A
"""


def test_a_column_that_numbers_the_words_is_none_of_them(conll, caplog):
    caplog.set_level("INFO", "ldt")
    first, second = conll(UNIVERSAL)
    assert first.fields == {"tokens": [["vamos", "nos"]], "tags": [["O", "B-A"]]}
    assert second.fields == {"tokens": [["al"]], "tags": [["I-A"]]}
    assert (
        "words in column 2, column 1 counts them, tags in column 4 of 4; data.fields" in caplog.text
    )
    fields = {"tokens": 1, "tags": 3}
    assert conll("1\ta\tO\n2\tb\tO\n", fields=fields)[0].fields == {
        "1": [["1", "2"]],
        "3": [["O", "O"]],
    }
    with pytest.raises(
        DataError, match="data.fields.tags: expected the number of a column, 1 to 2"
    ):
        conll("a O\n", fields={"tags": "ner"})


@pytest.mark.parametrize(
    "content",
    ["1 O\n2 O\n", "1 a O\n2 b O\n\nc d O\n", "1 a O\n\n2 a O\n", "5 a O\n6 b O\n"],
)
def test_numbers_that_count_no_words_are_words(conll, content):
    assert conll(content)[0].fields["tokens"][0][0] in ("1", "5")


def test_a_sentence_that_is_not_counted_like_those_before_is_told(conll):
    with pytest.raises(DataError, match=r"dev.conll:\d+: column 1 counts .*data.fields.tokens=1"):
        conll("1 a O\n2 b O\n\n" * 30 + "x y O\n")


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        list(read(str(tmp_path / "x"), DataSection(format="conll")))
