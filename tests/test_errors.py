"""Words for messages."""

from collections import Counter

import pytest

from ldt.errors import counted, first_line, kind, listed, plural, quote, without_controls


def test_a_number_and_its_noun():
    assert [plural(n, "answer") for n in (0, 1, 1200)] == ["0 answers", "1 answer", "1,200 answers"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (17, "17"),
        (0.5, "0.5"),
        ("it's", '"it\'s"'),
        ([], "a list, empty"),
        ([1, 2], "a list of 2"),
        ({"a": 1}, "an object of 1 key"),
    ],
)
def test_a_value_as_it_is_named(value, text):
    assert quote(value) == text


def test_a_long_value_is_cut():
    assert len(quote("x" * 1000)) <= 60
    assert len(quote(10**100)) <= 60


def test_kinds_of_json():
    assert [kind(value) for value in (None, False, 1, 1.5, "", [], {}, b"")] == [
        *("null", "false", "a number", "a number", "text", "a list", "an object", "a bytes")
    ]


def test_names_are_listed_up_to_a_number():
    assert listed(["a", "b"]) == "'a', 'b'"
    assert listed("abcdef", 2) == "'a', 'b' and 4 more"
    assert listed(["x.y", "z"], 1, str) == "x.y and 1 more"
    assert listed([]) == "none"


def test_counts_are_listed_from_the_most_frequent_on():
    counts = Counter({"cap": 1200, "no cap": 1500}) + Counter("abcdefghijklmnopqrstuvwxyz")
    text = counted(counts)
    assert text.startswith("no cap 1,500, cap 1,200, a 1, ")
    assert text.endswith(", r 1 and 8 more")
    assert counted(Counter("aab")) == "a 2, b 1"


def test_the_first_line_of_an_error_is_never_empty():
    assert first_line(ValueError("\n one\ntwo")) == "one"
    assert first_line(KeyError()) == "KeyError"


def test_what_a_terminal_would_obey_is_left_out():
    assert without_controls("\x1b[31mred\x1b[0m \u202etxt\x07\tend") == "red txt\tend"
