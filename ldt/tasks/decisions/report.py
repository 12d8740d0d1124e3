"""Figures and curves of the decisions of a model, and the decision in force in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ldt.errors import plural
from ldt.io.sources import Names, digest, each, named
from ldt.metrics.calibration import (
    answers_of,
    expected_calibration_error,
    figures,
    reliability,
)
from ldt.metrics.curves import RECALLS, average_precision, curve
from ldt.metrics.numbers import by_doubling
from ldt.tasks.decisions.policy import Decided, Policy
from ldt.tasks.decisions.thresholds import DEFAULT, Outcome, outcome, risk_coverage

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
    facts: dict[str, Any] = {
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
    if decided.tried:
        facts["calibration"]["tried"] = decided.tried
    if tuned := decided.rules.tuned(right.shape[1]):
        target = decided.rules.target
        columns = [(names[n], outcome(decided.labels[:, n], right[:, n], target)) for n in tuned]
        facts["targets"] = {name: each._asdict() for name, each in columns}
    if nothing := _nothing(decided, tuned):
        facts["nothing"] = nothing
    if several:
        facts["labels"] = {
            name: _label(scores, there)
            for name, scores, there in zip(names, decided.scores.T, right.T, strict=True)
        }
        known = [
            each["average_precision"] for each in facts["labels"].values() if each["documents"]
        ]
        facts["macro_average_precision"] = float(np.mean(known)) if known else None
    return facts


def _nothing(decided: Decided, tuned: Sequence[int]) -> str:
    """The reason why a decision leaves nothing to answer; "" where it leaves something."""
    if decided.policy.least == math.inf and decided.rules.abstain:
        what, share = decided.rules.abstain
        return f"no document would have an answer for a {what} of {share:g}"
    if tuned and not decided.labels[:, tuned].any():
        return f"no document would get {'a class' if decided.rules.several else 'the class'}"
    return ""


def _by_length(
    before: np.ndarray, after: np.ndarray, right: np.ndarray, several: bool, lengths: np.ndarray
) -> list[dict[str, Any]]:
    """The ece of documents of up to 512 tokens, of up to twice as many, and so on."""
    return [
        {
            "most_tokens": most,
            "documents": len(rows),
            "before": expected_calibration_error(*answers_of(before[rows], right[rows], several)),
            "after": expected_calibration_error(*answers_of(after[rows], right[rows], several)),
        }
        for most, rows in by_doubling(lengths)
    ]


def _abstention(decided: Decided, right: np.ndarray) -> dict[str, Any]:
    coverage, risk = risk_coverage(decided.confidence, (decided.labels == right).all(1))
    places = np.unique(np.linspace(0, len(risk) - 1, POINTS).round().astype(int))
    facts: dict[str, Any] = {
        "aurc": float(risk.mean()),
        "curve": [{"coverage": float(coverage[n]), "risk": float(risk[n])} for n in places],
    }
    if decided.abstention is not None and decided.rules.abstain is not None:
        abstention = decided.abstention
        what, share = decided.rules.abstain
        facts |= {"asked": {what: share}, "coverage": abstention.coverage}
        facts |= {"risk": _known(abstention.risk), "bound": _known(abstention.bound)}
    return facts


def _label(scores: np.ndarray, there: np.ndarray) -> dict[str, Any]:
    facts: dict[str, Any] = {"documents": int(there.sum())}
    if facts["documents"]:
        points = [[x, y] for x, y in zip(RECALLS, curve(scores, there), strict=True)]
        facts |= {"average_precision": average_precision(scores, there), "curve": points}
    return facts


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def summary(made: Mapping[str, Any], target: str | None) -> dict[str, Any]:
    """Facts of a `report` that a model carries in its config, for `in_words`.

    Args:
        made: the report.
        target: by which thresholds were chosen; None where they were not.
    """
    facts: dict[str, Any] = {"documents": made["documents"]}
    if target is not None:
        facts["threshold_target"] = target
        verdicts = (row["verdict"] for row in made["targets"].values())
        facts["targets"] = Counter(filter(None, verdicts))
        if len(made["targets"]) == 1:
            (facts["target"],) = made["targets"].values()
    calibration, abstention = made["calibration"], made["abstention"]
    if calibration["method"] != "none":
        facts["ece"] = [calibration[when]["ece"] for when in ("before", "after")]
    elif tried := calibration.get("tried"):
        plain = tried["none"]
        for name in tried.keys() - {"none"}:
            worse = "ece" if tried[name]["ece"] > plain["ece"] else "nll"
            facts.setdefault("left_out", {})[name] = [worse, plain[worse], tried[name][worse]]
    if "asked" in abstention:
        facts |= {key: abstention[key] for key in ("asked", "coverage", "risk", "bound", "aurc")}
    return facts


def in_words(facts: Mapping[str, Any]) -> str:
    """The decision in force of a model and what it was chosen on, in a sentence without its end;
    "" where a model decides by nothing of its own.

    Args:
        facts: ``decisions`` of its config: those of the policy, with its `summary` under
            ``measured``, to which the training adds ``source`` and ``sha256``.
    """
    measured, parts = facts.get("measured", {}), []
    if "thresholds" in facts and "threshold_target" in measured:
        parts.append(_thresholds(facts["thresholds"], measured))
    if "calibration" in facts:
        method, (before, after) = facts["calibration"]["method"], measured["ece"]
        worse = ", which is no better" if round(after - before, 3) > 0 else ""
        ece = f"ECE {before:.3f} to {after:.3f}{worse}"
        parts.append(f"probabilities calibrated by {method} ({ece})")
    if left_out := measured.get("left_out"):
        tried = (
            f"{name}: {metric.upper()} {before:.3f} to {after:.3f}"
            for name, (metric, before, after) in sorted(left_out.items())
        )
        parts.append(f"no calibration, since none helps ({', '.join(tried)})")
    if "abstain" in facts:
        parts.append(_silence(facts["abstain"]["confidence"], measured))
    if not parts:
        return ""
    return "; ".join([*parts, f"chosen on {_chosen_on(measured)}"])


def in_short(facts: Mapping[str, Any]) -> dict[str, str]:
    """The parts of the decision in force by name, each as short as a cell of a table."""
    measured, parts = facts.get("measured", {}), {}
    if "threshold_target" in measured:
        of = f" of {next(iter(facts['thresholds']))!r}" if "target" in measured else ""
        parts["thresholds"] = measured["threshold_target"] + of
    if "calibration" in facts:
        parts["calibration"] = facts["calibration"]["method"]
    if "asked" in measured:
        parts["abstain"] = _asked(measured["asked"])
    if parts:
        source, hash = measured.get("source", ""), measured.get("sha256") or ""
        parts["chosen on"] = f"{hash[:8]} {source}".strip()
    return {f"decision: {name}": value for name, value in parts.items()}


def chosen_on_these(facts: Mapping[str, Any], files: Names) -> list[str]:
    """Return a warning where the decision in force was chosen on these very files, else nothing."""
    measured = facts.get("measured", {})
    if not (in_words(facts) and measured.get("sha256")) or digest(files) != measured["sha256"]:
        return []
    part = "a part of " if "share" in measured else ""
    return [
        f"{named(each(files))}: the decision in force was chosen on {part}these very documents, so "
        "the figures are too good for new ones"
    ]


def _asked(abstain: Mapping[str, float]) -> str:
    """The share of answers or of wrong ones among them that was asked for: ``risk 0.1``."""
    ((what, share),) = abstain.items()
    return f"{what} {share:g}"


def _chosen_on(measured: Mapping[str, Any]) -> str:
    documents = plural(measured.get("documents", 0), "document")
    source = f" of {measured['source']}" if "source" in measured else ""
    if "share" in measured:
        source = f", {measured['share']:.0%}{source}"
    hash = measured.get("sha256")
    return f"{documents}{source}{f' (sha256 {hash[:8]})' if hash else ''}"


def _thresholds(chosen: Mapping[str, float], measured: Mapping[str, Any]) -> str:
    target, verdicts = measured["threshold_target"], measured.get("targets", {})
    if "target" in measured:
        ((name, least),) = chosen.items()
        words = f"{name!r} from a probability of {least:.4g} on, tuned for {target}"
        only = Outcome(**measured["target"])
        phrases = {"too few": "too few documents to say", "no documents": "no document has it"}
        verdict = phrases.get(only.verdict, only.verdict)
        more = f": {only.bound} with 90 % certainty" if only.bound else ""
        return f"{words} ({verdict}{more})" if verdict else words
    phrases = {
        "reached": "reached by {}",
        "missed": "missed by {}",
        "too few": "too few documents to say for {}",
        "no documents": f"no documents of {{}}, which keep {DEFAULT:g}",
    }
    counts = [phrases[key].format(f"{verdicts[key]:,}") for key in phrases if verdicts.get(key)]
    what = "class" if len(chosen) == 1 else "classes"
    words = f"thresholds of {len(chosen):,} {what} tuned for {target}"
    return f"{words} ({', '.join(counts)})" if counts else words


def _silence(least: float | None, measured: Mapping[str, Any]) -> str:
    asked = f"for a {_asked(measured['asked']).replace(' ', ' of ')}"
    if least is None:
        return f"no answer at all: no confidence is high enough {asked}"
    wrong = ""
    if measured["risk"] is not None:
        wrong = f", {measured['risk']:.1%} of them wrong"
    if measured["bound"] is not None:
        wrong += f" (90 % sure: at most {measured['bound']:.1%})"
    return (
        f"no answer below a confidence of {least:.3f} {asked} "
        f"({measured['coverage']:.0%} answered{wrong}, AURC {measured['aurc']:.3f})"
    )
