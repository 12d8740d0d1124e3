"""Result of a conversion, as text."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ldt.convert.proof import OutputCheck

if TYPE_CHECKING:
    from ldt.inference.perplexity import Score


@dataclass
class Proved(ABC):
    """Result of a conversion. `lines` or `str` make it text.

    Attributes:
        source: as it was given.
        target: folder of the converted model.
        checks: the proof.
        scores: of a text, before and after; empty without one.
    """

    source: str
    target: Path
    checks: list[OutputCheck]
    scores: list[tuple[str, Score]]

    @property
    def ok(self):
        """True if all checks of the proof hold."""
        return all(check.ok for check in self.checks)

    @property
    def difference(self):
        """Largest difference in any check."""
        return max(check.difference for check in self.checks)

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Lines of the report by their subject."""

    def lines(self) -> list[str]:
        """The report as text, the proof and the next command last."""
        name = shown_path(self.target)
        return [
            f"{self.source} -> {name}",
            *(f"  {what:<18}{fact}" for what, fact in self.facts().items()),
            "proof: source and converted model on random tokens, largest difference",
            *(f"  {check.name:<18}{check}" for check in self.checks),
            *(f"{name}: {row.bits_per_token:.3f} bits per token" for name, row in self.scores),
            f"next: ldt finetune recipe.yaml model.path={shlex.quote(name)}",
        ]

    def __str__(self):
        return "\n".join(self.lines())


@dataclass
class ConversionReport(Proved):
    """Result of a conversion to a Longformer, Poolingformer or LED.

    Attributes:
        kind: the source's model_type.
        layers, width, parameters: size of the converted model.
        source_length, max_length: longest input before and now, in tokens.
        windows: of the layers, in tokens, both sides together.
        source_windows: those of the source; empty if its attention is full, and then
            the global projections are copies of the local ones.
        second_level: what it is and in which layers; empty if there is none.
        head: whether the masked-LM head is kept, or why not; empty where there never is one.
        further: further lines, by what they are about.
        left_out: parts of the source that the converted model has no place for.
        positions: how the position table was made long, a name in
            `ldt.convert.lengthen.POSITION_TABLES`.
        copied, created: tensors that are the source's, and further ones.
    """

    kind: str
    layers: int
    width: int
    parameters: int
    source_length: int
    max_length: int
    windows: list[int]
    source_windows: list[int]
    second_level: str
    head: str
    further: dict[str, str]
    left_out: list[str]
    positions: str
    copied: int
    created: int

    def facts(self):
        """Lines of the report by their subject; see `Proved.facts`."""
        window = f"{sizes(self.windows)} tokens, both sides together"
        projections = "copies of the local"
        if self.source_windows:
            window += f" (source: {sizes(self.source_windows)})"
            projections = "the source's"
        facts = {
            "model": f"{self.kind}, {self.layers} layers of width {self.width}, "
            f"{self.parameters:,} parameters",
            "positions": f"{self.source_length} -> {self.max_length} ({self._positions()})",
            "window": window,
            "global attention": f"{projections} projections",
            **({"masked-LM head": self.head} if self.head else {}),
            **self.further,
            "weights": f"{self.copied} tensors copied, the position table made long, "
            f"{self.created} created",
        }
        if self.second_level:
            facts["second level"] = self.second_level
        if self.left_out:
            facts["not converted"] = ", ".join(self.left_out)
        return facts

    def _positions(self):
        """The way the source's rows were used, in words."""
        if self.positions == "interpolate":
            return "interpolated"
        if self.positions == "random":
            return f"the first {self.source_length} copied, the rest random"
        copies, remainder = divmod(self.max_length, self.source_length)
        tiled = "copied once" if copies == 1 else f"copied {copies} times"
        return f"{tiled}, and the first {remainder} once more" if remainder else tiled


def sizes(windows):
    """Windows in words, each size once."""
    return ", ".join(map(str, sorted(set(windows))))


def shown_path(path):
    """./name for a bare name, which could be read as a hub id."""
    return f"./{path}" if len(path.parts) == 1 and not path.is_absolute() else str(path)
