import math

import pytest

from ldt.metrics import source_overlap
from ldt.metrics.source_overlap import SourceText, figures, names, numbers, words

TEXT = "IN PARIS, on 3 May 2019, the court heard 1,200 witnesses. Ms Smith spoke of grain."


def of(text, *summaries):
    """The figures of summaries of one text together."""
    counts = [SourceText(text).counts(summary) for summary in summaries]
    total = {name: 100 * sum(each[name] for each in counts) / len(counts) for name in counts[0]}
    return figures(total)


def test_words_are_letters_where_there_is_no_space():
    assert words("Don't go — to 3.5 Übungen") == ["don", "t", "go", "to", "3", "5", "übungen"]
    assert words("東京 に行く") == ["東", "京", "に", "行", "く"]


def test_numbers_lose_the_commas_of_thousands():
    assert numbers("1,200 and 1,200,000.50, 3.5% of 12,5 in COVID-19") == [
        *("1200", "1200000.50", "3.5", "12,5", "19")
    ]


def test_names_are_capitalised_words_inside_of_sentences():
    text = "The Court met in Paris. Smith, A. and McDonald came.\nThey left Rome"
    assert names(text) == ["court", "paris", "mcdonald", "rome"]


def test_figures_by_hand():
    summary = "The court met in Paris in 2019. Ms Brown heard 1200 witnesses and 7 more."
    # Numbers 2019, 1200, 7; names Paris, Brown ("The" and "Ms" begin sentences).
    # Words: the court met in paris in 2019 ms brown heard 1200 witnesses and 7 more: 15. Of
    # the source: in paris on 3 may 2019 the court heard 1 200 witnesses ms smith spoke of grain.
    # New are met, brown, 1200, and, 7, more: 6. Of 14 bigrams all but "the court", "in paris",
    # and of 13 and 12 longer ones all. The longest run is one of these two bigrams.
    found = of(TEXT, summary)
    assert found == pytest.approx(
        {
            "numbers_in_source": 200 / 3,
            "names_in_source": 50,
            "novel_1grams": 100 * 6 / 15,
            "novel_2grams": 100 * 12 / 14,
            "novel_3grams": 100,
            "novel_4grams": 100,
            "longest_copied_run": 2,
            "repeated_4grams": 0,
        }
    )


def test_shares_are_of_all_summaries_together():
    # 1 of 2 numbers, 0 of 1; names none. The runs are 2 and 0 words long.
    found = of("a b 1", "a b 2 1", "3")
    assert found["numbers_in_source"] == pytest.approx(100 / 3)
    assert math.isnan(found["names_in_source"])
    assert found["longest_copied_run"] == 1
    assert found["novel_1grams"] == pytest.approx(100 * 2 / 5)


def test_what_a_summary_says_again_is_repeated():
    # 8 words, 5 4-grams: "a b c d" stands twice.
    assert of("x", "a b c d a b c d")["repeated_4grams"] == pytest.approx(100 / 5)
    assert math.isnan(of("x", "a b c")["repeated_4grams"])


@pytest.mark.parametrize(
    ("summary", "longest"),
    [("", 0), ("b", 1), ("xa b", 1), ("a b c", 3), ("c b c d x b", 3), ("d a b c d", 4)],
)
def test_the_longest_run_is_of_whole_words(summary, longest):
    assert SourceText("a b c d").longest_run(summary.split()) == longest
    assert SourceText("ab cd").longest_run(["b", "c"]) == 0


def test_an_empty_summary_has_no_shares():
    found = of(TEXT, "")
    assert found.pop("longest_copied_run") == 0
    assert all(map(math.isnan, found.values()))
    assert len(found) == 3 + len(source_overlap.NOVEL)
