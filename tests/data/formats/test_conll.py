import bz2

import pytest

from ldt.data.formats import read
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

    def conll(content):
        file = tmp_path / "dev.conll"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return list(read(str(file), DataSection(format="conll")))

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


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        list(read(str(tmp_path / "x"), DataSection(format="conll")))
