"""What answers are computed with: a precision, and a library for matrix products."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from ldt.inference.agreement import Agreement
from ldt.inference.answer_file import AnswerFile, AnswerStream

log = logging.getLogger("ldt")


def settled(precision: str, automatic: Callable[[], str], sink: AnswerFile | AnswerStream) -> str:
    """The precision to compute in; "auto" keeps that of the run that began the answers.

    Args:
        precision: a name in `ldt.model.precision.PRECISIONS`, or "auto".
        automatic: gives the precision of "auto" where there is no answer yet.
        sink: of the answers.
    """
    if precision != "auto":
        return precision
    # A record that names none is of a version that computed in fp32 alone.
    precision = sink.remember("precision", lambda: "fp32" if sink.count else automatic())
    if precision != "fp32":
        why = "this device multiplies faster in it; --precision fp32 is slower and more exact"
        if sink.count:
            why = "as the answers that are there already"
        log.info("%s: %s", precision, why)
    return precision


def compared(exact: Any, bound: float, sink: AnswerFile | AnswerStream) -> Agreement | None:
    """What compares answers in int8; None where the run that began the file has gone on with it.

    Args:
        exact: the `ldt.inference.group.Predictor` in fp32.
        bound: share of the first answers that may change.
        sink: of the answers.
    """
    if not sink.count:
        return Agreement(exact, bound, lambda found: sink.remember("int8", lambda: found))
    before = sink.remember("int8", dict)  # nothing where that run did not come so far
    found = "; of the first {documents:,}, {changed:,} changed against fp32" if before else ""
    log.info(f"int8: as the answers that are there already{found.format(**before)}")
    return None


def same_products(sink: AnswerFile, stack: ExitStack) -> None:
    """Compute with the matrix library of the run that began the file, for the same last digits."""
    from ldt.attention import matmul

    stack.enter_context(matmul.chosen(sink.remember("arithmetic", matmul.choices)))
