"""Find all faults in a recipe's data, before training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from ldt.benchmarks.formats import read
from ldt.data.corpus import Reader, sources
from ldt.data.findings import KINDS, Finding, worst_first
from ldt.data.labels import AmbiguousLabels
from ldt.data.near_duplicates import Sketches
from ldt.data.profile import (
    Length,
    Profile,
    compare_copies,
    find_class_faults,
    find_near,
    find_unevaluated,
    same_files,
)
from ldt.data.tokenization import add_tokens, tokenize
from ldt.errors import EXIT_DATA, EXIT_OK, DataError, RecipeError, UserError, plural
from ldt.io.progress import reported
from ldt.io.records import Example
from ldt.io.sources import brief
from ldt.recipe.recipe import Recipe
from ldt.tasks.base import Task

if TYPE_CHECKING:
    from ldt.data.token_store import TokenStore
    from ldt.training.job import Job

log = logging.getLogger("ldt")

# Kinds that say what the message of a task says.
_STOPS_BY = {"one_label", "unseen_label", "unlabelled"}
# Kinds with which a training does not begin.
_ENDS = {*_STOPS_BY, "stops", "ambiguous_labels", "unreadable", "unusable", "duplicate_id"}
_COSTED = 2_000  # documents of a set that are encoded to tell the cost, at most
_LONG = 30  # tokens of a document of a corpus from which on it is a copy if it stands twice
# Kinds that are told with their detail.
_DETAILED = {"near_names", "rare_label", "unevaluated_label", "small_evaluation"}
_FEW = 5  # findings that a training tells before it begins


@dataclass(frozen=True)
class CheckReport:
    """Result of `check`.

    Args:
        noun: name of the examples in messages.
        documents: usable documents by set, train and eval.
        findings: findings, the most severe first.
        lengths: `Profile.length_table` by set, in ``unit``.
        unit: tokens, or words if there is no tokenizer.
        max_length: longest input; None without a model.
        remarks: what was not examined, and why.
        cost: lines about time and memory of the training; empty unless requested.
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
        """`EXIT_DATA` if there is an error or a warning, else `EXIT_OK`, 0."""
        return EXIT_DATA if any(f.level != "note" for f in self.findings) else EXIT_OK

    def facts(self) -> dict[str, Any]:
        """The report as a dict of JSON values by the names of its fields, with ``exit_code``."""
        findings = [asdict(f) | {"what": f.what, "would_do": f.would_do} for f in self.findings]
        return asdict(self) | {"findings": findings, "exit_code": self.exit_code}


@dataclass(frozen=True)
class _TokenCounter:
    """Measures document lengths by the model's tokenizer, or in words without one; ``why`` says why
    there is none."""

    tokenizer: Any = None
    max_length: int = 0
    why: str = ""

    @classmethod
    def of(cls, recipe: Recipe) -> _TokenCounter:
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
        if self.tokenizer is None:
            words = len(text.split())
            return Length(words, words, 1)
        ids = tokenize(self.tokenizer, text)
        inputs = max(-(-len(ids) // (self.max_length - 2)), 1)
        return Length(len(ids) + 2, len(ids) + 2, inputs, self._unknown(ids))

    def example(self, task: Task, data: Any, example: Example) -> Length:
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
        return Length(tokens, read, chunks, unknown, features[0].get("unlearnt"))

    def _unknown(self, ids: Iterable[int]) -> int:
        unknown = self.tokenizer.unk_token_id
        return 0 if unknown is None else list(ids).count(unknown)


def check(recipe: Recipe, *, cost: bool = False) -> CheckReport:
    """Examine all data of a recipe without training; writes nothing but log lines.

    Args:
        recipe: recipe of a fine-tuning, or of pretraining on a corpus.
        cost: True measures a few steps to forecast the cost, if there is a model and no fault that
            prevents training.

    Raises:
        UserError: or a subclass, if files are missing or the recipe cannot work.
    """
    kind = recipe.task.reads.kind
    if kind == "characters":
        raise RecipeError(
            f"{recipe.where('task', 'name')}: {recipe.task.name} learns from raw characters, which "
            "are not checked"
        )
    ruler = _TokenCounter.of(recipe)
    with Sketches() as sketches:
        profiles = (_labelled if kind == "examples" else _corpus)(recipe, ruler, sketches)
        train, evaluation = profiles["train"], profiles.get("eval")
        for profile in profiles.values():
            profile.conclude()
        compare_copies(train, evaluation)
        find_near(train, evaluation, sketches)
    findings = [f for profile in profiles.values() for f in profile.findings()]
    # Near copies are on both sides of a split by chance, exact ones never.
    if recipe.data.eval_fraction:
        findings = [
            replace(f, level="warning") if f.kind == "near_duplicate" else f for f in findings
        ]
    asked = cost and not ruler.why and not _ENDS & {f.kind for f in findings}
    remarks = [f"lengths are in words: {ruler.why}"] if ruler.why else []
    for name, profile in profiles.items():
        if profile.every > 1:
            sample = plural(len(profile.lengths), "document")
            remarks.append(f"{name}: lengths are those of {sample}, every {profile.every:,}th")
    return CheckReport(
        noun=recipe.task.reads.noun,
        documents={name: len(profile) for name, profile in profiles.items()},
        findings=worst_first(findings),
        lengths={name: table for name, p in profiles.items() if (table := p.length_table())},
        unit="words" if ruler.why else "tokens",
        max_length=ruler.max_length or None,
        remarks=remarks,
        cost=_cost(recipe, max(map(len, profiles.values()))) if asked else [],
    )


def _cost(recipe: Recipe, documents: int) -> list[str]:
    from ldt.training import TrainingOptions
    from ldt.training.loop import train

    every = max(1, -(-documents // _COSTED))
    if recipe.task.reads.kind == "examples":
        from ldt.training.finetune import Finetuning

        job: Job = Finetuning(recipe, every)
    else:
        from ldt.training.masked_lm import Pretraining

        job, every = Pretraining(recipe), 1
    try:
        with _silence():
            cost = train(job, TrainingOptions(dry_run=True)).cost
    except UserError as error:
        return [f"cost: not known: {error}"]
    if cost is None:
        return []
    judged = f" (by one document in {every:,})" if every > 1 else ""
    return [f"cost: {cost.notice.text}{judged}"]


@contextmanager
def _silence() -> Iterator[None]:
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


# -- before a training


def first_look(recipe: Recipe, examples: Mapping[str, Iterable[Example]]) -> list[str]:
    """Most severe findings about labelled documents, one line each, from a fast examination.

    It finds exact copies by hash and faults in classes; `check` finds everything else.

    Args:
        recipe: recipe, for its task and data section.
        examples: documents under ``train`` and ``eval``, of which the latter may be empty.

    Returns:
        At most 5 findings and 2 lines about the rest and `ldt check`; empty if all is well.
    """
    task, data = recipe.task, recipe.data
    profiles = {name: Profile(name) for name in examples}
    for name, profile in profiles.items():
        for example in examples[name]:
            profile.classify(example.where, _compare(profile, example, task, data)[1])
    train, evaluation = profiles["train"], profiles["eval"]
    if data.eval and same_files(data.train, data.eval):
        evaluation.add_fault("same_files", [brief(data.eval)])
        train.find_copies()
    else:
        compare_copies(train, evaluation)
        find_class_faults(train, evaluation if len(evaluation) else None)
    return _brief(f for profile in profiles.values() for f in profile.findings())


def first_look_at_text(stores: Mapping[str, TokenStore]) -> list[str]:
    """Lines about a tokenized corpus: documents of 30 tokens and more that stand twice in a set, or
    in both. ``stores`` has the tokens under ``train`` and ``eval``; either may be missing. Empty
    if all is well."""
    long = {name: store.fingerprints[store.lengths >= _LONG] for name, store in stores.items()}
    counts = [
        ("duplicate", name, len(hashes) - len(np.unique(hashes))) for name, hashes in long.items()
    ]
    if "train" in long and "eval" in long:
        counts.append(("leak", "eval", int(np.isin(long["eval"], long["train"]).sum())))
    return _brief(
        Finding(kind, KINDS[kind].level, name, count, len(stores[name]))
        for kind, name, count in counts
        if count
    )


def _brief(findings: Iterable[Finding]) -> list[str]:
    bad = [f for f in worst_first(findings) if f.level != "note"]
    lines = [_summary(f) for f in bad[:_FEW]]
    if len(bad) > _FEW:
        lines.append(f"{len(bad) - _FEW} more kinds of findings")
    return [*lines, "ldt check examines all data, and gives a remedy for each"] if lines else []


def _summary(finding: Finding) -> str:
    """A finding as a line: ``eval: 3 of 40 stand in the training set too … (dev.jsonl:7)``."""
    places = ", ".join(finding.where)
    amount = "" if finding.about_all else f"{finding.count:,} of {finding.of:,} "
    detail = f": {finding.detail}" if finding.kind in _DETAILED else ""
    return f"{finding.set}: {amount}{finding.what}{detail}" + (f" ({places})" if places else "")


# -- the documents


def _compare(
    profile: Profile, example: Example, task: Task, data: Any
) -> tuple[str, str | list[str] | None]:
    """Register an example in the search for copies; return its document and its classes."""
    document, asked = task.parts(example, data)
    answer, names = task.answer_key(example, data), task.classes(example, data)
    profile.compare(example.where, document, asked, answer, example.id)
    return document, names


def _labelled(recipe: Recipe, ruler: _TokenCounter, sketches: Sketches) -> dict[str, Profile]:
    task, data = recipe.task, recipe.data
    if ruler.tokenizer is not None:
        add_tokens(ruler.tokenizer, task.inputs.markers)
    changes: dict[str, Any] = {}

    def profile_of(name: str, step: Callable[[Iterator[Example]], Any] | None) -> Profile:
        profile = Profile(name, partial(ruler.example, task, data))
        records = read(getattr(data, name), data, on_error=profile.reject)
        usable = _usable(profile, records, task, data, sketches)
        try:
            with _silence():
                if step is not None:
                    step(usable)
        except AmbiguousLabels as error:
            profile.add_error("ambiguous_labels", error)
        except (DataError, RecipeError) as error:
            profile.add_fault("stops", [], str(error))
        for _ in usable:  # what the task did not take any more
            pass
        return profile

    train = profile_of("train", lambda usable: changes.update(task.learn(usable, data)))
    profiles = {"train": train}
    if data.eval and same_files(data.train, data.eval):
        train.add_fault("same_files", [brief(data.eval)])
    elif data.eval:
        config = SimpleNamespace(**changes)
        learnt = not {"stops", "ambiguous_labels"} & train.faults.counts.keys()
        check = partial(task.check, data=data, config=config)
        profiles["eval"] = profile_of("eval", check if learnt else None)
    find_class_faults(train, profiles.get("eval"))
    if data.eval_fraction and train.classes.counts:
        find_unevaluated(train, round(data.eval_fraction * len(train)))
    for profile in profiles.values():
        counts = profile.faults.counts
        if _STOPS_BY & counts.keys() or (not len(profile) and "unusable" in counts):
            counts.pop("stops", None)
    return profiles


def _usable(
    profile: Profile, examples: Iterable[Example], task: Task, data: Any, sketches: Sketches
) -> Iterator[Example]:
    """Examine each labelled example, and yield those that the task can use."""
    for example in _until_damage(examples, profile):
        where, error, faults = example.where, None, dict[str, str]()
        try:
            for fault in task.faults(example, data):
                faults.setdefault(fault.kind, fault.what)
        except DataError as refused:
            error = refused
        try:
            document, names = _compare(profile, example, task, data)
        except DataError as refused:
            error = refused
        if error is None:
            profile.examine(example, where, document)
            profile.classify(where, names)
            sketches.add(document)
        elif not faults:
            profile.add_fault("unusable", [where], str(error).removeprefix(f"{where}: "))
        for kind, what in faults.items():
            profile.add_fault(kind, [where], what)
        if error is None and names is not None and "answer_not_in_candidates" not in faults:
            yield example


def _until_damage(items: Iterable[Any], profile: Profile) -> Iterator[Any]:
    """Yield items; damage that ends a file is noted."""
    try:
        yield from reported(items, f"looking at {profile.name}")
    except DataError as error:
        profile.reject(error)


def _corpus(recipe: Recipe, ruler: _TokenCounter, sketches: Sketches) -> dict[str, Profile]:
    data = recipe.data.model_copy(update={"on_error": "skip"})
    profiles = {}
    same = data.eval is not None and same_files(data.train, data.eval)
    for name in ("train",) if same or data.eval is None else ("train", "eval"):
        profile = profiles[name] = Profile(name, ruler.text, short=False)
        for source in sources(getattr(data, name), data.format):
            reader = Reader(source, data)
            for text in _until_damage(reader, profile):
                profile.compare(reader.where, text)
                profile.examine(text, reader.where, text)
                sketches.add(text)
            if reader.empty:
                profile.add_fault("empty", [source.name], "blank documents", reader.empty)
            if reader.messages:
                place, _, what = reader.messages[0].partition(": ")
                profile.add_fault("unreadable", [place], what, reader.rejected)
    if same:
        profiles["train"].add_fault("same_files", [brief(data.eval)])
    return profiles
