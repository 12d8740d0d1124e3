"""Contexts of titled paragraphs in sentences: from an example, as tokens, and into inputs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ldt.data.features import cut_off
from ldt.data.tokenization import tokenize, tokenize_inside
from ldt.errors import DataError
from ldt.io.records import Example, field, kind

if TYPE_CHECKING:
    from ldt.data.options import DataSection

MARKS = 3  # tokens of a paragraph beside its title and sentences: <t>, </t>, [/par]
LEAST = 8  # tokens that hold some of any paragraph


@dataclass
class Paragraph:
    """A paragraph as tokens.

    Args:
        number: its place in the context.
        title: ids.
        sentences: of each its place in the paragraph, its ids, and their offsets in it.
    """

    number: int
    title: list[int]
    sentences: list[tuple[int, list[int], np.ndarray]]

    @property
    def size(self) -> int:
        """Tokens with the special ones, one behind each sentence among them."""
        return MARKS + len(self.title) + sum(len(ids) + 1 for _, ids, _ in self.sentences)

    def cut(self, room: int) -> None:
        """Drop the end of a paragraph that is larger than ``room``."""
        if self.size <= room:
            return
        self.title = self.title[: (room - MARKS - 1) // 2]
        sentences, self.sentences = self.sentences, []
        for place, ids, offsets in sentences:
            left = room - self.size - 1
            if left < min(len(ids), 1):
                break
            self.sentences.append((place, ids[:left], offsets[:left]))


def read(example: Example, path: str) -> list[tuple[str, list[str]]]:
    """The titles and sentences of a context.

    Raises:
        DataError: there is no such field, something else in it, or not a word in any sentence.
    """
    listed, context = field(example, path), []
    if not isinstance(listed, list):
        raise DataError(f"{example.where}: field {path!r} is {kind(listed)}, expected a list")
    for paragraph in listed:
        match paragraph:
            case [str(title), list(sentences)] if all(isinstance(text, str) for text in sentences):
                context.append((title, sentences))
            case _:
                raise DataError(
                    f"{example.where}: field {path!r}: {str(paragraph)[:60]}, expected "
                    "[title, list of sentences]"
                )
    if not any(text.strip() for _, sentences in context for text in sentences):
        raise DataError(f"{example.where}: field {path!r}: there is not a word in its sentences")
    return context


def encode(context: list[tuple[str, list[str]]], tokenizer) -> list[Paragraph]:
    """Tokenize titles and sentences, each as if a space stood in front."""
    return [
        Paragraph(
            number,
            tokenize(tokenizer, f" {title.strip()}"),
            [(place, *tokenize_inside(tokenizer, text)) for place, text in enumerate(sentences)],
        )
        for number, (title, sentences) in enumerate(context)
    ]


def chunks(
    paragraphs: list[Paragraph], room: int, example: Example, data: "DataSection"
) -> tuple[list[list[Paragraph]], dict[str, Any]]:
    """Return the paragraphs of each input, whole and in order, and flags for the answer.

    A paragraph that is too long alone is changed: it loses its end.

    Args:
        room: tokens of an input, at least `LEAST`.
        example: for messages.
        data: its overflow and max_windows.

    Raises:
        DataError: they do not fit one input, and ``data.overflow`` is "error".
    """
    total = sum(paragraph.size for paragraph in paragraphs)
    if total <= room:
        return [paragraphs], {}
    if data.overflow == "error":
        raise DataError(
            f"{example.where}: the paragraphs of {example.id!r} have {total:,} tokens, {room:,} "
            "fit beside the question; data.overflow=windows reads them in parts, truncate the "
            "first part of them"
        )
    chunks: list[list[Paragraph]] = [[]]
    left = room
    for paragraph in paragraphs:
        paragraph.cut(room)
        if paragraph.size > left and chunks[-1]:
            chunks.append([])
            left = room
        chunks[-1].append(paragraph)
        left -= paragraph.size
    most = 1 if data.overflow == "truncate" else data.max_windows
    read = sum(paragraph.size for chunk in chunks[:most] for paragraph in chunk)
    return chunks[:most], cut_off(total - read)
