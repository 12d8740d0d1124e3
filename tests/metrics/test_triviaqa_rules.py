import pytest

from ldt.metrics.rules import triviaqa


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
    assert triviaqa.score(prediction, golds) == pytest.approx(score)


def test_triviaqa_names_are_aliases_and_what_people_answered():
    answer = {"NormalizedAliases": ["foo bar"], "Aliases": ["never read"]}
    assert triviaqa.names(answer) == ["foo bar"]
    assert triviaqa.names(answer | {"HumanAnswers": ["The Foo_Bar's"]}) == ["foo bar", "foo bar s"]


def test_a_question_without_a_name_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="empty"):
        triviaqa.score("a", [])
