import pytest

from ldt.tasks.text.sentences import LONGEST, sentences


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
