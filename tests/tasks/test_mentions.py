import pytest

from ldt.tasks.mentions import mentions


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
