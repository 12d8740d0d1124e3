import random

import pytest

from ldt.tasks.text.mentions import _words, mentions


def found(text, *names):
    places = mentions(text, names)
    assert places == sorted(set(places))
    return [text[start:end] for start, end in places]


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        (
            "Foo-Bar, foo_bar; FOO\r\nbar and foobar",
            ["foo bar"],
            ["Foo-Bar", "foo_bar", "FOO\r\nbar"],
        ),
        ("York, Yorkshire, New York's, (York)", ["york"], ["York"] * 3),
        ("the “York” of ‘York’ and «York» — York…", ["york"], ["York"] * 4),
        ("O'Brien, O’Brien, O´Brien", ["o brien"], ["O'Brien", "O’Brien", "O´Brien"]),
        ("The Lord of the Rings; lord, rings", ["lord of rings"], ["Lord of the Rings"]),
        ("by The Beatles", ["The Beatles"], ["Beatles"]),
        ("New York City", ["york", "york city"], ["York", "York City"]),
        ("Cafe\u0301 or Café", ["café"], ["Cafe\u0301", "Café"]),
        ("🎉York🎉 ok", ["york", "🎉"], ["🎉", "York", "🎉"]),
        ("at 1,000.5 or 1000", ["1 000 5"], ["1,000.5"]),
        ("北京是中国的首都。", ["中国"], ["中国"]),
        ("هو في القاهرة، مصر", ["القاهرة"], ["القاهرة"]),
        ("नई दिल्ली में", ["दिल्ली"], ["दिल्ली"]),
        ("İstanbul", ["İstanbul"], ["İstanbul"]),
        ("aa a the an b", ["the a", "...", "", "c"], []),
        ("", ["a b"], []),
    ],
)
def test_names_are_found_word_by_word(text, names, expected):
    assert found(text, *names) == expected


def by_definition(text, names):
    """Every word of the text compared with every name."""
    words = list(_words(text, 0))
    places = set()
    for name in names:
        spelt = [word for word, _, _ in _words(name, 0)]
        for first in range(len(words) - len(spelt) + 1 if spelt else 0):
            part = words[first : first + len(spelt)]
            if [word for word, _, _ in part] == spelt:
                places.add((part[0][1], part[-1][2]))
    return sorted(places)


def test_looking_for_letters_finds_what_comparing_every_word_finds():
    rng = random.Random(0)
    pieces = [
        "york",
        "York",
        "New",
        "the ",
        "a",
        " ",
        "-",
        "“",
        "é",
        "e\u0301",
        "🎉",
        "中",
        "国",
        "İ",
    ]
    pieces += ["\r\n", "_", "'s", "1", ",", "दिल्ली", "ा", "\u200d"]
    total = 0
    for _ in range(1000):
        text = "".join(rng.choices(pieces, k=rng.randrange(1, 40)))
        names = ["".join(rng.choices(pieces, k=rng.randrange(1, 4))) for _ in range(3)]
        places = mentions(text, names)
        assert places == by_definition(text, names), (text, names)
        total += len(places)
    assert total > 500
