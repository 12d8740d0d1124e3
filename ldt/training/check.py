"""Faults in the data of a recipe, all of them at once and before anything is trained."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from ldt.data.corpus import Reader, sources
from ldt.data.findings import KINDS, Finding, worst_first
from ldt.data.formats import read
from ldt.data.labels import AmbiguousLabels
from ldt.data.near_duplicates import Sketches
from ldt.data.tokenization import add_tokens, tokenize
from ldt.errors import EXIT_DATA, EXIT_OK, DataError, RecipeError, UserError, plural
from ldt.io.records import Example
from ldt.io.sources import named
from ldt.recipe.recipe import Recipe
from ldt.training.label_faults import tell_evaluation, tell_labels
from ldt.training.survey import (
    DocumentSurvey,
    Length,
    compare_copies,
    conclude,
    length_table,
    same_files,
    until_damage,
    watched,
)

if TYPE_CHECKING:
    from ldt.data.token_store import TokenStore
    from ldt.training.job import Job

log = logging.getLogger("ldt")

# kinds that say what the message of a task says
_STOPS_BY = {"one_label", "unseen_label", "unlabelled"}
# kinds with which a training does not begin
_ENDS = {*_STOPS_BY, "stops", "ambiguous_labels", "unreadable", "unusable", "duplicate_id"}
_COSTED = 2_000  # documents of a set that are encoded to tell the cost, at most
_LONG = 30  # tokens of a document of a corpus from which on it is a copy if it stands twice
_DETAILED = ("unevaluated_label", "small_evaluation")  # kinds that are told with their detail
_FEW = 5  # findings that a training tells before it begins


@dataclass(frozen=True)
class CheckReport:
    """Findings of `check`.

    Args:
        noun: what examples are called.
        documents: their number by set, train and eval, without those that cannot be used.
        findings: the worst first.
        lengths: by set, as `ldt.training.survey.length_table` has them, in ``unit``.
        unit: tokens, or words where there is no tokenizer.
        max_length: longest input; None where there is no model.
        remarks: what was not looked at, and why.
        cost: lines on time and memory of the training; none where they were not asked for.
    """

    noun: str
    documents: dict[str, int]
    findings: list[Finding]
    lengths: dict[str, dict[str, Any]]
    unit: str
    max_length: int | None
    remarks: list[str]
    cost: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0, or that of bad data where a fault or a warning was found."""
        return EXIT_DATA if any(f.level != "note" for f in self.findings) else EXIT_OK

    def facts(self) -> dict[str, Any]:
        """The report as JSON."""
        found = [asdict(f) | {"what": f.what, "would_do": f.would_do} for f in self.findings]
        return asdict(self) | {"findings": found, "exit_code": self.exit_code}


@dataclass(frozen=True)
class Ruler:
    """Measure of a document's length: the tokenizer of the model, or words where there is none.

    Args:
        tokenizer: None without a model.
        max_length: longest input.
        why: there is no tokenizer.
    """

    tokenizer: Any = None
    max_length: int | None = None
    why: str = ""

    @classmethod
    def of(cls, recipe: Recipe) -> Ruler:
        """The tokenizer of a recipe's model, if it is there; weights are not read.

        Raises:
            RecipeError: the model reads less than ``data.max_length``.
        """
        from ldt.model import load_tokenizer, usable_length
        from ldt.model.loading import find_folder, read_config
        from ldt.training.job import config_changes, longest_input

        if recipe.model.path is None:
            return cls(why="model.path is not set")
        try:
            folder = find_folder(recipe.model.path)
            config = read_config(folder, **config_changes(recipe))
            tokenizer = load_tokenizer(folder, config)
        except RecipeError:
            raise
        except UserError as error:
            return cls(why=str(error))
        return cls(tokenizer, longest_input(recipe, usable_length(config)))

    def text(self, text: str) -> Length:
        """The length of a plain text, which is read whole."""
        if self.tokenizer is None:
            words = len(text.split())
            return Length(words, words, 1)
        assert self.max_length is not None
        ids = tokenize(self.tokenizer, text)
        inputs = max(-(-len(ids) // (self.max_length - 2)), 1)
        return Length(len(ids) + 2, len(ids) + 2, inputs, self._unknown(ids))

    def example(self, task, data, example: Example) -> Length:
        """The length of an example, as the task encodes it."""
        if self.tokenizer is None:
            return self.text(" ".join(task.parts(example, data)))
        # The labels of spans take no config, only word that they are wanted.
        spans = "start_positions" in task.inputs.label_names
        config = SimpleNamespace() if spans else None
        features = task.encode(
            example, self.tokenizer, data=data, max_length=self.max_length, config=config
        )
        tokens, chunks = features[0]["tokens"], features[0].get("chunks", len(features))
        cut = any(feature.get("flags", {}).get("truncated") for feature in features)
        fresh = self.max_length - data.stride  # tokens that a chunk adds to the one before
        read = min(tokens - 1, self.max_length + (chunks - 1) * fresh) if cut else tokens
        unknown = sum(self._unknown(feature["input_ids"]) for feature in features[:chunks])
        beyond = features[0].get("unlearnt")
        return Length(tokens, read, chunks, unknown, beyond)

    def _unknown(self, ids: Sequence[int]) -> int:
        unknown = self.tokenizer.unk_token_id
        return 0 if unknown is None else list(ids).count(unknown)


def check(recipe: Recipe, *, cost: bool = False) -> CheckReport:
    """Look at all data of a recipe, and train nothing.

    Args:
        recipe: of a fine-tuning, or of a pretraining on a corpus.
        cost: whether a few steps are measured, to tell what the training will take; not where
            there is no model, or a fault that ends the training.

    Raises:
        UserError: or a subclass, where files are missing or the recipe cannot work.
    """
    if recipe.task.reads.kind not in _SURVEYS:
        raise RecipeError(
            f"{recipe.where('task', 'name')}: {recipe.task.name} learns from raw characters, which "
            "are not checked"
        )
    ruler = Ruler.of(recipe)
    with Sketches() as sketches:
        surveys = _SURVEYS[recipe.task.reads.kind](recipe, ruler, sketches)
        train, evaluation = surveys["train"], surveys.get("eval")
        conclude(train, evaluation, sketches)
    findings = [f for s in surveys.values() for f in s.tally.findings(_size(s))]
    # Near copies are on both sides of a split by chance, exact ones never.
    if recipe.data.eval_fraction:
        findings = [
            replace(f, level="warning") if f.kind == "near_duplicate" else f for f in findings
        ]
    stops = _ENDS & {f.kind for f in findings}
    asked = cost and not ruler.why and not stops
    return CheckReport(
        noun=recipe.task.reads.noun,
        documents={name: len(survey) for name, survey in surveys.items()},
        findings=worst_first(findings),
        lengths={name: table for name, s in surveys.items() if (table := length_table(s))},
        unit="words" if ruler.why else "tokens",
        max_length=ruler.max_length,
        remarks=_remarks(surveys, ruler),
        cost=_cost(recipe, surveys) if asked else [],
    )


def _cost(recipe: Recipe, surveys: dict[str, DocumentSurvey]) -> list[str]:
    """Forecast of the training's cost; of many documents some are encoded for that."""
    from ldt.training.loop import cost_of

    every = max(1, max(-(-len(survey) // _COSTED) for survey in surveys.values()))
    if recipe.task.reads.kind == "examples":
        from ldt.training.finetune import Finetuning

        job: Job = Finetuning(recipe, every)
    else:
        from ldt.training.masked_lm import Pretraining

        job, every = Pretraining(recipe), 1
    try:
        with _silence():
            cost = cost_of(job)
    except UserError as error:
        return [f"cost: not known: {error}"]
    if cost is None:
        return []
    judged = f" (by one document in {every:,})" if every > 1 else ""
    return [f"cost: {cost.notice.text}{judged}"]


@contextmanager
def _silence() -> Iterator[None]:
    """Keep to itself what a training would log; the report says it."""
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def first_look(recipe: Recipe, examples: Mapping[str, Iterable[Example]]) -> list[str]:
    """The worst of what is wrong with labelled documents, a line each, found without delay.

    Copies are found, by hash alone, and classes that are not evaluated; `check` looks at all else.
    What else is wrong with classes is told where the task learns them.
    """
    task, data = recipe.task, recipe.data
    surveys = {name: DocumentSurvey(name) for name in examples}
    for name, survey in surveys.items():
        for example in examples[name]:
            document, asked = task.parts(example, data)
            survey.compare(example.where, document, asked, task.answer_key(example, data))
            survey.classes.add(example.where, task.classes(example, data))
    train, evaluation = surveys["train"], surveys["eval"]
    if data.eval and same_files(data.train, data.eval):
        evaluation.tally.add("same_files", [named(data.eval)])
        compare_copies(train, None)
    else:
        compare_copies(train, evaluation)
        if len(evaluation) and train.classes.counts:
            tell_evaluation(train, len(evaluation), evaluation.classes.counts)
    findings = [f for s in surveys.values() for f in s.tally.findings(len(s))]
    return brief(findings)


def first_look_at_text(stores: Mapping[str, TokenStore]) -> list[str]:
    """Findings about the tokens of a corpus: longer documents that stand there twice, or in both
    sets."""
    long = {name: store.fingerprints[store.lengths >= _LONG] for name, store in stores.items()}
    findings = [
        Finding("duplicate", KINDS["duplicate"].level, name, twice, len(stores[name]))
        for name, documents in long.items()
        if (twice := len(documents) - len(np.unique(documents)))
    ]
    if "train" in long and "eval" in long:
        leaked = int(np.isin(long["eval"], long["train"]).sum())
        if leaked:
            size = len(stores["eval"])
            findings.append(Finding("leak", KINDS["leak"].level, "eval", leaked, size))
    return brief(findings)


def brief(findings: Iterable[Finding]) -> list[str]:
    """The worst findings, a line each; notes are left out."""
    bad = [f for f in worst_first(findings) if f.level != "note"]
    lines = [summary(f) for f in bad[:_FEW]]
    if len(bad) > _FEW:
        lines.append(f"{len(bad) - _FEW} more kinds of findings")
    return [*lines, "ldt check looks at all data, and says what would do"] if lines else []


def summary(finding: Finding) -> str:
    """A finding in a line: ``eval: 3 of 40 stand in the training set too … (dev.jsonl:7)``."""
    places = ", ".join(finding.where)
    amount = "" if finding.about_all else f"{finding.count:,} of {finding.of:,} "
    detail = f": {finding.detail}" if finding.kind in _DETAILED else ""
    return f"{finding.set}: {amount}{finding.what}{detail}" + (f" ({places})" if places else "")


def _labelled(recipe: Recipe, ruler: Ruler, sketches: Sketches) -> dict[str, DocumentSurvey]:
    """Look at labelled documents, as the task learns from them what they say about the model."""
    task, data = recipe.task, recipe.data
    if ruler.tokenizer is not None:
        add_tokens(ruler.tokenizer, task.inputs.markers)
    measure = partial(ruler.example, task, data)
    train = DocumentSurvey("train", measure)
    changes: dict[str, Any] = {}
    seen = watched(train, read(data.train, data, on_error=train.reject), task, data, sketches)
    error = _stopped(lambda: changes.update(task.learn(seen, data)))
    if isinstance(error, AmbiguousLabels):
        place, _, what = str(error).partition(": ")
        train.tally.add("ambiguous_labels", [place], what)
    elif error:
        train.tally.add("stops", [], str(error))
    for _ in seen:  # what the task did not take any more
        pass
    surveys = {"train": train}
    if data.eval and same_files(data.train, data.eval):
        train.tally.add("same_files", [named(data.eval)])
    elif data.eval:
        evaluation = surveys["eval"] = DocumentSurvey("eval", measure)
        seen = watched(
            evaluation, read(data.eval, data, on_error=evaluation.reject), task, data, sketches
        )
        config = SimpleNamespace(**changes)
        if error is None and (error := _stopped(lambda: task.check(seen, data, config))):
            evaluation.tally.add("stops", [], str(error))
        for _ in seen:
            pass
    tell_labels(train, surveys.get("eval"))
    if data.eval_fraction and train.classes.counts:
        tell_evaluation(train, round(data.eval_fraction * len(train)))
    for survey in surveys.values():
        counts = survey.tally.counts
        if _STOPS_BY & counts.keys() or (not len(survey) and "unusable" in counts):
            counts.pop("stops", None)
    return surveys


def _stopped(step: Callable[[], Any]) -> UserError | None:
    """The error by which the data would end a training, of which the log says nothing yet."""
    try:
        with _silence():
            step()
    except (DataError, RecipeError) as error:
        return error
    return None


def _corpus(recipe: Recipe, ruler: Ruler, sketches: Sketches) -> dict[str, DocumentSurvey]:
    """Look at the documents of a corpus."""
    data = recipe.data.model_copy(update={"on_error": "skip"})
    surveys = {}
    same = data.eval is not None and same_files(data.train, data.eval)
    for name in ("train", "eval"):
        if getattr(data, name) is None or (same and name == "eval"):
            continue
        survey = surveys[name] = DocumentSurvey(name, ruler.text, short=False)
        for source in sources(getattr(data, name), data.format):
            reader = Reader(source, data)
            for text in until_damage(reader, survey):
                survey.compare(reader.where, text)
                survey.examine(reader.where, text)
                survey.gauge(text, reader.where)
                sketches.add(text)
            if reader.empty:
                survey.tally.add("empty", [source.name], "blank documents", reader.empty)
            for message in reader.messages[:1]:
                place, _, what = message.partition(": ")
                survey.tally.add("unreadable", [place], what, reader.rejected)
    if same:
        surveys["train"].tally.add("same_files", [named(data.eval)])
    return surveys


_SURVEYS = {"examples": _labelled, "corpus": _corpus}  # by the kind of the task


def _size(survey: DocumentSurvey) -> int:
    """Documents that were looked at, those that cannot be used among them."""
    counts = survey.tally.counts
    return len(survey) + counts.get("unreadable", 0) + counts.get("unusable", 0)


def _remarks(surveys: dict[str, DocumentSurvey], ruler: Ruler) -> list[str]:
    lines = []
    if ruler.why:
        lines.append(f"lengths are in words: {ruler.why}")
    for name, survey in surveys.items():
        if survey.every > 1:
            sample = plural(len(survey.lengths), "document")
            lines.append(f"{name}: lengths are those of {sample}, every {survey.every:,}th")
    return lines
