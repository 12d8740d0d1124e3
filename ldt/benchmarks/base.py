"""Base of the published data sets: gold, predictions, their scores, and answers without reading."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from ldt.benchmarks.recognition import begins_with_object
from ldt.data.answer_files import TABLES, answers
from ldt.data.options import DEFAULTS
from ldt.errors import DataError, shown
from ldt.io import records, strict_json
from ldt.io.sources import Names, named, only
from ldt.io.strict_json import take_id
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines
from ldt.metrics.result import Item, Result, compare, mean

Answers = Mapping[Any, Any]  # predictions by id, each as `Benchmark.score` takes it

_DOCUMENTS = {"text", "context", "supports", "facts", "tokens"}  # fields of gold


@dataclass
class Benchmark:
    """A published data set: how its files are scored, and answers that need no reading.

    A data set is a module with ``read(source, data)``, which yields examples with the fields of its
    task; ``published(answers)``, which makes the published layout of answers of ``ldt predict``;
    ``score(right, answer)``, the scores of one answer, from 0 to 1; and a class of this base.
    Fields that a class adds are options of ``ldt evaluate``.

    Args:
        data: data section of a recipe, for the encoding and what else says how gold is read.
    """

    data: Any = DEFAULTS

    title: ClassVar[str]
    units: ClassVar[str] = "questions"  # drawn for intervals
    noun: ClassVar[str] = "question"
    shown: ClassVar[tuple[str, ...]] = ()
    no_length: ClassVar[str] = ""
    no_place: ClassVar[str] = ""
    # Keys of the lines of ldt predict that the layout is made of, and advice where one is missing.
    needs: ClassVar[tuple[str, ...]] = ()
    advice: ClassVar[str] = ""
    marks: ClassVar[tuple[str, ...]] = ("id",)  # one of them begins lines of ldt predict

    @classmethod
    def options(cls) -> list[str]:
        """Names of the options of this data set alone."""
        return [each.name for each in fields(cls) if each.init and each.name != "data"]

    def gold(self, files: Sequence[str]) -> list[Item]:
        """The questions or documents of all files, with their right answers.

        Raises:
            UserError: there is no such file, or there are several where one is read.
            DataError: it is damaged, of another layout, or has no right answers.
        """
        raise NotImplementedError

    def load(self, files: Sequence[str]) -> Any:
        """The value of a file of predictions: here one JSON value."""
        return strict_json.read(only(files, "predictions of this layout")).value

    def parse(self, value: Any, name: str) -> Answers:
        """Predictions by id: here one object, id to text.

        Args:
            value: as `load` or ``published`` makes it.
            name: of the file, for messages.

        Raises:
            DataError: another layout, or what the published script refuses.
        """
        return {id: {"answer": text} for id, text in texts_by_id(value, name).items()}

    def published(self, lines: Iterable[dict[str, Any]]) -> Any:
        """The value of a file of predictions, made of lines of ``ldt predict``."""
        raise NotImplementedError

    def score(self, right: Any, answer: Any) -> dict[str, float]:
        """The scores of one answer, from 0 to 1; None is no answer."""
        raise NotImplementedError

    def answers(self, files: Sequence[str]) -> Answers:
        """Predictions of files in the published layout, or of lines or a table of ldt predict.

        Raises:
            UserError: there is no such file, or there are several where one is read.
            DataError: it is damaged, or gold; a line has not what the layout needs.
        """
        name = name_of(files)
        if not (
            self.needs
            and (begins_with_object(files[0], self.marks) or _is_table(files[0], self.marks))
        ):
            return self.parse(self.load(files), name)
        lines = OwnLines(self, files)
        try:
            return self.parse(self.published(iter(lines)), name)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            what = f"no key {error}" if isinstance(error, KeyError) else f"{error}"
            raise DataError(f"{lines.where}: not as ldt predict writes it ({what})") from None

    def aggregate(self, items: Sequence[Item], answers: Answers, name: str) -> Result:
        """The figures of all questions: here means of their scores.

        Args:
            name: of the file of predictions, for messages.
        """
        items = [replace(i, scores=self.score(i.right, answers.get(i.id))) for i in items]
        metrics: dict[str, float | int] = {**mean([item.scores for item in items])}
        return self.result(items, metrics, *compare([i.id for i in items], answers))

    def result(self, items: Sequence[Item], metrics: dict[str, float | int], *ids, **more):
        """A result of this data set."""
        known: dict[str, Any] = {"title": self.title, "noun": self.noun, "shown": self.shown}
        known |= {"no_place": self.no_place, "no_length": self.no_length} | more
        return Result(known.pop("title"), list(items), metrics, self.units, *ids, **known)

    def constants(self, items: Sequence[Item]) -> dict[str, Answers]:
        """Predictions that need no reading, by their names in words."""
        raise NotImplementedError

    def compared(self, name: str) -> bool:
        """True of figures in which predictions without reading are compared."""
        return True

    def baselines(self, items: Sequence[Item], answers: Answers, name: str) -> Baselines:
        """The best of `constants` for each figure of all questions."""
        figures = {}
        for words, constant in self.constants(items).items():
            result = self.aggregate(items, constant, words)
            figures[words] = {
                name: value
                for name, value in result.metrics.items()
                if isinstance(value, float) and not name.startswith((*result.parts,))
            }
        best = baseline.best(figures)
        return {name: each for name, each in best.items() if self.compared(name)}


class OwnLines:
    """Lines of ldt predict, read one by one; ``where`` is the last one."""

    def __init__(self, benchmark: Benchmark, files: Sequence[str]):
        self.benchmark, self.files = benchmark, files
        self.where = named(files)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        seen = set()
        for file in self.files:
            for example in answers(file):
                self.where, fields = example.where, example.fields
                if "windows" not in fields and not _DOCUMENTS.isdisjoint(fields):
                    raise DataError(f"{self.where}: looks like a gold file, not like answers")
                for key in ("id", *self.benchmark.needs):
                    if key not in fields:
                        raise DataError(f"{self.where}: no field {key!r}; {self.benchmark.advice}")
                id = str(example.id), fields.get("language")
                if id in seen:
                    raise DataError(f"{self.where}: the id {shown(id[0])} stands twice; each once")
                seen.add(id)
                yield fields


def _is_table(file: str, keys: Sequence[str]) -> bool:
    """True for a table of ldt predict, by its ending and columns."""
    if file == "-" or records.suffix(file) not in TABLES:
        return False
    try:
        row: Any = next(answers(file), None)
    except DataError:  # such as a published table, which has no header
        return False
    return row is not None and not {*keys}.isdisjoint(row.fields)


def name_of(source: Names) -> str:
    """Name of files in messages."""
    return "stdin" if named(source) == "-" else named(source)


def whole(source: Names, what: str, encoding: str | None) -> strict_json.JsonFile:
    """The JSON value of the one file of a gold set."""
    return strict_json.read(only(source, f"the {what}"), encoding)


def entries(
    value: Any, name: str, id_key: str, what: str = "question"
) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield each entry of a list with its id, and its place for messages.

    Args:
        name: of the file.
        id_key: field of the id.
        what: noun of an entry in messages.

    Raises:
        DataError: an entry that is no object or has no id.
    """
    for number, entry in enumerate(value, 1):
        id = take_id(entry, id_key, f"{name}: {what} {number:,}")
        yield entry, id, f"{name}: {id}"


def once(keys: Iterable[str], where: str) -> None:
    """Refuse a key that comes twice.

    Raises:
        DataError: the first that does.
    """
    seen = set()
    for key in keys:
        if key in seen:
            raise DataError(f"{where}: the id {shown(key)} stands twice; each question once")
        seen.add(key)


def checked(items: list[Item], where: str, noun: str = "questions") -> list[Item]:
    """The items, of which there are some and each id comes once.

    Raises:
        DataError: there is none, or an id twice.
    """
    if not items:
        raise DataError(f"{where}: no {noun} in it")
    once((item.id for item in items), where)
    return items


def texts_by_id(value: Any, name: str) -> dict[str, str]:
    """Predictions that are one object, id to text.

    Raises:
        DataError: another layout, or a prediction that is no text.
    """
    if not isinstance(value, dict):
        raise DataError(f"{name}: {shown(value)}; expected one object, {{id: answer}}")
    for key, text in value.items():
        if not isinstance(text, str):
            what = f"the prediction is {shown(text)}, expected text"
            raise DataError(f"{name}: {shown(key)}: {what}")
    return value


def by_id(answers: Iterable[dict]) -> dict[str, str]:
    """The published layout {id: answer}."""
    return {str(answer["id"]): answer["answer"] for answer in answers}


def number(item: Mapping[Any, Any], key: Any, where: str) -> float:
    """A number that a prediction has under ``key``.

    Raises:
        DataError: it is missing, or no number.
    """
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{where}: {key} is {shown(value)}, expected a number")
    return float(value)
