import pytest

from ldt.benchmarks import triviaqa
from ldt.tasks.text import mentions


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("The Beatles", "beatles"),
        ("A bridge, an arch and the sea", "bridge arch and sea"),
        ("Theatre of Anna", "theatre of anna"),  # articles are whole words
        ("sunset_blvd", "sunset blvd"),
        ("Foo-Bar", "foo bar"),
        ("can't", "can t"),
        ("‘it’ ´is` so", "it is so"),
        ("“quoted” – text…", "“quoted” – text…"),  # double curly quotes, dashes, dots stay
        ("U.S.A.", "u s"),  # the last letter has become an article
        ("vitamin-a", "vitamin"),
        ("  many \t\n\u00a0 spaces\u202fhere ", "many spaces here"),
        ("ÉCOLE", "école"),
        ("e\u0301", "e\u0301"),  # not composed
        ("İ", "i\u0307"),
        ("中国，日本", "中国，日本"),  # full-width punctuation stays
        ("!?", ""),
        ("the", ""),
        ("", ""),
    ],
)
def test_triviaqa_normalises(text, normalised):
    assert triviaqa.normalise(text) == normalised


@pytest.mark.parametrize(
    ("prediction", "golds", "score"),
    [
        ("The Sunset Boulevard!", ["sunset boulevard"], (1, 1.0)),
        ("sunset", ["sunset boulevard"], (0, 2 / 3)),
        ("sunset", ["sunset boulevard", "sunset blvd show", "sunset"], (1, 1.0)),
        ("sunset sunset", ["sunset boulevard"], (0, 1 / 2)),  # a word counts as often as it stands
        ("sunset sunset", ["sunset sunset strip"], (0, 4 / 5)),
        ("Foo-Bar", ["foo bar"], (1, 1.0)),
        ("foobar", ["foo bar"], (0, 0.0)),
        ("", ["foo"], (0, 0.0)),
        ("the", ["foo", ""], (1, 0.0)),  # both empty: the same, but no word in common
        ("Foo", ["The Foo"], (1, 1.0)),  # gold names are normalised too
    ],
)
def test_triviaqa_takes_the_best_over_all_names(prediction, golds, score):
    assert triviaqa.match(prediction, golds) == pytest.approx(score)


def test_a_question_without_a_name_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="empty"):
        triviaqa.match("a", [])


def test_what_people_answered_is_found_and_scored_as_if_it_were_normalised():
    for name in ("The Foo_Bar's", "U.S.A.", "‘A’ vitamin-a", "İzmir", "中国，日本"):
        plain = triviaqa.normalise(name)
        for text in (f"so it is {name}!", plain, f"of the {name} and {plain}"):
            assert mentions(text, [name]) == mentions(text, [plain])
            assert triviaqa.match(text, [name]) == triviaqa.match(text, [plain])
