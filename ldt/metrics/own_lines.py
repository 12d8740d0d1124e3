"""Answers as ``ldt predict`` writes them, JSON lines, in the place of published predictions.

They are turned into the published layout by the writer of ``ldt predict --layout``.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NamedTuple

from ldt.data.formats.passage_qa import SWAPPED, name_of
from ldt.data.formats.recognition import begins_with_object
from ldt.errors import DataError, shown
from ldt.io import records
from ldt.io.sources import Names, each, named, only
from ldt.io.strict_json import JsonFile
from ldt.metrics import cuad, prediction_files


class LineKind(NamedTuple):
    """Keys that the lines for a layout have.

    Args:
        keys: of which the layout is made.
        otherwise: what to write where one is missing.
        first: keys one of which the first line has, and what else the metric reads has not.
    """

    keys: tuple[str, ...]
    otherwise: str
    first: tuple[str, ...] = ("id",)


def _passages(format: str) -> LineKind:
    return LineKind(
        ("passage_score", "span_score", "yes_no", "offsets"),
        f"answers of passage_qa have it for documents that ldt predict data.format={format} reads",
    )


_SPANS = LineKind(("answer",), "answers of squad and triviaqa have one")
KINDS = {
    "squad": _SPANS,
    "squad2": _SPANS,
    "triviaqa": LineKind(("answer", "score"), "answers of triviaqa have one"),
    "wikihop": LineKind(("answer",), "answers of wikihop have one"),
    "hotpotqa": LineKind(("answer", "supporting_facts"), "answers of hotpotqa have some"),
    "conll": LineKind(
        ("tags",),
        "answers for given words have some; --format token_classification scores those for text",
    ),
    "nq": _passages("nq"),
    "tydiqa": _passages("tydiqa"),
    "cuad": LineKind(
        ("n_best", "null"), f"answers of squad have it: ldt predict --n-best {cuad.N_BEST}"
    ),
    "contractnli": LineKind(
        ("document", "key", "scores", "span_probs"),
        "answers of evidence_classification have it for documents that ldt predict "
        "data.format=contractnli reads",
    ),
    "qasper": LineKind(("answer", "evidence"), "answers of qasper have one"),
    "lexglue": LineKind(
        ("label", "scores"), "answers of classification have both", ("scores", "windows")
    ),
}  # ldt's lines of summaries are read as they are
_DOCUMENTS = {"text", "context", "supports", "facts", "tokens"}  # fields of gold


def read(source: Names, format: str, module: ModuleType) -> JsonFile | None:
    """Predictions as ``module.read_predictions`` has them; None where the first line is none of
    ``ldt predict``.

    Args:
        module: that of the metric; with ``of_answers``, where lines become predictions one by one,
            else by a file of ``published``.

    Raises:
        UserError: there is no such file; there are several, but one is read.
        DataError: it is damaged, or gold; a line has not what the layout needs.
    """
    files, kind = each(source), KINDS.get(format)
    if kind is None or not (
        begins_with_object(files[0], kind.first) or _is_table(files[0], kind.first)
    ):
        return None
    if format != "tydiqa":
        only(files, f"answers of {format}")
    lines, name = _Lines(files, kind), name_of(source)
    try:
        converted = _converted(iter(lines), module, name)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"no key {error}" if isinstance(error, KeyError) else f"{error}"
        raise DataError(
            f"{lines.where}: not as ldt predict writes it for {format} ({what})"
        ) from None
    if format == "cuad" and lines.most < cuad.N_BEST:
        raise DataError(
            f"{lines.where}: {lines.most:,} spans of a question at most; the layout has "
            f"{cuad.N_BEST}: ldt predict --n-best {cuad.N_BEST}"
        )
    return converted


def _is_table(file: str, first: tuple[str, ...]) -> bool:
    """True for a table of ``ldt predict``, by its ending and columns."""
    if file == "-" or records.suffix(file) not in prediction_files.TABLES:
        return False
    try:
        row: Any = next(prediction_files.answers(file), None)
    except DataError:  # such as a published table, which has no header
        return False
    return row is not None and not {*first}.isdisjoint(row.fields)


def _converted(lines: Iterator[dict[str, Any]], module: ModuleType, name: str) -> JsonFile:
    if hasattr(module, "of_answers"):
        return module.of_answers(lines, name)
    with TemporaryDirectory(prefix="ldt-") as folder:
        target = Path(folder) / "predictions"
        prediction_files.write(module.published(lines), target)
        try:
            return module.read_predictions([str(target)])._replace(name=name)
        except DataError as error:  # such as an answer that is no text
            raise DataError(str(error).replace(str(target), name)) from None


class _Lines:
    """Lines that are read one by one; ``where`` is the last one."""

    def __init__(self, files: list[str], kind: LineKind):
        self.files, self.kind = files, kind
        self.where = named(files)
        self.most = 0  # spans of a question

    def __iter__(self) -> Iterator[dict[str, Any]]:
        seen = set()
        for file in self.files:
            for example in prediction_files.answers(file):
                self.where, fields = example.where, example.fields
                if "windows" not in fields and not _DOCUMENTS.isdisjoint(fields):
                    raise DataError(
                        f"{self.where}: looks like a gold file, not like answers{SWAPPED}"
                    )
                for key in ("id", *self.kind.keys):
                    if key not in fields:
                        raise DataError(f"{self.where}: no field {key!r}; {self.kind.otherwise}")
                id = str(example.id), fields.get("language")
                if id in seen:
                    raise DataError(f"{self.where}: the id {shown(id[0])} stands twice; each once")
                seen.add(id)
                self.most = max(self.most, len(fields.get("n_best") or ()))
                yield fields
