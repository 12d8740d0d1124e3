"""Inputs made of named segments, all by one `join`: a recipe names global ones by their role."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ldt.data.features import Feature
from ldt.data.tokenization import special_id


@dataclass(slots=True)
class Segment:
    """A part of the input: what it is ("cls", "question", "document" …) and its token ids."""

    role: str
    ids: Sequence[int]
    token_type: int = 0


def join(
    segments: Iterable[Segment], global_attention: Iterable[str], *, token_types: bool = False
) -> Feature:
    """Lay segments end to end.

    Args:
        segments: in the order of the input, special tokens included, each with its role.
        global_attention: roles whose tokens attend to all and are attended to by all.
        token_types: whether the feature has token_type_ids.

    Returns:
        input_ids, global_attention_mask and, if asked for, token_type_ids: lists of one length.

    Raises:
        ValueError: a role of ``global_attention`` that no segment has, and so no token either.
    """
    segments = list(segments)
    unknown = set(global_attention) - {segment.role for segment in segments}
    if unknown:
        raise ValueError(f"no segment has the role {', '.join(sorted(map(repr, unknown)))}")
    feature: Feature = {"input_ids": [], "global_attention_mask": []}
    if token_types:
        feature["token_type_ids"] = []
    for segment in segments:
        size = len(segment.ids)
        feature["input_ids"] += segment.ids
        feature["global_attention_mask"] += [int(segment.role in global_attention)] * size
        if token_types:
            feature["token_type_ids"] += [segment.token_type] * size
    return feature


def ends(tokenizer) -> tuple[Segment, Segment]:
    """The first token and the separator of an input, as segments "cls" and "sep"."""
    return (
        Segment("cls", [special_id(tokenizer, "cls")]),
        Segment("sep", [special_id(tokenizer, "sep")]),
    )
