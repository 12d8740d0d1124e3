"""Classes that look wrong, by their names and how often they are there."""

from __future__ import annotations

from collections.abc import Iterable

from ldt.data import labels
from ldt.data.yes_no import are_flags
from ldt.errors import listed, plural
from ldt.training.survey import DocumentSurvey

DOCUMENTS_A_CLASS = 2  # of an evaluation set, below which its figures say little
ONE_SIDED = 0.8  # share of the documents from which on a class is named as the answer to beat


def tell_labels(train: DocumentSurvey, evaluation: DocumentSurvey | None) -> None:
    """Count what is wrong with the classes of one set or two."""
    classes = train.classes
    counts, documents = classes.counts, classes.documents
    for survey in (train, evaluation):
        if survey is not None and survey.classes.blank and not classes.several:
            yes = next(iter(counts), "") if len(counts) == 1 and are_flags(counts) else ""
            detail = f"a list such as data.label=[Cap] reads {yes!r} and blank as yes and no"
            survey.tally.add(
                "unlabelled", survey.classes.blanks, detail if yes else "", survey.classes.blank
            )
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
    tell("near_names", [name for group in labels.near(counts) for name in group])
    if len(counts) > max(20, documents / 2) and not classes.several:
        tell("many_labels", counts, f"{len(counts):,} classes")
    elif not one and "ambiguous_labels" not in train.tally.counts:
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
        tell_evaluation(train, len(evaluation), theirs.counts)


def tell_evaluation(
    train: DocumentSurvey, documents: int, seen: Iterable[str] | None = None
) -> None:
    """Count the classes that an evaluation set lacks, and tell where it is too small for them.

    Args:
        train: the training set.
        documents: number of those in the evaluation set.
        seen: its classes; None where they are not known yet.
    """
    counts = train.classes.counts
    lacking = counts.keys() - set(counts if seen is None else seen)
    missing = sorted(lacking, key=lambda name: (-counts[name], name))
    if missing:
        places = [place for name in missing for place in train.classes.places[name]]
        count = min(sum(counts[name] for name in missing), train.classes.documents)
        detail = f"{len(missing):,} of {len(counts):,} classes: {listed(missing, 5)}"
        train.tally.add("unevaluated_label", places, detail, count)
    if documents < DOCUMENTS_A_CLASS * len(counts):
        detail = f"{plural(documents, 'document')} for {len(counts):,} classes"
        train.tally.add("small_evaluation", [], detail)
