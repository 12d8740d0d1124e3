"""The base of tasks that ask something about a document: their input, in chunks.

Input: <s> question </s> document </s>, the document in chunks where it is long. One separator
stands between the two, not the two of RoBERTa's pairs, and question and document are tokenized as
if a space stood in front, as in the authors' scripts/triviaqa.py (allenai/longformer): their
checkpoints were trained so. Tokenizers that number the parts of a pair (BERT's) give the document
the second number. Where the document has passages, a marker may stand in front of each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from ldt.data.features import Feature, Segment, ends, fit, join
from ldt.data.options import Length
from ldt.data.sentences import UNITS, Unit
from ldt.data.tokenization import tokenize, tokenize_inside
from ldt.errors import DataError
from ldt.io.records import Example
from ldt.tasks.base import Task, TaskInputs, TaskReads, question_of
from ldt.tasks.explained import Reading
from ldt.tasks.text import marked
from ldt.tasks.text.alignment import Span, aligned
from ldt.tasks.text.marked import Marked

if TYPE_CHECKING:
    from ldt.data.options import DataSection


class QuestionTask(Task):
    """A question about a document, one input for each chunk of it.

    Args:
        max_question: tokens of the question that are read; none reads all.
    """

    reads: ClassVar[TaskReads] = replace(
        Task.reads, document="context", asked=("question",), noun="questions"
    )
    inputs: ClassVar[TaskInputs] = replace(
        Task.inputs,
        roles=("cls", "question", "sep", "document"),
        extras=("offsets", "first", "context"),
    )

    global_attention: list[str] = ["cls", "question"]
    max_question: Length | None = None

    def chunks(
        self,
        example: Example,
        context: str,
        tokenizer,
        *,
        data: "DataSection",
        max_length: int,
        spans: Sequence[Span] | None = None,
    ) -> list[Feature]:
        """Return the features of a question and its document.

        Beside what every feature has: ``offsets`` [tokens, 2], where in ``context`` the tokens of
        the document stand that the chunk has, and ``first``, the place of the first of them in the
        input. With spans also ``start_positions`` and ``end_positions``, the places of the first
        and the last token of each one that is in the chunk, in order, and ``answer_tokens`` of the
        shortest. With `marks` also
        ``passages``, the numbers of those whose marker the chunk has, and ``passage_positions``,
        where these stand; a chunk parts as few passages as it can.

        Args:
            spans: characters of the right answers.

        Raises:
            DataError: the question is empty, or leaves no room for the document.
        """
        question = question_of(self, example, data, self.reads.asked[0])
        asked = tokenize(tokenizer, " " + question.strip())
        flags = {}
        if self.max_question is not None and len(asked) > self.max_question:
            asked, flags = asked[: self.max_question], {"question_cut": True}
        first = len(asked) + 2
        room = max_length - first - 1
        if room <= data.stride:
            raise DataError(
                f"{example.where}: the question has {len(asked):,} tokens and leaves {room:,} of "
                f"{max_length:,} for the document, windows share {data.stride:,}; a smaller "
                "task.max_question cuts it"
            )
        marks = self.marks(example, tokenizer, data)
        document = _document(tokenizer, context, *map(tuple, marks or ()))
        length = len(document.ids)
        parted = document.parted if marks and marks[0] else None
        chunks, more = fit(length, room, example, data, context, parted)
        flags |= more
        cls, sep = ends(tokenizer)
        head = [cls, Segment("question", asked), sep]
        token_types = _numbers_pairs(tokenizer)
        placed = None if spans is None else aligned(document.offsets, spans)
        features = []
        for start, end in chunks:
            segments = [*head, *_parts(document, start, end), replace(sep, token_type=1)]
            feature = join(segments, self.global_attention, token_types=token_types)
            if placed is not None:
                inside = [(a, b) for a, b in placed if start <= a and b < end]
                feature["start_positions"] = [a - start + first for a, _ in inside]
                feature["end_positions"] = [b - start + first for _, b in inside]
                if placed:
                    feature["answer_tokens"] = min(b - a + 1 for a, b in placed)
            if marks is not None:
                numbers, places = document.marked(start, end)
                feature["passages"] = numbers
                feature["passage_positions"] = (places - start + first).tolist()
            feature |= {"offsets": document.offsets[start:end], "first": first}
            feature |= {"read": (first, start, end), "document": 0, "flags": flags}
            feature["tokens"] = first + length + 1
            features.append(feature)
        return features

    def marks(
        self, example: Example, tokenizer, data: "DataSection"
    ) -> tuple[Sequence[Span], Sequence[int]] | None:
        """Return the characters of the document's passages and the id of the marker in front of
        each (`ldt.tasks.text.marked`); None of tasks without."""
        return None

    def reading(
        self, example: Example, tokenizer, data: "DataSection", unit: Unit = "sentence"
    ) -> Reading:
        """Return the document, whose passages are its sentences or paragraphs."""
        document, _ = self.parts(example, data)
        marks = self.marks(example, tokenizer, data)
        offsets = _document(tokenizer, document, *map(tuple, marks or ())).offsets
        return Reading(document, offsets, UNITS[unit](document))


def _parts(document: Marked, start: int, end: int) -> Iterator[Segment]:
    """A chunk of a document as segments, each marker one of its own."""
    for place in document.marked(start, end)[1].tolist():
        yield Segment("document", document.ids[start:place], token_type=1)
        yield Segment("passages", document.ids[place : place + 1], token_type=1)
        start = place + 1
    yield Segment("document", document.ids[start:end], token_type=1)
    # For the role that may have global attention, where a chunk has no marker.
    yield Segment("passages", (), token_type=1)


@lru_cache(2)  # questions on one document come one after the other
def _document(
    tokenizer, context: str, passages: tuple[Span, ...] = (), markers: tuple[int, ...] = ()
) -> Marked:
    return marked.mark(*tokenize_inside(tokenizer, context), passages, markers)


@lru_cache(2)
def _numbers_pairs(tokenizer) -> bool:
    return 1 in tokenizer("a", "b", return_token_type_ids=True)["token_type_ids"]
