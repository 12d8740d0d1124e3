"""ROUGE beside rouge_score 0.1.2, and the stemmer beside NLTK's."""

import random

import pytest
from nltk.stem.porter import PorterStemmer
from rouge_score.rouge_scorer import RougeScorer

from ldt.metrics import rouge
from ldt.metrics.porter import stem

# Pieces of texts on which implementations part: ties, repetitions, cases, marks, other alphabets.
PIECES = (
    "the the a b of in court run running runs relational nationally skies dying 1,000 3.5 U.S. "
    "e.g. don't für Ünïcode 中文。 москва IİK \u2028 <n> yyyy . ! ? ( —"
).split(" ") + ["\n", "\n\n", "\r\n", " \n ", " ", "\t", ""]
SUFFIXES = (
    "ational tional enci anci izer bli alli fulli entli eli ousli ization ation ator alism iveness "
    "fulness ousness aliti iviti biliti icate ative alize iciti ical ful ness al ance ence er ic "
    "able ible ant ement ment ent ou ism ate iti ous ive ize ion sion tion ed ing eed ied ies s "
    "sses ss y ll e logi at bl iz"
).split()


def expected(target, prediction, stemmer):
    """The figures of the package, of rougeLsum those of the texts as ldt splits them."""
    found = of_the_package(target, prediction, stemmer)
    split = ["\n".join(rouge.parts(text)) for text in (target, prediction)]
    return found | {"rougeLsum": of_the_package(*split, stemmer)["rougeLsum"]}


def of_the_package(target, prediction, stemmer):
    scorer = RougeScorer(list(rouge.NAMES), use_stemmer=stemmer)
    found = scorer.score(target, prediction)
    return {name: value.fmeasure for name, value in found.items()}


def pairs(number):
    """Pairs of texts of few and of many of the pieces, short and long, always the same."""
    chance = random.Random(0)

    def text(pieces):
        between = chance.choice([" ", " ", ". ", "\n"])
        return between.join(chance.choices(pieces, k=chance.choice([0, 2, 8, 8, 20, 20, 40])))

    for _ in range(number):
        pieces = chance.sample(PIECES, chance.randint(5, len(PIECES)))
        yield text(pieces), text(pieces)


@pytest.mark.parametrize("stemmer", [False, True])
def test_scores_are_those_of_the_package(stemmer):
    broken = 0
    for target, prediction in pairs(1000):
        found = rouge.scores(target, prediction, stemmer=stemmer)
        assert found == expected(target, prediction, stemmer), (target, prediction)
        if "\n" in target and "\n" in prediction:
            assert found == of_the_package(target, prediction, stemmer)
            broken += found["rougeL"] != found["rougeLsum"]
    assert broken > 100  # the two figures have parted so often


@pytest.mark.parametrize(
    ("target", "prediction"),
    [
        ("", ""),
        ("a", ""),
        ("\n", "\n\n"),
        ("x" * 5000 + " y", "y " + "x" * 5000),  # a rule cuts what is so long
        ("a b c d\nb a d c\n" * 3, "b a\nd c b a\nc d a b"),  # ties: which subsequence it is
        ("a a a b\nb b a", "a b a\nb a b b"),  # hits count as often as the prediction has them
    ],
)
def test_scores_of_nasty_pairs_are_those_of_the_package(target, prediction):
    for stemmer in (False, True):
        found = rouge.scores(target, prediction, stemmer=stemmer)
        assert found == expected(target, prediction, stemmer)


def test_scores_of_long_summaries_are_those_of_the_package():
    chance = random.Random(0)

    def text(words, line):
        found = [f"w{int(chance.paretovariate(0.7))}" for _ in range(words)]
        return "\n".join(" ".join(found[at : at + line]) for at in range(0, words, line))

    target, prediction = text(1500, 25), text(1200, 18)
    found = rouge.scores(target, prediction)
    assert found == of_the_package(target, prediction, True)
    assert found["rougeLsum"] > found["rougeL"] > 0.2


def test_scores_by_hand():
    target, prediction = "The cat sat.\nThe dog ran away.", "The dog ran.\nThe cat sat down."
    # 7 words each. Shared: the twice, cat, sat, dog, ran: 6. Of 6 bigrams: the cat, cat sat,
    # the dog, dog ran. The longest common subsequence is "the cat sat", 3. Line by line it is
    # "the cat sat" and "the dog ran", 6.
    assert rouge.scores(target, prediction, stemmer=False) == pytest.approx(
        {"rouge1": 6 / 7, "rouge2": 4 / 6, "rougeL": 3 / 7, "rougeLsum": 6 / 7}
    )
    # Without line breaks the sentences are found.
    joined = rouge.scores(target.replace("\n", " "), prediction.replace("\n", " "), stemmer=False)
    assert joined["rougeLsum"] == pytest.approx(6 / 7)
    # Precision 2/2, recall 2/4 and 2/3: F1 2/3. One bigram of 3, and of 1: F1 1/2.
    short = rouge.scores("cats are running home", "running home", stemmer=False)
    assert short == pytest.approx(
        {"rouge1": 2 / 3, "rouge2": 1 / 2, "rougeL": 2 / 3, "rougeLsum": 2 / 3}
    )


def test_the_stemmer_joins_forms_of_a_word():
    assert rouge.scores("elections", "electing", stemmer=True)["rouge1"] == 1
    assert rouge.scores("elections", "electing", stemmer=False)["rouge1"] == 0
    assert rouge.tokens("Ties Tie 12s", stemmer=True) == ["tie", "tie", "12s"]  # of 4 letters on


def test_stems_are_those_of_nltk():
    chance, other = random.Random(0), PorterStemmer()
    words = {*"sky skies dying lying tying news inning innings outing outings canning".split()}
    words |= {
        *"cannings howe proceed exceed succeed feed agreed spied died flies enjoy spy".split()
    }
    words |= {
        *"radically hopefully theology geology falling hissing controlling rate cease".split()
    }
    for _ in range(20_000):
        front = "".join(chance.choices("aeiouybcdlstzwx1", k=chance.randint(0, 6)))
        words.add(front + "".join(chance.choices(SUFFIXES, k=chance.randint(0, 3))))
    words.discard("")
    assert {word: stem(word) for word in words} == {word: other.stem(word) for word in words}


def test_other_alphabets_have_no_tokens():
    assert rouge.tokens("für Москва 中文 2019", stemmer=False) == ["f", "r", "2019"]
    assert rouge.scores("中文摘要", "中文摘要") == dict.fromkeys(rouge.NAMES, 0)
    assert rouge.coverage("中文a2") == 0.5
    assert rouge.coverage("f\u00fcr!") == pytest.approx(2 / 3)
    assert rouge.coverage(" .") == 1
