"""Kinds of faults in data that `ldt check` reports."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

LEVELS = ("fault", "warning", "note")  # from what ruins a training to what is good to know


class Kind(NamedTuple):
    """Kind of finding: its level, a description, and a remedy."""

    level: str
    what: str
    would_do: str


# Name, level, description and remedy. The names are stable: programs read them. Of records, texts,
# copies, classes and answers.
_TABLE = r"""
unreadable: fault: cannot be read -> mend or remove these records
unusable: fault: cannot be used for the task -> mend or remove these records
stops: fault: ends the training before its first step -> see the message
duplicate_id: fault: have an id that came before -> give each an id of its own

empty: warning: have no letter or digit in their text -> remove them
giant: warning: are far longer than the others -> look whether many documents became one
control_characters: warning: have control characters -> remove them (tr -d '\000-\010'), or read the
    source again
wrong_encoding: warning: were decoded in a wrong encoding -> read the source as UTF-8 again; the
    package ftfy mends much of it
mixed_languages: note: are in another language than most -> make sure that the model knows it
unknown_tokens: warning: are letters that the tokenizer does not know -> take a model of the
    language
cut: warning: are not read to their end -> data.overflow=chunks without data.max_chunks reads all,
    as does a larger data.max_length

duplicate: warning: came before -> keep one of each
contradiction: fault: came before with another answer -> decide which answer is right
near_duplicate: note: are nearly the same as one before -> keep one of each
same_files: fault: data.eval is data.train: scores are meaningless -> name another file, or remove
    data.eval and set data.eval_fraction=0.1
leak: fault: are in the training set too: scores will be too high -> remove them from one
near_leak: warning: are nearly the same as training documents: scores will be too high -> remove
    them from one
shared_document: note: are about a document that the training set has too -> evaluate on other
    documents to know what new ones will give

one_label: fault: have the same class: there is nothing to learn -> add others
rare_label: warning: are the only ones of their class -> label more, or merge such classes
unseen_label: fault: have a class that the training set lacks -> move some to the training set
unevaluated_label: warning: have a class that the evaluation set lacks -> a larger
    data.eval_fraction, or documents of these classes in data.eval
small_evaluation: warning: the evaluation set is too small for so many classes -> a larger
    data.eval_fraction, or more documents in data.eval
ambiguous_labels: fault: labels can be meant in two ways -> say which, and the training begins
unlabelled: fault: have no label -> label or remove them
near_names: warning: have a class that differs from another in case, blanks or punctuation alone ->
    spell them alike; they are different classes now
stray_blanks: note: have blanks around a class -> nothing; they are read without them
many_labels: warning: have a class that hardly any other has -> look whether data.label is an id
majority: note: are of one class -> compare accuracy with always answering it; look at macro_f1

answer_not_in_context: fault: have an answer that is not where it is said to be -> mend or remove
    these answers
answer_not_mentioned: note: have an answer that their text does not mention -> nothing; they teach
    less
span_cuts_word: note: have an answer that begins or ends inside of a word -> count characters, not
    bytes
answer_too_long: warning: have an answer of more tokens than task.max_answer, which is never
    predicted -> a larger task.max_answer
answer_in_no_input: warning: have an answer that no input holds whole, and teach that there is none
    -> a larger data.max_length, or a larger data.stride
target_cut: warning: have a text that is learnt without its end -> a larger task.max_target_tokens,
    or a decoder with more positions
answer_not_in_candidates: fault: have an answer that is none of the candidates -> add it to the
    candidates
candidate_never_occurs: note: have candidates that their text never mentions -> nothing, if that is
    meant
"""
_ENTRIES = (" ".join(entry.split()) for entry in re.split(r"\n+(?=\w)", _TABLE.strip()))
KINDS = {
    name: Kind(level, *what.split(" -> "))
    for name, level, what in (entry.split(": ", 2) for entry in _ENTRIES)
}


# About the set, not about some of its documents.
WHOLE = ("same_files", "stops", "ambiguous_labels", "small_evaluation")


@dataclass(frozen=True)
class Finding:
    """Fault in a set of documents.

    Args:
        kind: name in `KINDS`.
        level: one of `LEVELS`.
        set: train or eval.
        count: number of documents with the fault.
        of: number of examined documents.
        where: first places, as "file:line".
        detail: more about the first place; may be empty.
    """

    kind: str
    level: str
    set: str
    count: int
    of: int
    where: tuple[str, ...] = ()
    detail: str = ""

    @property
    def what(self) -> str:
        """Description of the fault for people."""
        return KINDS[self.kind].what

    @property
    def about_all(self) -> bool:
        """True if the fault concerns the set rather than single documents."""
        return self.kind in WHOLE

    @property
    def would_do(self) -> str:
        """Remedy for the fault, for people."""
        if self.kind == "unusable" and self.count == self.of > 1:
            return "all fail alike: mend the keys of data: that name these fields, or the column"
        return KINDS[self.kind].would_do


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort by level (fault, warning, note), then by set (train first), then by falling count."""
    return sorted(findings, key=lambda f: (LEVELS.index(f.level), f.set != "train", -f.count))
