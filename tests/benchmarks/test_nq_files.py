"""Natural Questions: both layouts as examples, offsets that hold, and bad lines."""

import gzip

import pytest
from passages_made import NULL, changed, nq, simplified, write

from ldt.benchmarks import evaluate
from ldt.benchmarks import nq as layout
from ldt.benchmarks.formats import read
from ldt.data.options import DataSection
from ldt.errors import DataError, UserError

# By hand: <P> é😀 b\u180ec </P> <Table> <Tr> d </Tr> </Table> <Ul> <Li> é f </Li> </Ul> <Tr> </Tr>
#           0  1    2      3     4      5  6   7      8      9   10  11 12  13   14   15    16
# Words: 1 2 6 11 12. In characters of the context é😀 is 0 to 2, b\u180ec 3 to 6, d 7 to 8, e with
# its combining mark 9 to 11, f 12 to 13.
TOKENS = (
    "<P> é😀 b\u180ec </P> <Table> <Tr> d </Tr> </Table> <Ul> <Li> e\u0301 f </Li> </Ul> <Tr> </Tr>"
).split(" ")
CANDIDATES = [(0, 4), (4, 9), (5, 8), (9, 15), (15, 17)]
ANSWERS = [(0, (1, 2), (2, 3)), (3, (11, 13)), (None,), "YES"]
LINE = nq(-(2**63), TOKENS, CANDIDATES, ANSWERS)


def one(path, *lines):
    (example,) = read(write(path, *lines), DataSection(format="nq"))
    return example


@pytest.mark.parametrize("made", [LINE, simplified(LINE)])
def test_a_page_is_its_words_and_candidates_are_characters_of_it(made, tmp_path):
    example = one(tmp_path / "nq.jsonl", made)
    context = example.fields["context"]
    assert example.id == -(2**63)
    assert isinstance(example.id, int)
    assert context == "é😀 b\u180ec d e\u0301 f"
    assert all(c["start"] <= c["end"] for c in example.fields["candidates"])
    found = [(c["type"], context[c["start"] : c["end"]]) for c in example.fields["candidates"]]
    assert found == [
        ("paragraph", "é😀 b\u180ec"),
        ("table", "d"),
        ("other", "d"),
        ("list", "e\u0301 f"),
        ("other", ""),  # tags alone
    ]
    annotations = [(a["passage"], a["spans"], a["yes_no"]) for a in example.fields["annotations"]]
    assert annotations == [
        (0, [[0, 2], [3, 6]], None),
        (3, [[9, 13]], None),
        (None, [], None),
        (0, [], "yes"),
    ]


def test_simplified_text_is_split_at_the_single_blank_and_at_no_other_white_space(tmp_path):
    made = simplified(nq(1, ["<P>", "a\u180eb", "c\u00a0d\u2003e\t", "", "f", "</P>"], [(0, 6)]))
    fields = one(tmp_path / "nq.jsonl", made).fields
    assert fields["tokens"]["number"] == [1, 2, 3, 4]
    assert fields["context"] == "a\u180eb c\u00a0d\u2003e\t  f"


def test_tags_with_attributes_are_tags_in_both_layouts(tmp_path):
    made = nq(1, ["<Table>", '<Th colspan="2">', "a", "</Th>", "<Tb>", "</Table>"], [(0, 6)])
    made["document_tokens"][4]["html_token"] = False  # a word that looks like a tag
    for line in (made, simplified(made)):
        assert one(tmp_path / "nq.jsonl", line).fields["context"] == "a <Tb>"


def test_a_nested_candidate_is_told(tmp_path):
    made = changed(LINE, "long_answer_candidates.2.top_level", False)
    candidates = one(tmp_path / "nq.jsonl", made).fields["candidates"]
    assert [each["top_level"] for each in candidates] == [True, True, False, True, True]


def test_the_original_layout_says_itself_which_tokens_are_tags(tmp_path):
    made = nq(1, ["<P>", "<P>", "b", "</P>"], [(0, 4)])
    made["document_tokens"][1]["html_token"] = False
    assert one(tmp_path / "nq.jsonl", made).fields["context"] == "<P> b"


def test_characters_go_to_bytes_and_tokens_and_back_exactly(tmp_path):
    fields = one(tmp_path / "nq.jsonl", LINE).fields
    html = LINE["document_html"].encode()
    starts, ends = fields["tokens"]["start"], fields["tokens"]["end"]
    for first, start in enumerate(starts):
        for last, end in enumerate(ends[first:], first):
            (place,) = layout.offsets(fields, None, (start, end))["short_answers"]
            numbers = fields["tokens"]["number"][first], fields["tokens"]["number"][last] + 1
            assert (place["start_token"], place["end_token"]) == numbers
            cut = html[place["start_byte"] : place["end_byte"]].decode()
            assert cut.split(" ") == TOKENS[numbers[0] : numbers[1]]
    # A part of a word is the word: of e and its mark, the mark.
    (place,) = layout.offsets(fields, None, (10, 11))["short_answers"]
    assert (place["start_token"], place["end_token"]) == (11, 12)
    # The blanks around a word are of no other word.
    (place,) = layout.offsets(fields, None, (2, 7))["short_answers"]
    assert (place["start_token"], place["end_token"]) == (2, 3)
    bare = one(tmp_path / "nq.jsonl", simplified(LINE)).fields
    (place,) = layout.offsets(bare, None, (3, 8))["short_answers"]
    assert place == {"start_byte": -1, "end_byte": -1, "start_token": 2, "end_token": 7}
    long = layout.offsets(fields, 3, None)
    assert long["short_answers"] == []
    assert long["long_answer"]["end_token"] == 15


def test_both_layouts_of_the_sample_give_the_same_examples(shared_data):
    folder = shared_data / "nq"
    whole = list(read(str(folder / "nq-made-up-train-*"), DataSection(format="nq")))
    bare = list(read(str(folder / "simplified-*"), DataSection(format="nq")))
    assert len(whole) == len(bare) == 120
    for one, other in zip(whole, bare, strict=True):
        assert one.id == other.id
        for name in ("question", "context", "annotations"):
            assert one.fields[name] == other.fields[name]
        for span, bare_span in zip(
            one.fields["candidates"], other.fields["candidates"], strict=True
        ):
            bytes = {"start_byte": -1, "end_byte": -1}
            assert span | bytes == bare_span


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            changed(LINE, "long_answer_candidates.1.end_token", 18),
            "candidate 1: start_token 4, end_token 18; expected 0 <= start < end <= 17, or -1",
        ),
        (
            changed(LINE, "annotations.0.short_answers.0.start_byte", 11),
            "annotation 0: start_byte 11 is inside of a character of the UTF-8",
        ),
        (
            changed(LINE, "annotations.0.long_answer.candidate_index", 5),
            "annotation 0: candidate_index is 5, expected 0 to 4, or -1",
        ),
        (
            changed(LINE, "annotations.0.long_answer.start_token", -1),
            "annotation 0: start_token -1, end_token 4; expected 0 <= start < end <= 17, or -1",
        ),
        (
            changed(LINE, "long_answer_candidates.1", NULL),
            "candidate 1: start_token is -1, expected a token",
        ),
        (
            changed(LINE, "annotations.0.short_answers.0", {"start_byte": 10, "end_byte": 16}),
            "annotation 0: bytes without tokens, expected both",
        ),
        (
            changed(LINE, "annotations.0.yes_no_answer", "MAYBE"),
            "field annotations.0.yes_no_answer: found 'maybe'; input should be 'yes' or 'no'",
        ),
        ({"example_id": 1}, "field long_answer_candidates: found an object of 1 key; field req"),
    ],
)
def test_a_line_that_cannot_be_is_one_line_with_its_place(line, message, tmp_path):
    path = tmp_path / "nq.jsonl"
    with pytest.raises(DataError) as raised:
        list(read(write(path, changed(LINE, "example_id", 7), line), DataSection(format="nq")))
    assert str(raised.value).startswith(f"{path}:2: {message}")
    assert "\n" not in str(raised.value)


def test_an_id_comes_once_over_all_shards_and_a_shard_that_breaks_off_is_named(tmp_path):
    first, second = tmp_path / "nq-00.jsonl", tmp_path / "nq-01.jsonl"
    write(first, changed(LINE, "example_id", 1))
    write(second, changed(LINE, "example_id", 2), changed(LINE, "example_id", 1))
    with pytest.raises(DataError, match="nq-00.jsonl and 1 more: the id '1' stands twice"):
        evaluate(str(tmp_path / "nq-*.jsonl"), str(first), format="nq")
    whole = gzip.compress(first.read_bytes() * 50)
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut.jsonl.gz:\d+: .*cut off"):
        list(read(str(tmp_path / "cut.jsonl.gz"), DataSection(format="nq")))
    second.write_text(first.read_text() + first.read_text()[:200])
    with pytest.raises(DataError, match=r"nq-01.jsonl:2: not JSON: Unterminated string"):
        list(read(str(second), DataSection(format="nq")))
    with pytest.raises(UserError, match=r"nq-9\*: no file has such a name"):
        evaluate(str(tmp_path / "nq-9*"), str(first), format="nq")
