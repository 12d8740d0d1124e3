"""Agreement of two models: of outputs on the same inputs, and of answers to the same documents."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isclose
from typing import TYPE_CHECKING, Any, TypeVar

from ldt.errors import ModelError, PrecisionError, plural
from ldt.inference.options import flag

if TYPE_CHECKING:
    import numpy as np
    import torch

log = logging.getLogger("ldt")

TOLERANCE = 1e-4  # of the largest value; float32 sums in another order stay below 1e-5
DOCUMENTS = 200  # at most, that are answered in both
NUMBERS = 0.01  # of a number, the share by which another one is still the same answer
COSINE = 0.99  # of two vectors that are still the same answer
# Keys that only say how sure an answer is, what else it could be and what it rests on.
_BESIDE = frozenset(
    (
        *("score", "n_best", "best", "best_start", "best_end", "best_passage", "null", "why"),
        *("passages", "by_chunk"),
    )
)
_PLACE = frozenset(("start", "end", "offsets"))  # without an answer, of what it would be
_Answer = dict[str, Any]
_Document = TypeVar("_Document")


@dataclass(frozen=True)
class OutputCheck:
    """Comparison of the outputs of two models on the same inputs.

    Args:
        name: name of the compared output.
        tokens: length of the longest input.
        difference: largest absolute difference; for tokens, the number of different ones.
        scale: magnitude of the values, relative to which `TOLERANCE` applies; 0 for tokens, which
            must be equal.
    """

    name: str
    tokens: int
    difference: float
    scale: float

    @property
    def relative(self) -> float:
        """Difference divided by the scale; 0 without a difference, inf if only the scale is 0."""
        if not self.difference:
            return 0.0
        return self.difference / self.scale if self.scale else float("inf")

    @property
    def ok(self) -> bool:
        """True if `relative` is at most `TOLERANCE`, float32 accuracy; False for NaN."""
        return self.relative <= TOLERANCE

    def __str__(self) -> str:
        result = f"{self.difference:.1e}, tolerance {TOLERANCE * self.scale:.1e}"
        if not self.scale:
            result = f"{self.difference} different" if self.difference else "equal"
        return f"{result}, up to {self.tokens} tokens{'' if self.ok else '  TOO LARGE'}"


def largest_gap(
    expected: "Sequence[torch.Tensor]", outputs: "Sequence[torch.Tensor]", what: str = "the model"
) -> float:
    """Largest absolute difference between two lists of tensors; NaN if ``outputs`` have NaN.

    Args:
        expected: outputs of the first model; ModelError if they are not finite.
        outputs: outputs of the second model.
        what: name of the first model, for messages.
    """
    if not all(x.isfinite().all() for x in expected):
        raise ModelError(f"{what}: its outputs are not finite, there is nothing to prove")
    gaps = [(x - y).abs().max().item() for x, y in zip(expected, outputs, strict=True)]
    return next((gap for gap in gaps if gap != gap), max(gaps))  # nan is the largest


class PrecisionCheck:
    """Comparison of a run's first answers with those in fp32.

    Answers are held back until it is known how many int8 changes, so that a refusal leaves no
    output behind.

    Args:
        exact: the `ldt.inference.stream.DocumentPredictor` in fp32, released after the decision;
            None if other processes have it.
        bound: largest share of answers that may change; from 1 on nothing is held back.
        note: called with the number of compared ``documents`` and of ``changed`` answers if the run
            continues.
    """

    def __init__(
        self,
        exact: Any,
        bound: float = 0.01,
        note: Callable[[dict[str, int]], object] = lambda found: None,
    ):
        self.exact, self.bound, self.note = exact, bound, note
        self.documents = self.changed = 0
        self.decided = False
        self._asked = 0  # documents, of which some may not be compared yet
        self._held: list[list[_Answer]] = []

    def to_compare(self, documents: Sequence[_Document]) -> Sequence[_Document]:
        """Return those of the next documents that are among the run's first `DOCUMENTS`, to be
        answered in fp32 as well; all are counted."""
        first = documents[: DOCUMENTS - self._asked]
        self._asked += len(first)
        return first

    def compare(self, exact: Sequence[_Answer], answers: Sequence[_Answer]) -> None:
        """Count answers that differ from those in fp32, in ``documents`` and ``changed``.

        Args:
            exact: answers in fp32 to the first of the documents; may be shorter or empty.
            answers: answers in int8 to all of them.
        """
        self.documents += len(exact)
        self.changed += sum(not same_decision(*pair) for pair in zip(exact, answers, strict=False))

    def release(self, group: list[_Answer], end: bool = False) -> list[list[_Answer]]:
        """Take newly computed answers; return the groups that may be written now, and hold back the
        rest.

        After `DOCUMENTS` documents or at the end it decides, logs the share of changed answers and
        drops the fp32 predictor. Before that it returns [], unless the bound is 1.

        Args:
            group: newly computed answers; may be empty.
            end: True at the end of the input.

        Raises:
            PrecisionError: more answers changed than the bound permits.
        """
        if group:
            self._held.append(group)
        if not self.decided and (end or self.documents >= DOCUMENTS):
            self._decide()
        if not self.decided and self.bound < 1:
            return []
        groups, self._held = self._held, []
        return groups

    def _decide(self) -> None:
        self.exact, self.decided = None, True
        if not self.documents:
            return
        share = Fraction(self.changed, self.documents)
        log.info(
            f"int8 against fp32 on the first {plural(self.documents, 'document')}: "
            f"{plural(self.changed, 'answer')} changed ({float(share):.1%})"
        )
        if share > Fraction(str(self.bound)):  # in decimals, so that 29 of 100 are 0.29
            raise PrecisionError(
                f"{flag('precision', 'int8')} changes {self.changed:,} of "
                f"{plural(self.documents, 'answer')}, more than "
                f"{flag('max_changed', f'{self.bound:g}')} allows; nothing was written; "
                f"{flag('precision', 'fp32')} keeps the answers, {flag('max_changed', 1)} goes "
                "on all the same"
            )
        self.note({"documents": self.documents, "changed": self.changed})


def same_decision(one: _Answer, other: _Answer) -> bool:
    """True if two answers to a document agree in all keys, such as label, text, place, entities,
    evidence and flags, but scores, further candidates and passages; without an answer its place
    does not count.

    Numeric labels may differ by the share `NUMBERS`; vectors must have a cosine of at least
    `COSINE`.
    """
    labels = one.get("label"), other.get("label")
    numbers = [label for label in labels if isinstance(label, float)]
    if len(numbers) == 2 and not isclose(numbers[0], numbers[1], rel_tol=NUMBERS):
        return False
    pairs = zip(_vectors(one), _vectors(other), strict=True)
    if any(least_cosine(*pair) < COSINE for pair in pairs):
        return False
    return _decided(one) == _decided(other)


def least_cosine(one: "np.ndarray", other: "np.ndarray") -> float:
    """Smallest cosine of the pairs of vectors in two arrays [..., n]; pairs with a zero vector are
    left out, and 1 is the result without any other."""
    dots, norms = (one * other).sum(-1), ((one**2).sum(-1) * (other**2).sum(-1)) ** 0.5
    return float((dots[norms > 0] / norms[norms > 0]).min(initial=1))


def _decided(answer: _Answer) -> _Answer:
    left_out = _BESIDE
    if answer.get("answer", True) in ("", None):
        left_out |= _PLACE
    return {key: _exact(value) for key, value in answer.items() if key not in left_out}


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _exact(item) for key, item in value.items() if not isinstance(item, float)}
    if isinstance(value, list | tuple):
        return [_exact(item) for item in value if not isinstance(item, float)]
    return float if isinstance(value, float) or hasattr(value, "dtype") else value


def _vectors(answer: _Answer) -> list[Any]:
    values = [x if isinstance(x, list) else [x] for x in answer.values()]
    return [x for each in values for x in each if hasattr(x, "dtype")]
