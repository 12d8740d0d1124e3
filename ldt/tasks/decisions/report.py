"""What is told about the decisions of a model: figures, curves, and a line in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ldt.errors import plural
from ldt.metrics.calibration import (
    answers_of,
    expected_calibration_error,
    figures,
    reliability,
)
from ldt.metrics.curves import RECALLS, average_precision, curve
from ldt.metrics.numbers import by_doubling
from ldt.tasks.decisions.abstention import risk_coverage
from ldt.tasks.decisions.policy import Decided, Policy

POINTS = 20  # of the curve of risk and coverage


def report(
    decided: Decided,
    logits: np.ndarray,
    right: np.ndarray,
    names: Sequence[str],
    lengths: Sequence[int],
) -> dict[str, Any]:
    """All figures of held-out documents, as JSON; each by a policy that was fitted without them.

    Args:
        decided: by these documents.
        logits: [documents, labels].
        right: [documents, labels] bool.
        names: of the labels.
        lengths: tokens of each document.
    """
    several = decided.rules.several
    # A calibration is of right answers; where all are wrong, they count for the abstention alone.
    rows = np.flatnonzero(right.any(1) | several)
    plain, scores, truth = Policy(several).scores(logits[rows]), decided.scores[rows], right[rows]
    before, after = (figures(each, truth, several) for each in (plain, scores))
    probabilities, hits = answers_of(scores, truth, several)
    made: dict[str, Any] = {
        "documents": len(logits),
        "calibration": {
            "method": decided.rules.calibration,
            "before": before,
            "after": after,
            "reliability": [row._asdict() for row in reliability(probabilities, hits)],
            "by_length": _by_length(plain, scores, truth, several, np.array(lengths)[rows]),
        },
        "abstention": _abstention(decided, right),
    }
    if several:
        made["labels"] = {
            name: _label(scores, there)
            for name, scores, there in zip(names, decided.scores.T, right.T, strict=True)
        }
        known = [each["average_precision"] for each in made["labels"].values() if each["documents"]]
        made["macro_average_precision"] = float(np.mean(known)) if known else None
    return made


def _by_length(
    before: np.ndarray, after: np.ndarray, right: np.ndarray, several: bool, lengths: np.ndarray
) -> list[dict[str, Any]]:
    """The ece of documents of up to 512 tokens, of up to twice as many, and so on."""
    return [
        {
            "most_tokens": most,
            "documents": len(own),
            "before": expected_calibration_error(*answers_of(before[own], right[own], several)),
            "after": expected_calibration_error(*answers_of(after[own], right[own], several)),
        }
        for most, own in by_doubling(lengths)
    ]


def _abstention(decided: Decided, right: np.ndarray) -> dict[str, Any]:
    coverage, risk = risk_coverage(decided.confidence, (decided.given == right).all(1))
    places = np.unique(np.linspace(0, len(risk) - 1, POINTS).round().astype(int))
    made: dict[str, Any] = {
        "aurc": float(risk.mean()),
        "curve": [{"coverage": float(coverage[n]), "risk": float(risk[n])} for n in places],
    }
    if decided.abstention is not None and decided.rules.abstain is not None:
        found = decided.abstention
        what, share = decided.rules.abstain
        made |= {"asked": {what: share}, "coverage": found.coverage}
        made |= {"risk": _known(found.risk), "bound": _known(found.bound)}
    return made


def _label(scores: np.ndarray, there: np.ndarray) -> dict[str, Any]:
    made: dict[str, Any] = {"documents": int(there.sum())}
    if made["documents"]:
        points = [[x, y] for x, y in zip(RECALLS, curve(scores, there), strict=True)]
        made |= {"average_precision": average_precision(scores, there), "curve": points}
    return made


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def summary(made: Mapping[str, Any], target: str | None) -> dict[str, Any]:
    """What a model carries of a `report` in its config, for `in_words`.

    Args:
        made: the report.
        target: by which thresholds were chosen; None where they were not.
    """
    found: dict[str, Any] = {"documents": made["documents"]}
    if target is not None:
        found["threshold_target"] = target
    calibration, abstention = made["calibration"], made["abstention"]
    if calibration["method"] != "none":
        found["ece"] = [calibration[when]["ece"] for when in ("before", "after")]
    if "asked" in abstention:
        found |= {key: abstention[key] for key in ("asked", "coverage", "risk", "bound", "aurc")}
    return found


def in_words(facts: Mapping[str, Any]) -> str:
    """What a model decides by, on one line; "" where it is nothing of its own.

    Args:
        facts: those of the config: of the policy, with its `summary` under ``measured``, to which
            the training adds its ``source``.
    """
    measured, parts = facts.get("measured", {}), []
    if "thresholds" in facts and "threshold_target" in measured:
        count = plural(len(facts["thresholds"]), "label")
        parts.append(f"thresholds of {count} by {measured['threshold_target']}")
    if "calibration" in facts:
        before, after = measured["ece"]
        parts.append(
            f"probabilities calibrated by {facts['calibration']['method']} "
            f"(ECE {before:.3f} to {after:.3f})"
        )
    if "abstain" in facts:
        parts.append(_silence(facts["abstain"]["confidence"], measured))
    if not parts:
        return ""
    documents = plural(measured["documents"], "document")
    source = f" of {measured['source']}" if "source" in measured else ""
    return f"{'; '.join(parts)}; by {documents}{source}"


def _silence(least: float | None, measured: Mapping[str, Any]) -> str:
    ((what, share),) = measured["asked"].items()
    asked = f"for a {what} of {share:g}"
    if least is None:
        return f"no answer at all, none is sure enough {asked}"
    wrong = ""
    if measured["risk"] is not None:
        wrong = f", {measured['risk']:.1%} of them wrong"
    if measured["bound"] is not None:
        wrong += f" (90 % sure: at most {measured['bound']:.1%})"
    return (
        f"no answer below a confidence of {least:.3f} {asked} "
        f"({measured['coverage']:.0%} answered{wrong}, AURC {measured['aurc']:.3f})"
    )
