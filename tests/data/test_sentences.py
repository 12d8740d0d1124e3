import pytest

from ldt.data.sentences import LONGEST, UNITS, bare, paragraphs, sentences, together, trimmed


def parted(text):
    return [text[start:end] for start, end in sentences(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One is here. Two is there! Three?", ["One is here.", "Two is there!", "Three?"]),
        ("Mr. Smith met Dr. Jones. They left.", ["Mr. Smith met Dr. Jones.", "They left."]),
        ("J. R. Smith signed. All agreed.", ["J. R. Smith signed.", "All agreed."]),
        ("See Sec. 4 and No. 5. It ends.", ["See Sec. 4 and No. 5.", "It ends."]),
        ("It costs 3.50 dollars. Pay now.", ["It costs 3.50 dollars.", "Pay now."]),
        ("Acme Inc. shall pay. It did.", ["Acme Inc. shall pay.", "It did."]),
        ('He said "No." Then he left.', ['He said "No."', "Then he left."]),
        ("1. Term. This lasts.", ["1. Term.", "This lasts."]),
        ("2.3. The fee is due. (a) It is.", ["2.3. The fee is due.", "(a) It is."]),
        ("The fees:\n(a) one;\n(b) two.", ["The fees:", "(a) one;", "(b) two."]),
        ("a line\nthat goes on. End", ["a line\nthat goes on.", "End"]),
        ("A TITLE\r\n\r\nThe text.\r\n  \r\nMore", ["A TITLE", "The text.", "More"]),
        ("a line\r\nthat goes on. End\rof it", ["a line\r\nthat goes on.", "End\rof it"]),
        ("今天下雨。我们走吧！好吗？", ["今天下雨。", "我们走吧！", "好吗？"]),
        ("彼は「はい。」と言った。終わり", ["彼は「はい。」", "と言った。", "終わり"]),
        ("यह पहला है। यह दूसरा है।", ["यह पहला है।", "यह दूसरा है।"]),
        ("Fine 😀! Cafe\u0301 au lait. Ok", ["Fine 😀!", "Cafe\u0301 au lait.", "Ok"]),
        ("Gemäß Abs. 3 gilt z.B. Folgendes. Ende", ["Gemäß Abs. 3 gilt z.B. Folgendes.", "Ende"]),
        (" \r\n ", []),
        ("", []),
    ],
)
def test_sentences_are_those_of_a_reader(text, expected):
    assert parted(text) == expected


def test_no_word_is_lost_and_long_ones_are_cut():
    text = "word " * 3000 + "end. " + "x" * 5000
    parts = parted(text)
    assert "".join(text.split()) == "".join("".join(parts).split())
    assert all(0 < len(part) <= LONGEST for part in parts)
    assert all(part.startswith("word") for part in parts[:3])


CONTRACT = (
    'ARTICLE I\r\nDefinitions. "Fee" means 😀 the fee\r\nof Sec. 4.\r\n\r\n'
    "The cafe\u0301 shall pay. It did.\r\n2.1. Notice. By post;\r\n(a) one;\r\n(b) two.\f"
    "Page 2. It ends.\u2029Last one. Really."
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One is. Two is!\nStill the first.\n\n\nThe next.", [(0, 32), (35, 44)]),
        ("  \n \t\nOne.\n \n Two. ", [(6, 10), (14, 18)]),
        ("彼は。\n\u3000次の段落。続く。\n第2条 支払い。", [(0, 3), (5, 13), (14, 22)]),
        ("一方。\n（二）另一方。\n三、完。", [(0, 3), (4, 11), (12, 16)]),
        ("제1조 목적.\n제2조 정의. 끝.", [(0, 7), (8, 18)]),
        ("Zweck.\nArtikel 2 Dauer. Ende.", [(0, 6), (7, 29)]),
        ("", []),
        (" \r\n ", []),
    ],
)
def test_paragraphs_stand_between_blank_lines_and_the_numbers_of_clauses(text, expected):
    assert paragraphs(text) == expected


def test_paragraphs_have_their_characters_whatever_ends_a_line():
    found = [CONTRACT[a:b] for a, b in paragraphs(CONTRACT)]
    assert found == [
        'ARTICLE I\r\nDefinitions. "Fee" means 😀 the fee\r\nof Sec. 4.',
        "The cafe\u0301 shall pay. It did.",
        "2.1. Notice. By post;",
        "(a) one;",
        "(b) two.",
        "Page 2. It ends.",
        "Last one. Really.",
    ]


def test_a_long_paragraph_is_cut_between_sentences_as_late_as_it_can():
    text = "A sentence of a long paragraph. " * 200
    spans = paragraphs(text)
    length = len("A sentence of a long paragraph. ")
    assert {b - a for a, b in spans[:-1]} == {LONGEST // length * length - 1}
    borders = {end for _, end in sentences(text)}
    assert all(b in borders and b - a <= LONGEST for a, b in spans)
    assert [*together([(0, 1500), (1501, 2000), (2001, 2002)])] == [(0, 2000), (2001, 2002)]
    assert [*together([])] == []


@pytest.mark.parametrize("unit", UNITS)
def test_every_character_that_is_no_white_space_is_in_one_passage(unit):
    text = CONTRACT + "x" * 5000 + "。\u3000今日。\n\n" + "word " * 3000
    inside = [place for a, b in UNITS[unit](text) for place in range(a, b)]
    assert inside == sorted(set(inside))
    assert {n for n, sign in enumerate(text) if not sign.isspace()} <= set(inside)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\ufeff\u200f acme\u200e\u061c", "acme"),
        ("\x00\u2068acme fee\u2069\u2060\xad", "acme fee"),
        ("می\u200cخواهم\u200c", "می\u200cخواهم"),  # a joiner inside, and one at the edge
        ("അവന്\u200d", "അവന്\u200d"),  # a joiner behind a mark makes another letter of it
        ("\u0600\u0661", "\u0600\u0661"),  # a control character that is seen
        ("\u200f\u200b\x1f", ""),
    ],
)
def test_characters_that_are_no_part_of_a_word_are_left_out_at_its_edges(text, words):
    assert bare(text) == words
    start, end = trimmed(f"a {text} b", 1, len(text) + 3)
    assert f"a {text} b"[start:end] == words
