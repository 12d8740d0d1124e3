"""Units of a text (document, chunks, sentences, paragraphs) with a vector each.

The vector of a document is that of its input; of a longer one, read in parts, the mean of theirs,
each weighted by its share of the tokens. Vectors of its chunks, sentences or paragraphs are *late*:
pooled from the states of their tokens where the document around them was read too, in the part
where they have the most context; of one that no part holds, the mean of its pieces'.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ldt.data.features import Feature, Segment, cut_off
from ldt.data.options import DataSection
from ldt.data.sentences import UNITS, Span
from ldt.data.tokenization import tokenize_with_offsets
from ldt.io.records import Example
from ldt.tasks.base import DocumentTokens, Outputs, Task, in_chunks

TAIL = 4  # a last chunk of fewer tokens than a quarter is joined to the one before
CONTEXT = 8  # parts share an eighth of their tokens at least


class UnitSettings(NamedTuple):
    """Settings of the units into which a text is divided.

    Args:
        kind: document, chunk, sentence or paragraph.
        size: tokens of a chunk.
        late: True if units are read with the document around them, False alone.
        each: True if each token has a vector.
    """

    kind: str = "document"
    size: int = 256
    late: bool = True
    each: bool = False

    def of(self, text: str, offsets: np.ndarray) -> tuple[list[Span], list[Span]]:
        """Divide a text into units; returns the characters (start, end) of each, and its tokens
        (start, end). A token belongs to the unit of its first character; a sentence or paragraph
        without tokens is left out.

        ``offsets`` [tokens, 2] are the characters of each token.
        """
        count = len(offsets)
        if self.kind == "document":
            return [(0, len(text))], [(0, count)]
        if self.kind == "chunk":
            starts = [*range(0, count, self.size)]
            if len(starts) > 1 and (count - starts[-1]) * TAIL < self.size:
                starts.pop()
            tokens = [*zip(starts, [*starts[1:], count], strict=True)] if count else []
            return [(int(offsets[a, 0]), int(offsets[b - 1, 1])) for a, b in tokens], tokens
        places = UNITS[self.kind](text)  # type: ignore[index]
        borders = np.searchsorted(offsets[:, 0], np.array(places).reshape(-1, 2)).tolist()
        pairs = [(x, (a, b)) for x, (a, b) in zip(places, borders, strict=True) if a < b]
        return [place for place, _ in pairs], [tokens for _, tokens in pairs]


class Piece(NamedTuple):
    """Tokens ``start`` to ``end`` of a unit within a part of the document, counted in the document:
    all of the unit, or those with most context there."""

    part: int
    unit: int
    start: int
    end: int


def _pieces_of(tokens: Sequence[Span], parts: Sequence[Span]) -> Iterator[Piece]:
    """Yield the pieces of units in each part, from the token spans of units and of parts; parts
    adjoin or overlap, in order."""
    starts, ends = zip(*parts, strict=True)
    length, last = ends[-1], len(parts) - 1
    borders = [(end + start) // 2 for end, start in zip(ends, starts[1:], strict=False)]
    owned = [*zip([0, *borders], [*borders, length], strict=True)]
    for number, (start, end) in enumerate(tokens):

        def context(part: int, start: int = start, end: int = end) -> int:
            before = start - starts[part] if part else length
            return min(before, ends[part] - end if part < last else length)

        whole = range(bisect_left(ends, end), bisect_right(starts, start))
        if whole:
            yield Piece(max(whole, key=context), number, start, end)
            continue
        for part, (first, behind) in enumerate(owned):
            if max(first, start) < min(behind, end):
                yield Piece(part, number, max(first, start), min(behind, end))


def encode_units(
    task: Task,
    units: UnitSettings,
    example: Example,
    tokenizer: Any,
    data: DataSection,
    max_length: int,
    role: str,
    texts: tuple[str, str],
    sides: tuple[list[Segment], list[Segment]],
) -> list[Feature]:
    """Return the features of a text whose units are to have vectors, one for each part that fits an
    input.

    ``units`` of a feature are (number of the unit, tokens) of each of its pieces, and ``spans``
    [pieces, 2] the positions of late ones in the input; ``places`` of the first feature are the
    characters of all units. Where each token has a vector, ``rows`` (start, end) of a feature are
    the positions that no other part has, and its ``places`` the characters of its tokens.

    Args:
        task, example, tokenizer, data, max_length: as for `Task.encode`.
        units: division of the text.
        role: role of the text's segment.
        texts: a prompt, and the text behind it.
        sides: segments before and behind both.
    """
    prompt, text = texts
    ids, offsets = tokenize_with_offsets(tokenizer, prompt + text)
    begin = int(np.searchsorted(offsets[:, 0], len(prompt)))
    ids, asked, offsets = ids[begin:], ids[:begin], offsets[begin:] - len(prompt)
    head, tail = [*sides[0], Segment(role, asked)], sides[1]
    places, tokens = units.of(text, offsets)
    first, behind = (sum(len(segment.ids) for segment in side) for side in (head, tail))

    def parts(start: int, end: int, overlap: int = 0) -> list[Feature]:
        section = data.model_copy(update={"stride": max(overlap, data.stride)})
        document = DocumentTokens(role, ids[start:end])
        features = in_chunks(task, example, section, max_length, head, document, tail, text)
        for feature in features:
            _, a, b = feature["read"]
            feature["read"] = (first, start + a, start + b)
        return features

    whole = units.kind == "document"
    alone = not units.late and not whole and bool(tokens)
    features: list[Feature] = []
    pieces: list[Piece] = []
    if alone:
        for number, (start, end) in enumerate(tokens):
            features += parts(start, end)
            for feature in features[len(pieces) :]:
                pieces.append(Piece(len(pieces), number, *feature["read"][1:]))
    else:
        room = max_length - first - behind
        longest = 0 if whole else max((end - start for start, end in tokens), default=0)
        overlap = 0 if whole and not units.each else max(room // CONTEXT, min(longest, room // 2))
        features = parts(0, len(ids), overlap)
        pieces = [*_pieces_of(tokens, [feature["read"][1:] for feature in features])]
    if units.each:
        for feature, piece in zip(features, pieces, strict=True):
            _add_rows(feature, piece, offsets, len(text), last=feature is features[-1])
    read = _add_units(features, pieces, late=not alone and not whole)
    if alone:
        features[0]["flags"] = cut_off(sum(x["flags"].get("unread_tokens", 0) for x in features))
    features = [feature for feature in features if "units" in feature]
    if not units.each:
        features[0]["places"] = [places[unit] for unit in read]
    return [feature | {"tokens": first + len(ids) + behind} for feature in features]


def _add_units(features: Sequence[Feature], pieces: Sequence[Piece], late: bool) -> list[int]:
    """Add the units to the features that have pieces of them; return which units have some."""
    read = sorted({piece.unit for piece in pieces})
    numbers = {unit: number for number, unit in enumerate(read)}
    by_part: dict[int, list[Piece]] = {} if pieces else {0: []}
    for piece in pieces:
        by_part.setdefault(piece.part, []).append(piece)
    for part, mine in by_part.items():
        feature = features[part]
        feature["units"] = [(numbers[each.unit], each.end - each.start) for each in mine]
        if late:
            first, start, _ = feature["read"]
            spans = [(first + a - start, first + b - start) for *_, a, b in mine]
            feature["spans"] = np.array(spans or [(0, 1)])
    return read


def _add_rows(feature: Feature, piece: Piece, offsets: np.ndarray, size: int, last: bool) -> None:
    """Add the rows whose tokens have their vectors of this part, and the characters of all rows;
    ``size`` is the length of the text, and the last part has the tokens behind the text as well."""
    length = len(feature["input_ids"])
    first, start, end = feature["read"]
    begin = first + piece.start - start if piece.part else 0
    feature["rows"] = begin, length if last else first + piece.end - start
    feature["places"] = np.zeros((length, 2), np.int32)
    feature["places"][first : first + end - start] = offsets[start:end]
    feature["places"][first + end - start :] = size


def token_vectors(
    outputs: Sequence[Outputs], features: Sequence[Feature], skip: Sequence[int]
) -> tuple[np.ndarray, list[list[int]]]:
    """Collect the vectors of a text's tokens, [tokens, size], and the characters [start, end] of
    each, from the outputs for each feature of `encode_units`; tokens whose ids are in ``skip``
    are left out."""
    vectors, places = [], []
    for output, feature in zip(outputs, features, strict=True):
        row = slice(*feature["rows"])
        with_vector = ~np.isin(feature["input_ids"][row], skip)
        vectors.append(output["vectors"][row][with_vector])
        places += feature["places"][row][with_vector].tolist()
    return np.concatenate(vectors), places


def unit_vectors(
    outputs: Sequence[Outputs], features: Sequence[Feature], normalised: bool
) -> np.ndarray:
    """Compute the vector of each unit, [units, size] in float32, from the outputs for each feature
    of `encode_units`: the mean of its pieces by tokens, if ``normalised`` scaled to length 1
    again."""
    total = np.zeros((len(features[0]["places"]), outputs[0]["vectors"].shape[-1]))
    weights, counts = np.zeros(len(total)), np.zeros(len(total), int)
    for output, feature in zip(outputs, features, strict=True):
        for vector, (unit, weight) in zip(output["vectors"], feature["units"], strict=False):
            total[unit] += max(weight, 1) * vector.astype(np.float64)
            weights[unit] += max(weight, 1)
            counts[unit] += 1
    vectors = total / weights[:, None]
    if normalised:
        vectors[counts > 1] = unit_length(vectors[counts > 1], np.float64)
    return vectors.astype(np.float32)


def unit_length(vectors: Any, dtype: Any = np.float32) -> np.ndarray:
    """Scale vectors [n, dim], or one vector, to length 1, as a new array; zero stays."""
    vectors = np.asarray(vectors, dtype)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
