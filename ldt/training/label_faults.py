"""Classes that look wrong, by their names and how often they are there."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby

from ldt.errors import listed
from ldt.training.survey import Classes, Survey

ONE_SIDED = 0.8  # share of the documents from which on a class is named as the answer to beat
_CERTAIN, _LIKELY = "|;", ",/+&"  # what joins names: hardly ever in a name; at times in one


def tell_labels(train: Survey, evaluation: Survey | None) -> None:
    """Count what is wrong with the classes of one set or two."""
    classes = train.classes
    counts, documents = classes.counts, classes.documents
    if not counts:
        return

    def tell(kind: str, names: Iterable[str], detail: str = "") -> None:
        names = sorted(names, key=lambda name: -counts[name])
        if names:
            places = [place for name in names for place in classes.places[name]]
            count = min(sum(counts[name] for name in names), documents)
            train.tally.add(kind, places, detail or listed(names, 5), count)

    one = len(counts) == 1 and not classes.several
    tell("one_label", counts if one else ())
    joined, lists = _joined(counts), _lists(classes)
    tell("joined_labels", joined)
    tell("listed_labels", lists)
    tell("near_names", _near_names(counts))
    if len(counts) > max(20, documents / 2) and not classes.several:
        tell("many_labels", counts, f"{len(counts):,} classes")
    elif not one and not joined and not lists:
        tell("rare_label", [name for name, count in counts.items() if count == 1])
    commonest, most = counts.most_common(1)[0]
    if not classes.several and len(counts) > 1 and most >= ONE_SIDED * documents:
        tell("majority", [commonest])
    if evaluation is not None and (theirs := evaluation.classes).counts:
        missing = [name for name in theirs.counts if name not in counts]
        if missing:
            count = sum(theirs.counts[name] for name in missing)
            places = [place for name in missing for place in theirs.places[name]]
            evaluation.tally.add("unseen_label", places, listed(missing, 5), count)
        tell("unevaluated_label", counts.keys() - theirs.counts.keys())


def _near_names(counts: Iterable[str]) -> list[str]:
    """Names that are equal but for capitals and blanks."""
    spelt = {name: " ".join(name.casefold().split()) for name in counts}
    groups = groupby(sorted(counts, key=lambda name: spelt[name]), spelt.__getitem__)
    return [name for _, group in groups if len(several := list(group)) > 1 for name in several]


def _joined(counts: Iterable[str]) -> list[str]:
    """Names made of others, as ``Insurance|Term`` where there is a class ``Term`` too."""
    found = []
    for mark in _CERTAIN + _LIKELY:
        parts = {name: [part.strip() for part in name.split(mark)] for name in counts}
        used: dict[str, int] = {}
        for several in parts.values():
            for part in set(several):
                used[part] = used.get(part, 0) + 1
        need = any if mark in _CERTAIN else all
        found += [
            name
            for name, several in parts.items()
            if len(several) > 1 and all(several) and need(used[part] > 1 for part in several)
        ]
    return list(dict.fromkeys(found))


def _lists(classes: Classes) -> list[str]:
    """Names that are JSON, and the 0 and 1 of vectors."""
    if classes.several and set(classes.counts) == {"0", "1"}:
        return ["0", "1"]
    return [name for name in classes.counts if name[:1] in "[{" and _is_json(name)]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
