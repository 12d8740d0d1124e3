"""A group of documents and its answers, which depend on these documents alone. No torch here.

Windows of the documents are sorted by length and run in batches.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np

from ldt.errors import ModelError, ResourceError
from ldt.inference.options import named
from ldt.io.records import Example

log = logging.getLogger("ldt")

DIGITS = 6  # of the floats in answers, behind the point

Feature = dict[str, Any]
Answer = dict[str, Any]
Outputs = dict[str, np.ndarray]
Document = tuple[Example, list[Feature]]  # with its inputs
Tell = Callable[[int, int], object]  # is called with windows and tokens that have been run


class Encoder(Protocol):
    """Maker of inputs of documents.

    Attributes:
        max_length: longest input, in tokens.
    """

    max_length: int

    def encode(self, example: Example) -> list[Feature]:
        """Inputs made of a document; DataError when it cannot be used."""


class Predictor(Encoder, Protocol):
    """A model that answers for documents."""

    def outputs(self, features: list[Feature]) -> list[Outputs]:
        """Arrays by name for each input, of any documents, run as one batch."""

    def decode(self, outputs: list[Outputs], example: Example, features: list[Feature]) -> Answer:
        """The answer for a document, flags included, from the arrays of its inputs."""


class Answered(NamedTuple):
    """The answers for a group, and those for its first documents in fp32 where they are asked."""

    answers: list[Answer]
    exact: list[Answer]


def untold(windows: int, tokens: int) -> None:
    """Tell nobody of a batch."""


class Answering:
    """Answers of groups of documents, one group after the other.

    Args:
        batch_tokens: most tokens of a batch, padding included; a longer window is run alone.
        exact: another predictor, for the first documents of a run; it is let go of after
            the first group that is not compared to its end, as none behind it is compared.
    """

    def __init__(self, model: Predictor, batch_tokens: int, exact: Predictor | None = None):
        self.model, self.exact = model, exact
        self.batch_tokens = batch_tokens
        self.fitting = batch_tokens  # of them, what the memory holds

    def __call__(
        self, documents: Sequence[Document], compared: int = 0, tell: Tell = untold
    ) -> Answered:
        """The answers for a group.

        Args:
            compared: number of its first documents that are answered by ``exact`` as well.
            tell: is called after every batch, with zeros after one of ``exact``, and with zeros
                after every document.

        Raises:
            ModelError: the model's numbers are not finite.
            ResourceError: the memory does not hold a single window.
        """
        exact: list[Answer] = []
        if compared:
            assert self.exact is not None
            exact = self._answers(self.exact, documents[:compared], lambda *_: tell(0, 0))
        if compared < len(documents):
            self.exact = None
        return Answered(self._answers(self.model, documents, tell), exact)

    def _answers(self, model: Predictor, documents: Sequence[Document], tell: Tell) -> list[Answer]:
        features = [feature for _, features in documents for feature in features]
        rows = iter(self._outputs(model, features, tell))
        answers = []
        for example, features in documents:
            outputs = [next(rows) for _ in features]
            answers.append(answer_of(model, outputs, example, features))
            tell(0, 0)
        return answers

    def _outputs(self, model: Predictor, features: list[Feature], tell: Tell) -> list[Outputs]:
        """Arrays of each input, in the order of the inputs, which are run the longest first."""
        lengths = [len(feature["input_ids"]) for feature in features]
        rows: list[Any] = [None] * len(features)
        for batch in batches(lengths, self.batch_tokens):
            for part, outputs in self._fitting(model, batch, features, lengths):
                for index, row in zip(part, outputs, strict=True):
                    rows[index] = row
                tell(len(part), sum(lengths[i] for i in part))
        return rows

    def _fitting(
        self, model: Predictor, batch: list[int], features: list[Feature], lengths: list[int]
    ) -> Iterator[tuple[list[int], list[Outputs]]]:
        """Yield the inputs of a batch and their arrays, in parts that the memory holds.

        A batch that is too large is parted, and all after it: the memory will not grow. Groups stay
        as they are, so that a run is resumed at the same ones.
        """
        while batch:
            most = max(1, self.fitting // lengths[batch[0]])
            part = batch[:most]
            try:
                outputs = model.outputs([features[i] for i in part])
            except ResourceError:
                if len(part) == 1:
                    raise
                tried = lengths[part[0]] * len(part)
                self.fitting = tried // 2
                log.warning(
                    f"out of memory with a batch of {tried:,} tokens; going on with at most "
                    f"{self.fitting:,}, as {named('batch_tokens', self.fitting)} has it"
                )
                continue
            yield part, outputs
            batch = batch[most:]


def answer_of(
    model: Predictor, outputs: list[Outputs], example: Example, features: list[Feature]
) -> Answer:
    """The answer for a document, with its floats rounded, from the arrays of its inputs.

    Raises:
        ModelError: these are not finite.
    """
    if not all(np.isfinite(values).all() for row in outputs for values in row.values()):
        raise ModelError(
            f"{example.where}: the model answers with numbers that are not finite; its "
            "weights are damaged or its training diverged"
        )
    return rounded(model.decode(outputs, example, features))


def rounded(value: Any) -> Any:
    """``value`` with every float in it rounded to `DIGITS` decimals."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return round(value, DIGITS) if isinstance(value, float) else value


class Hands(Protocol):
    """Executor of groups: `Here`, or the processes of `ldt.inference.executor.Workers`.

    Groups come back in the order in which they were given, each once.

    Attributes:
        tell: is called with windows and tokens that have been run; with less than none where they
            have to be run again.
    """

    tell: Tell

    def put(self, documents: Sequence[Document], compared: int) -> Iterable[Answered]:
        """Give a group, of which ``compared`` documents are answered in fp32 as well; what is
        answered by now."""

    def ready(self) -> Iterable[Answered]:
        """Answers that are there by now."""

    def rest(self) -> Iterable[Answered]:
        """Wait for all groups that were given."""


class Here:
    """`Hands` of this process, which answers a group as it is given.

    Args:
        lock: is held while the model runs.
    """

    def __init__(
        self,
        answering: Answering,
        lock: AbstractContextManager[Any] = nullcontext(),  # noqa: B008  # which keeps nothing
    ):
        self.answering, self.lock = answering, lock
        self.tell: Tell = untold

    def put(self, documents: Sequence[Document], compared: int) -> Iterable[Answered]:
        """Answer a group."""
        with self.lock:
            return [self.answering(documents, compared, self.tell)]

    def ready(self) -> Iterable[Answered]:
        """Nothing: whoever gave a group has its answers."""
        return ()

    rest = ready


def batches(lengths: list[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of ``lengths``, the longest first, in batches of alike ones.

    A batch padded to its longest has at most ``batch_tokens`` tokens, or is a single one.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if batch and lengths[batch[0]] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
