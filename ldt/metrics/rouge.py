"""ROUGE of a summary: rouge1, rouge2, rougeL and rougeLsum, equal to those of rouge_score 0.1.2.

The package itself is only what the tests compare with: it imports nltk and absl, is built from
source on installation, fills whole tables of texts times texts in Python, and without line breaks
its rougeLsum is silently its rougeL.

Source: Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries", and rouge_score 0.1.2
for what the paper leaves open: tokens, clipped hits of rougeLsum, and which of several longest
common subsequences is taken.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from ldt.data.sentences import sentences
from ldt.metrics.porter import stem
from ldt.metrics.word_overlap import of, overlap

NAMES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
SPLITTER = "lines of a text that has line breaks, else sentences by ldt's rule"
STEMMER = "Porter stemmer of NLTK"
_TOKEN = re.compile("[a-z0-9]+")
_SHORTEST = 4  # letters of a word that is stemmed


def scores(target: str, prediction: str, *, stemmer: bool = True) -> dict[str, float]:
    """Return the F1, from 0 to 1, of each of the `NAMES`; 0 where a text has no token.

    rougeL takes each text as one sequence, rougeLsum its `parts`: of each part of the target the
    tokens that any part of the prediction has in the same order. Both are called ROUGE-L in papers.

    Args:
        target: the reference summary.
        prediction: the summary to score.
        stemmer: whether words of four letters and more are compared by their stems.
    """
    right, found = (tokens(text, stemmer=stemmer) for text in (target, prediction))
    split = [
        [tokens(part, stemmer=stemmer) for part in parts(text)] for text in (target, prediction)
    ]
    return {
        "rouge1": overlap(found, right).f1,
        "rouge2": overlap(list(ngrams(found, 2)), list(ngrams(right, 2))).f1,
        "rougeL": _f1(len(_common(right, found)), len(right), len(found)),
        "rougeLsum": _f1(_union_hits(*split), *(sum(map(len, each)) for each in split)),
    }


def tokens(text: str, *, stemmer: bool) -> list[str]:
    """What ROUGE compares: runs of a to z and 0 to 9 in lower case; all else parts them.

    So "für" is two tokens, and text in another alphabet has none.
    """
    found = _TOKEN.findall(text.lower())
    return [stem(word) if len(word) >= _SHORTEST else word for word in found] if stemmer else found


def parts(text: str) -> list[str]:
    """The sentences of rougeLsum: lines where there is a line break, as rouge_score has them, else
    those of `ldt.data.sentences.sentences`."""
    if "\n" in text:
        return text.split("\n")
    return [text[start:end] for start, end in sentences(text)]


def ngrams(words: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    """Runs of n words."""
    return zip(*(words[start:] for start in range(n)), strict=False)


def coverage(text: str) -> float:
    """The share of letters and digits that are in `tokens`, from 0 to 1; 1 where there are none."""
    letters = [letter for letter in text if letter.isalnum()]
    return sum(map(str.isascii, letters)) / len(letters) if letters else 1.0


def _f1(hits: int, right: int, found: int) -> float:
    return of(hits / found, hits / right).f1 if hits else 0.0


def _union_hits(target: Sequence[list[str]], prediction: Sequence[list[str]]) -> int:
    """Tokens of the target that are in a common subsequence of its part with any part of the
    prediction, each at most as often as the prediction has it."""
    hits: Counter[str] = Counter()
    for right in target:
        union = {place for found in prediction for place in _common(right, found)}
        hits.update(right[place] for place in union)
    return (hits & Counter(chain(*prediction))).total()


def _common(right: Sequence[str], found: Sequence[str]) -> list[int]:
    """Places in ``right`` of one longest common subsequence, the last one first.

    Which one is that of the usual walk from the ends of both texts, which at a tie goes to the
    word before in ``right``. A column of the usual table, the lengths up to each word of
    ``right``, is one number here: bit i is 0 where word i makes them longer (Hyyrö 2004,
    "Bit-Parallel LCS-length Computation Revisited").
    """
    places: dict[str, int] = {}
    for place, word in enumerate(right):
        places[word] = places.get(word, 0) | 1 << place
    everywhere = (1 << len(right)) - 1
    columns = [everywhere]
    for word in found:
        column = columns[-1]
        here = column & places.get(word, 0)
        columns.append((column + here | column - here) & everywhere)

    walked = []
    row, column = len(right) - 1, len(found)
    while row >= 0 and column:
        if right[row] == found[column - 1]:
            walked.append(row)
            row, column = row - 1, column - 1
        elif columns[column] >> row & 1:
            row -= 1
        else:
            column -= 1
    return walked
