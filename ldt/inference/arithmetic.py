"""What answers are computed with: a precision, and a library for matrix products."""

import logging
from collections.abc import Callable
from contextlib import ExitStack

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


def same_products(sink: AnswerFile, stack: ExitStack) -> None:
    """Compute with the matrix library of the run that began the file, for the same last digits."""
    from ldt.attention import matmul

    stack.enter_context(matmul.chosen(sink.remember("arithmetic", matmul.choices)))
