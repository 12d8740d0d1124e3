"""For the tests of span tasks: pins of encodings, and what their gold spans say."""

import zlib

import numpy as np

from ldt.tasks.questions import context_of
from ldt.tasks.text import with_marks


def crc(values):
    """A checksum that pins ids or offsets."""
    return zlib.crc32(np.ascontiguousarray(values, dtype=np.int32).tobytes())


def said(feature):
    """The raw text of each gold span of a feature."""
    context, first = context_of(feature["context"]), feature["first"]
    spans = zip(feature["start_positions"], feature["end_positions"], strict=True)
    offsets = feature["offsets"]
    places = [(offsets[a - first, 0].item(), offsets[b - first, 1].item()) for a, b in spans if a]
    return [context[slice(*with_marks(place, context))] for place in places]
