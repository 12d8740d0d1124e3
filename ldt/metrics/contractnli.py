"""ContractNLI: the class of each hypothesis, and the spans of the contract that are its evidence.

Predictions are a list of documents with class_probs and span_probs of each hypothesis. Figures are
called as in the published file: ``span.map``, ``class.accuracy``; those of all questions are means
over the hypotheses, each scored over all documents (``macro_label_micro_doc`` there).

Source: Koreeda and Manning 2021 (arXiv:2110.01799), the rules of their evaluation script.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from ldt.data.formats import contractnli as layout
from ldt.data.formats.contractnli import LABELS
from ldt.data.formats.entries import once
from ldt.data.options import DEFAULTS, DataSection
from ldt.errors import DataError, UserError, listed, plural, shown
from ldt.io.records import Example
from ldt.io.sources import Names
from ldt.io.strict_json import JsonFile, take, take_id
from ldt.metrics import baseline, nli, prediction_files
from ldt.metrics.baseline import Baselines
from ldt.metrics.nli import NOT_MENTIONED, SURE, Figures, Spans, mean_defined
from ldt.metrics.prediction_files import read as read_predictions  # noqa: F401
from ldt.metrics.result import Item, Result, compare, count_words, defined

SHOWN = (
    "span.map",
    "span.precision@recall80",
    "class.accuracy",
    "class.f1_contradiction",
    "class.f1_entailment",
)


class Pair(NamedTuple):
    """A document and a hypothesis; ``spans`` is None where gold does not mention it, where
    evidence is not scored. Classes are numbers in `LABELS`."""

    document: str
    key: str
    gold: int
    predicted: int
    binary: int  # predicted of entailment and contradiction only
    spans: Spans | None


class _Scorer:
    """Some of the pairs, scored together."""

    def __init__(self, pairs: Sequence[Pair], binary: Sequence[bool], numbers: Sequence[int]):
        """Take the pairs of these ``numbers``.

        Args:
            binary: of all pairs, whether they have a part in class_binary.
        """
        self.all = list(numbers)
        self.binary = [number for number in numbers if binary[number]]
        self.with_spans = [number for number in numbers if pairs[number].spans is not None]
        chosen = [pairs[number] for number in self.all]
        self.gold = np.array([pair.gold for pair in chosen])
        self.predicted = np.array([pair.predicted for pair in chosen])
        self.binary_gold = np.array([pairs[number].gold for number in self.binary])
        self.binary_predicted = np.array([pairs[number].binary for number in self.binary])
        self.table = nli.SpanTable([pair.spans for pair in chosen if pair.spans is not None])

    def span(self, weights: np.ndarray) -> Figures:
        """Figures of the evidence; weights are [resamples, all pairs] here and below."""
        return _prefixed("span", self.table.figures(weights[:, self.with_spans]))

    def classes(self, weights: np.ndarray) -> Figures:
        """Figures of the classes of all pairs."""
        figures = nli.class_figures(weights[:, self.all], self.gold, self.predicted)
        return _prefixed("class", figures)

    def two_classes(self, weights: np.ndarray) -> Figures:
        """Figures of entailment against contradiction; undefined where gold does not have both."""
        weights = weights[:, self.binary]
        figures = nli.class_figures(weights, self.binary_gold, self.binary_predicted)
        both = ~np.isnan(figures["f1_mean"])
        figures = {name: np.where(both, value, np.nan) for name, value in figures.items()}
        return _prefixed("class_binary", figures)

    def figures(self, weights: np.ndarray) -> Figures:
        """All of them."""
        return self.span(weights) | self.classes(weights) | self.two_classes(weights)


def published(answers: Iterable[dict]) -> list[dict]:
    """The official layout, a list of documents.

    Args:
        answers: each with ``document`` (its id, as the gold file has it), ``key``, ``scores``
            (label to probability) and span_probs, one a span; those of a document may be apart.

    Raises:
        UserError: an answer without one of them, which lines of one's own do not need.
    """
    documents: dict[Any, dict] = {}
    for answer in answers:
        if lacking := [name for name in ("document", "key") if name not in answer]:
            raise UserError(
                f"record {answer['id']} has no {listed(lacking)}, by which a file of "
                "ContractNLI names a hypothesis; an output that ends in .jsonl needs none"
            )
        document = documents.setdefault(
            answer["document"],
            {"id": answer["document"], "annotation_sets": [{"annotations": {}}]},
        )
        probabilities = [answer["scores"][label] for label in LABELS]
        document["annotation_sets"][0]["annotations"][answer["key"]] = {
            "choice": LABELS[int(np.argmax(probabilities))],
            "class_probs": dict(zip(LABELS, probabilities, strict=True)),
            "spans": [n for n, share in enumerate(answer["span_probs"]) if share > SURE],
            "span_probs": list(answer["span_probs"]),
        }
    return list(documents.values())


def read_gold(source: Names, format: str, data: DataSection = DEFAULTS) -> JsonFile:
    """Read a gold file, which must have this layout (see `prediction_files.read_gold`)."""
    expected = "an object with documents and labels"
    return prediction_files.read_gold(source, format, expected, data.encoding)


def evaluate(gold: JsonFile, predictions: JsonFile) -> Result:
    """Score by the published rules; documents that gold does not have are left out.

    Figures that are not defined, such as the recall of a class that no gold label is, are left
    out of the means over hypotheses, and are no metric where they are defined for none.

    Raises:
        DataError: a file that cannot be used; a document or a hypothesis without a prediction,
            where the published script stops.
    """
    examples = list(layout.gold(gold))
    if not examples:
        raise DataError(f"{gold.name}: no documents in it")
    answers, extra = _predictions(predictions, examples)
    pairs = [_pair(each, answers[str(each.id)], predictions.name) for each in examples]
    binary = _binary(pairs)
    by_key = _scorers(pairs, binary, [pair.key for pair in pairs])
    figures = partial(_means, by_key)
    metrics = defined(figures, np.ones((1, len(pairs))))
    items = [
        Item(str(example.id), pair.document, {}, _length(example.fields["text"]))
        for pair, example in zip(pairs, examples, strict=True)
    ]
    result = Result("contractnli", items, metrics, "documents", [], extra, figures=figures)
    result.subsets = _other_groups(pairs, binary, by_key)
    result.shown = tuple(name for name in SHOWN if name in metrics)
    result.no_place = "evidence may stand in several places"
    result.noun = "pair"
    return result


def baselines(gold: JsonFile, evaluate: Callable) -> Baselines:
    """Scores of the most frequent class of each hypothesis, with all spans alike."""
    examples = list(layout.gold(gold))
    labels: dict[str, list[str]] = {}
    for example in examples:
        labels.setdefault(example.fields["key"], []).append(example.fields["label"])
    usual = {key: baseline.commonest([label] for label in names) for key, names in labels.items()}
    value = published(
        {
            **{name: example.fields[name] for name in ("document", "key")},
            "scores": {label: float(label == usual[example.fields["key"]]) for label in LABELS},
            "span_probs": [0.0] * len(example.fields["spans"]),
        }
        for example in examples
    )
    return baseline.of_files(evaluate, gold, {"always the commonest class": value})


def score(
    golds: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Return the figures of `SHOWN` that are defined, from 0 to 100, as `evaluate` has them.

    Args:
        golds: document, key, label and evidence of each pair.
        answers: scores and span_probs, as `published` takes them.
    """
    pairs = [
        _scored(gold, [answer["scores"][label] for label in LABELS], answer["span_probs"])
        for gold, answer in zip(golds, answers, strict=True)
    ]
    by_key = _scorers(pairs, _binary(pairs), [pair.key for pair in pairs])
    means = defined(partial(_means, by_key), np.ones((1, len(pairs))))
    return {name: means[name] for name in SHOWN if name in means}


def evidence_map(
    golds: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Return span.map of all pairs together that have evidence, {} where none has.

    Args:
        golds, answers: evidence, and span_probs, of each.
    """
    spans = [
        Spans(np.isin(np.arange(len(scores)), gold["evidence"]), np.array(scores, np.float64))
        for gold, scores in zip(golds, (each["span_probs"] for each in answers), strict=True)
        if gold["evidence"]
    ]
    figures = nli.SpanTable(spans).figures(np.ones((1, len(spans)))) if spans else {}
    return {"span.map": float(figures["map"][0])} if spans else {}


_length = lru_cache(2)(count_words)  # pairs of one document come one after the other


def _means(by_key: Mapping[Hashable, _Scorer], weights: np.ndarray) -> Figures:
    """The means over the hypotheses."""
    return mean_defined([scorer.figures(weights) for scorer in by_key.values()])


def _prefixed(prefix: str, figures: Figures) -> Figures:
    return {f"{prefix}.{name}": value for name, value in figures.items()}


def _scorers(
    pairs: Sequence[Pair], binary: Sequence[bool], groups: Iterable[Hashable]
) -> dict[Hashable, _Scorer]:
    """A scorer of the pairs of each group, given by pair."""
    members: dict[Hashable, list[int]] = {}
    for number, group in enumerate(groups):
        members.setdefault(group, []).append(number)
    return {group: _Scorer(pairs, binary, numbers) for group, numbers in members.items()}


def _binary(pairs: Sequence[Pair]) -> list[bool]:
    """True for pairs that count in class_binary: gold says entailment or contradiction, and says
    both of the hypothesis in some document."""
    labels: dict[str, set[int]] = {}
    for pair in pairs:
        labels.setdefault(pair.key, set()).add(pair.gold)
    both = {key for key, names in labels.items() if len(names - {NOT_MENTIONED}) == 2}
    return [pair.gold != NOT_MENTIONED and pair.key in both for pair in pairs]


def _other_groups(
    pairs: Sequence[Pair], binary: Sequence[bool], by_key: dict[Hashable, _Scorer]
) -> dict[str, dict[str, float | int]]:
    """The figures of `SHOWN` in the other published groups, then of each hypothesis."""
    together = _Scorer(pairs, binary, range(len(pairs)))
    by_document = _scorers(pairs, binary, [pair.document for pair in pairs])
    alone: dict[Hashable, list[_Scorer]] = {key: [] for key in by_key}
    for number, pair in enumerate(pairs):
        if pair.spans is not None:
            alone[pair.key].append(_Scorer(pairs, binary, [number]))
    by_pair = [scorer for scorers in alone.values() for scorer in scorers]

    def of_pairs(weights):
        return [
            mean_defined([each.span(weights) for each in scorers])
            for scorers in alone.values()
            if scorers
        ]

    groups = {
        "micro_label_micro_doc": together.figures,
        "macro_label_macro_doc": lambda weights: mean_defined(of_pairs(weights)),
        "micro_label_macro_doc": lambda weights: (
            mean_defined([each.span(weights) for each in by_pair])
            | mean_defined([each.classes(weights) for each in by_document.values()])
        ),
        **{str(key): scorer.figures for key, scorer in by_key.items()},
    }
    by_group = {
        name: defined(figures, np.ones((1, len(pairs)))) for name, figures in groups.items()
    }
    return {
        name: {key: values[key] for key in SHOWN if key in values}
        for name, values in by_group.items()
    }


def _predictions(file: JsonFile, examples: Sequence[Example]) -> tuple[dict[str, dict], list[str]]:
    """Predictions of pairs by id; and the ids of pairs that gold does not have."""
    prediction_files.refuse_gold(file)
    if not isinstance(file.value, list):
        raise DataError(f"{file.name}: {shown(file.value)}; expected a list of documents")
    listed = [
        (take_id(document, "id", f"{file.name}: document {number:,}"), document)
        for number, document in enumerate(file.value, 1)
    ]
    once((id for id, _ in listed), file.name)
    answers = {
        f"{id}/{key}": entry
        for id, document in listed
        for key, entry in layout.annotated(document, f"{file.name}: {id}").items()
    }
    pairs = [str(example.id) for example in examples]
    missing, extra = compare(pairs, answers)
    if missing:
        raise DataError(
            f"{file.name}: no prediction of {plural(len(missing), 'pair')} of document and "
            f"hypothesis, such as {missing[0]!r}; each needs one"
        )
    documents = {str(example.fields["document"]) for example in examples}
    for id in extra:
        document, _, key = id.rpartition("/")
        if document in documents:
            raise DataError(
                f"{file.name}: {document}: the hypothesis {shown(key)} is none of the gold file"
            )
    return answers, extra


def _pair(example: Example, entry: Any, name: str) -> Pair:
    """A pair with what is predicted of it.

    Args:
        name: of the file of predictions.
    """
    where, fields = f"{name}: {example.id}", example.fields
    probabilities = take(entry, "class_probs", dict, where)
    shares = [prediction_files.number(probabilities, label, where) for label in LABELS]
    listed = dict(enumerate(take(entry, "span_probs", list, where)))
    scores = [prediction_files.number(listed, number, f"{where}: span_probs") for number in listed]
    if len(scores) != len(fields["spans"]):
        raise DataError(
            f"{where}: {len(scores):,} span_probs; the document has {len(fields['spans']):,} spans"
        )
    return _scored(fields, shares, scores)


def _scored(gold: Mapping[str, Any], shares: Sequence[float], scores: Sequence[float]) -> Pair:
    """A pair with the probabilities of the classes, in the order of `LABELS`, and of the spans."""
    label, spans = LABELS.index(gold["label"]), None
    if label != NOT_MENTIONED:
        right = np.isin(np.arange(len(scores)), gold["evidence"])
        spans = Spans(right, np.array(scores, np.float64))
    return Pair(
        str(gold["document"]),
        gold["key"],
        label,
        int(np.argmax(shares)),
        nli.binary(shares[nli.ENTAILMENT], shares[nli.CONTRADICTION]),
        spans,
    )
