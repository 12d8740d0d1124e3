"""Base class of the published data sets: gold answers, predictions, their scores, and baselines."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, NotRequired, Union

from pydantic import BeforeValidator, Strict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from ldt.benchmarks.recognition import begins_with_object
from ldt.data.answer_files import TABLES, answers
from ldt.data.options import DEFAULTS, DataSection
from ldt.errors import DataError, plural, quote
from ldt.io import records, strict_json
from ldt.io.records import Example
from ldt.io.sources import Names, brief, each, only
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines
from ldt.metrics.result import Item, Result, compare, mean, unmatched

AnswersById = Mapping[Any, Any]  # predictions by id, each as `Benchmark.score` takes it

# Kinds of fields, for `Shape`. An id may be a whole number, as evaluators' keys are not.
Id = Annotated[str, BeforeValidator(lambda id: str(id) if type(id) is int else id)]
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
Truth = Annotated[bool, Strict()]


@dataclass
class Benchmark:
    """Published data set: how its files are read and scored, and answers that need no reading.

    A data set is a module with ``read(source, data)``, which yields examples with the fields of its
    task; ``published(answers)``, which makes the published layout of answers of ``ldt predict``;
    ``score(right, answer)``, the scores of one answer, from 0 to 1; and a class of this base.
    Fields that a class adds are options of ``ldt evaluate``. A source is a path, or "-" for
    standard input, compressed or not; a DataError about its content names the place.

    Args:
        data: data section of a recipe, for the encoding and other settings of the gold file.
    """

    data: DataSection = DEFAULTS

    title: ClassVar[str]
    units: ClassVar[str] = "questions"  # drawn for intervals
    noun: ClassVar[str] = "question"
    shown: ClassVar[tuple[str, ...]] = ()
    no_length: ClassVar[str] = ""
    no_place: ClassVar[str] = ""
    shards: ClassVar[bool] = False  # gold may be several files
    right: ClassVar[tuple[str, ...]] = ()  # fields of an example that the files of a test set lack
    # Keys of the lines of ldt predict that the layout is made of, and advice where one is missing.
    needs: ClassVar[tuple[str, ...]] = ()
    advice: ClassVar[str] = ""
    marks: ClassVar[tuple[str, ...]] = ("id",)  # one of them begins lines of ldt predict

    read: ClassVar[Any]
    published: ClassVar[Any]
    score: ClassVar[Any]

    @classmethod
    def options(cls) -> list[str]:
        """Names of the options that only this data set has: its dataclass fields except
        ``data``."""
        return [each.name for each in fields(cls) if each.init and each.name != "data"]

    def gold(self, files: Sequence[str]) -> list[Item]:
        """Read the gold files: an unscored `Item` for each question or document. UserError for
        files that are missing, or too many; DataError for damage, another layout, and files
        without gold answers."""
        items = []
        listed = each(files) if self.shards else [only(files, f"the {self.noun}s of {self.title}")]
        for example in (example for file in listed for example in self.read(file, self.data)):
            for name in self.right:
                if name not in example.fields:
                    what = "the files of a test set cannot be scored"
                    raise DataError(f"{example.where}: no {name}; {what}")
            items.append(self.item(example))
        return checked(items, name_of(files), f"{self.noun}s")

    def item(self, example: Example) -> Item:
        """Make the `Item` of an example, without scores: its id, its bootstrap unit, the gold
        answer in the form that ``score`` takes as ``right``, and where known the number of words
        of its document and the answer's place (0 to 1). Each data set defines it."""
        raise NotImplementedError

    def load(self, files: Sequence[str]) -> Any:
        """Load files of predictions in the published layout as `parse` takes them; here one JSON
        value."""
        return strict_json.read(only(files, "predictions of this layout")).value

    def parse(self, value: Any, name: str) -> AnswersById:
        """Check predictions and convert them to {id: answer}; here {id: text} to {id: {"answer":
        text}}. DataError for another layout, or what the published script refuses.

        Args:
            value: result of `load` or of ``published``.
            name: name of the file, for messages.
        """
        return {id: {"answer": text} for id, text in _TEXTS(value, name).items()}

    def answers(self, files: Sequence[str]) -> AnswersById:
        """Read predictions as {id: answer} from files in the published layout, or from those of ldt
        predict, which ``published`` converts first. UserError for files that are missing, or too
        many; DataError for damage, or a line that lacks what the layout needs."""
        name, marks = name_of(files), self.marks
        if not self.needs or not (
            begins_with_object(files[0], marks) or _is_table(files[0], marks)
        ):
            return self.parse(self.load(files), name)
        try:
            return self.parse(self.published(self._lines(files)), name)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            what = f"no key {error}" if isinstance(error, KeyError) else f"{error}"
            raise DataError(f"{name}: not as ldt predict writes it ({what})") from None

    def _lines(self, files: Sequence[str]) -> list[dict[str, Any]]:
        lines = [example for file in files for example in answers(file)]
        for line in lines:
            for key in ("id", *self.needs):
                if key not in line.fields:
                    raise DataError(f"{line.where}: no field {key!r}; {self.advice}")
        once(((line.fields.get("language"), str(line.id)) for line in lines), name_of(files))
        return [line.fields for line in lines]

    def aggregate(self, items: Sequence[Item], answers: AnswersById, name: str) -> Result:
        """Score the answers: a `Result` with the metrics of all items, here means of ``score``,
        from 0 to 100, and the ids that only one side has. Copies of the items get the scores.

        Args:
            items: items of `gold`.
            answers: predictions by id; an item without one is scored as None.
            name: name of the file of predictions, for messages.
        """
        items = [replace(i, scores=self.score(i.right, answers.get(i.id))) for i in items]
        metrics: dict[str, float | int] = {**mean([item.scores for item in items])}
        return self.result(items, metrics, *compare([i.id for i in items], answers))

    def scored(self, items: Sequence[Item], answers: AnswersById, name: str) -> Result:
        """Score the answers by `aggregate`; add the metrics of `baselines`, and warnings about ids
        that do not match and about metrics no better than the baselines."""
        result = self.aggregate(items, answers, name)
        result.warnings[:0] = unmatched(result, name)
        result.baselines = self.baselines(items, answers, name)
        result.warnings += baseline.no_better(result.metrics, result.baselines)
        return result

    def result(
        self, items: Sequence[Item], metrics: Mapping[str, float | int], *ids: Any, **more: Any
    ) -> Result:
        """Make the `Result` of scored items, with this data set's title and nouns.

        Args:
            metrics: metrics by name, from 0 to 100, and counts.
            ids: the missing and the extra ids, two lists, or neither.
            more: further fields of `Result`.
        """
        known: dict[str, Any] = {"title": self.title, "noun": self.noun, "shown": self.shown}
        known |= {"no_place": self.no_place, "no_length": self.no_length} | more
        title = known.pop("title")
        return Result(title, list(items), {**metrics}, self.units, *ids or ([], []), **known)

    def constants(self, items: Sequence[Item]) -> dict[str, AnswersById]:
        """Trivial predictions, which ignore the text, by their description: {description: {id:
        answer}}. Each data set defines it."""
        raise NotImplementedError

    def compared(self, name: str) -> bool:
        """True if `baselines` gives a value for the metric of this name; here always."""
        return True

    def baselines(self, items: Sequence[Item], answers: AnswersById, name: str) -> Baselines:
        """`Baseline` (best value and description) of each metric, from 0 to 100, among the
        `constants`; metrics of a part of the items, as HasAns_f1, and those that are not
        `compared`, are left out. Only ``items`` is used."""
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


def always(answer: str, items: Sequence[Item], **more: Any) -> dict[str, AnswersById]:
    """Predict ``answer`` for each item: {"always '<answer>'": {id: {"answer": answer, **more}}}, as
    `Benchmark.constants` returns it."""
    return {baseline.quoted(answer): {item.id: {"answer": answer} | more for item in items}}


class Shape:
    """Shape of a JSON value to check: types, in lists and objects as JSON has them.

    ``name?`` may be missing; {str: type} is an object with any keys; a tuple has alternatives. A
    call with a value and its place in words returns the value with the named fields only, or raises
    a DataError.
    """

    def __init__(self, shape: Any):
        self._shape = shape

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(_type(self._shape))

    def __call__(self, value: Any, where: str) -> Any:
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = f"field {'.'.join(map(str, first['loc']))}: " if first["loc"] else ""
            what = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
            raise DataError(f"{where}: {place}found {quote(first['input'])}; {what}") from None


def _type(shape: Any) -> Any:
    if isinstance(shape, list):
        return list[_type(shape[0])]  # type: ignore[misc]
    if isinstance(shape, tuple):
        return Union[tuple(map(_type, shape))]  # noqa: UP007
    if not isinstance(shape, dict):
        return shape
    if [*shape] == [str]:
        return dict[str, _type(shape[str])]  # type: ignore[misc]
    types = {name: _type(each) for name, each in shape.items()}
    optional = {name[:-1]: NotRequired[types.pop(name)] for name in shape if name[-1] == "?"}
    return TypedDict("object", types | optional)  # type: ignore[misc, operator]


_TEXTS = Shape({str: str})


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
    """Name of one or several files in messages: "stdin", ``a.json``, or ``a.json and 4 more``."""
    return "stdin" if brief(source) == "-" else brief(source)


def once(keys: Iterable[Any], where: str) -> None:
    """Raise a DataError if a key comes twice.

    Args:
        keys: ids, or tuples that end with an id, which the message shows.
        where: name of the file, for the message.
    """
    seen = set()
    for key in keys:
        if key in seen:
            id = key[-1] if isinstance(key, tuple) else key
            raise DataError(f"{where}: the id {quote(id)} stands twice; each question once")
        seen.add(key)


def checked(items: list[Item], where: str, noun: str) -> list[Item]:
    """Return the items unchanged; raise a DataError if there are none, or if an id comes twice.
    ``where`` is the file and ``noun`` the plural name of the items, for messages."""
    if not items:
        raise DataError(f"{where}: no {noun} in it")
    once((item.id for item in items), where)
    return items


def same_ids(ids: Sequence[str], answers: AnswersById, name: str, noun: str) -> None:
    """Raise a DataError if the predictions' ids are not exactly the gold ``ids``, as the published
    scripts do; the message has the file ``name`` of the predictions and ``noun`` for a question."""
    for odd, what in zip(compare(ids, answers), ("no prediction of", "no gold of"), strict=True):
        if odd:
            what = f"{what} {plural(len(odd), noun)}, such as {odd[0]!r}"
            raise DataError(f"{name}: {what}; the ids of both files are the same")


def by_id(answers: Iterable[dict]) -> dict[str, str]:
    """Convert answers of ldt predict, dicts with ``id`` and ``answer``, to the published {id:
    answer}."""
    return {str(answer["id"]): answer["answer"] for answer in answers}
