"""Overlap of a summary with its source: numbers, names, copied runs, and repetitions.

No model is needed. The figures show invented numbers and names and mere copying; they do not prove
that a summary is true.

Source: See et al. 2017 (arXiv:1704.04368), section 6, for novel n-grams; Welleck et al. 2020
(arXiv:1908.04319) for repeated 4-grams.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ldt.data.sentences import sentences
from ldt.metrics.word_overlap import CJK

NOVEL = (1, 2, 3, 4)  # n of the n-grams that are looked for in the source
REPEATED = 4
_WORD = re.compile(rf"[{CJK}]|[^\W{CJK}]+")  # of Chinese and Japanese a letter
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_THOUSANDS = re.compile(r",(?=\d{3}(?:\D|$))")


def words(text: str) -> list[str]:
    """Lower-cased runs of letters and digits in order; Chinese and Japanese characters count one
    each."""
    return _WORD.findall(text.lower())


def numbers(text: str) -> list[str]:
    """Numbers in digits in order, without thousands separators: 1,000.5 becomes "1000.5"."""
    return [_THOUSANDS.sub("", number) for number in _NUMBER.findall(text)]


def _ngrams(words: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(n)), strict=False)


def names(text: str) -> list[str]:
    """Lower-cased capitalised words in order, except single letters and the first word of a
    sentence or line."""
    capitalised = []
    for line in text.splitlines():
        for start, end in sentences(line):
            behind = _WORD.findall(line[start:end])[1:]
            capitalised += [word.lower() for word in behind if word[0].isupper() and len(word) > 1]
    return capitalised


class SourceText:
    """Source document that summaries are compared with."""

    def __init__(self, text: str):
        self.words = words(text)
        self.vocabulary = set(self.words)
        self.numbers = set(numbers(text))
        self.joined = f" {' '.join(self.words)} "

    def counts(self, summary: str) -> dict[str, float]:
        """Count what `figures` needs of one summary: ``copied``, the longest run of its words in
        the source; ``numbers``, ``names`` and "1grams" to "4grams", all of them, and with
        ":found", ":new" or ":again" those found in the source, new there, or repeated."""
        summary_words = words(summary)
        counts: dict[str, float] = {"copied": self.longest_run(summary_words)}
        for what, listed, known in (
            ("numbers", numbers(summary), self.numbers),
            ("names", names(summary), self.vocabulary),
        ):
            counts |= {what: len(listed), f"{what}:found": sum(item in known for item in listed)}
        for n in NOVEL:
            grams = list(_ngrams(summary_words, n))
            unknown = set(grams).difference(_ngrams(self.words, n))
            counts |= {f"{n}grams": len(grams), f"{n}grams:new": sum(g in unknown for g in grams)}
        counts[f"{REPEATED}grams:again"] = _repetitions(_ngrams(summary_words, REPEATED))
        return counts

    def longest_run(self, summary: Sequence[str]) -> int:
        """Length in words of the longest run of the summary's words that stands in the source."""
        longest = 0
        for start in range(len(summary)):
            while start + longest < len(summary):
                run = summary[start : start + longest + 1]
                if f" {' '.join(run)} " not in self.joined:
                    break
                longest += 1
        return longest


def figures(means: dict[str, Any]) -> dict[str, Any]:
    """Figures over all summaries in percent (`longest_copied_run` in words); NaN where undefined,
    such as numbers in summaries without a number.

    Args:
        means: means of `SourceText.counts`, times 100, or arrays of them.
    """
    figures = {
        f"{what}_in_source": _share(means[f"{what}:found"], means[what])
        for what in ("numbers", "names")
    }
    for n in NOVEL:
        figures[f"novel_{n}grams"] = _share(means[f"{n}grams:new"], means[f"{n}grams"])
    figures["longest_copied_run"] = means["copied"] / 100
    again = means[f"{REPEATED}grams:again"], means[f"{REPEATED}grams"]
    figures[f"repeated_{REPEATED}grams"] = _share(*again)
    return figures


def _share(part: Any, whole: Any) -> Any:
    return 100 * part / np.where(whole > 0, whole, np.nan)


def _repetitions(grams: Iterable[tuple[str, ...]]) -> int:
    listed = list(grams)
    return len(listed) - len(set(listed))
