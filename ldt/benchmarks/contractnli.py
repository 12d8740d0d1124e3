"""ContractNLI (Koreeda and Manning 2021, arXiv:2110.01799): contracts and hypotheses on them.

The class of each hypothesis, and the spans of the contract that are its evidence. Predictions are a
list of documents with class_probs and span_probs of each hypothesis. Figures are called as in the
published file: ``span.map``, ``class.accuracy``; those of all questions are means over the
hypotheses, each scored over all documents (``macro_label_micro_doc`` there). They are computed of
pairs that count so often each: weights are [resamples, pairs]; every figure is [resamples], from 0
to 100, NaN where it is not defined.
"""

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np

from ldt.benchmarks import base
from ldt.benchmarks.base import Benchmark
from ldt.errors import DataError, UserError, listed, plural, shown
from ldt.io import strict_json
from ldt.io.records import Example
from ldt.io.strict_json import JsonFile, take
from ldt.metrics import baseline
from ldt.metrics.result import Item, compare, count_words, defined

LABELS = ("NotMentioned", "Entailment", "Contradiction")  # in the order of the published classes
NOT_MENTIONED, ENTAILMENT, CONTRADICTION = range(3)
SURE = 0.5  # a span is predicted above it
RECALLS = {"precision@recall80": 0.8, "precision@recall90": 0.9}
SHOWN = (
    "span.map",
    "span.precision@recall80",
    "class.accuracy",
    "class.f1_contradiction",
    "class.f1_entailment",
)

Figures = dict[str, np.ndarray]
Side = Literal["left", "right"]


# -- read


def read(source: str, data) -> Iterator[Example]:
    """Yield an example for each document and hypothesis, its id "<document>/<hypothesis>".

    Fields: text; spans, [start, end) of each in characters of the text; hypothesis; key (its name)
    and document (its id as the file has it), which predictions say; and, where the file has
    annotations, label (one of `LABELS`) and evidence, numbers of spans from 0.

    Raises:
        DataError: another layout, a span outside of the text, evidence that is no span; a
            hypothesis that lacks in the annotations or in the labels; a document twice.
    """
    yield from _pairs(strict_json.read(source, data.encoding))


def _pairs(file: JsonFile) -> Iterator[Example]:
    if not (
        isinstance(file.value, dict)
        and isinstance(file.value.get("documents"), list)
        and isinstance(file.value.get("labels"), dict)
    ):
        raise DataError(
            f"{file.name}: {shown(file.value)}, expected an object with documents and labels"
        )
    base.once((id for _, id, _ in _documents(file)), file.name)
    labels = file.value["labels"]
    for document, id, where in _documents(file):
        text = take(document, "text", str, where)
        fields = {"text": text, "spans": _spans(document, len(text), where)}
        annotations = annotated(document, where) if "annotation_sets" in document else None
        for key in annotations or ():
            if key not in labels:
                raise DataError(f"{where}: the hypothesis {shown(key)} is none of the labels")
        for key, entry in labels.items():
            here = f"{where}/{key}"
            hypothesis = take(entry, "hypothesis", str, here)
            more = {"hypothesis": hypothesis, "key": key, "document": document["id"]}
            if annotations is not None:
                more |= _annotation(annotations, key, len(fields["spans"]), here)
            yield Example(fields | more, f"{id}/{key}", here)


def annotated(document: dict[str, Any], where: str) -> dict[str, Any]:
    """The annotations of a document by hypothesis, of gold files and of predictions.

    Raises:
        DataError: it does not have one set of them.
    """
    sets = take(document, "annotation_sets", list, where)
    if len(sets) != 1:
        raise DataError(f"{where}: {len(sets)} annotation_sets, expected one")
    return take(sets[0], "annotations", dict, where)


def _documents(file: JsonFile) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Each document with its id and its place in words."""
    return base.entries(file.value["documents"], file.name, "id", "document")


def _spans(document: dict[str, Any], length: int, where: str) -> list[list[int]]:
    spans = take(document, "spans", list, where)
    for number, span in enumerate(spans):
        match span:
            case [int(start), int(end)] if 0 <= start <= end <= length:
                pass
            case _:
                raise DataError(
                    f"{where}: span {number:,} is {json.dumps(span):.60}, expected [start, end] "
                    f"within the {length:,} characters of the text"
                )
    return spans


def _annotation(annotations: dict[str, Any], key: str, spans: int, where: str) -> dict[str, Any]:
    """Label and evidence of a hypothesis."""
    if key not in annotations:
        raise DataError(f"{where}: the hypothesis lacks in the annotations")
    entry = annotations[key]
    label = take(entry, "choice", str, where)
    if label not in LABELS:
        raise DataError(f"{where}: choice {label!r}, expected one of {', '.join(LABELS)}")
    evidence = take(entry, "spans", list, where)
    for number in evidence:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < spans:
            raise DataError(
                f"{where}: span {shown(number)} as evidence; the document has {spans:,}, from 0"
            )
    return {"label": label, "evidence": evidence}


# -- figures of weighted pairs


class EvidenceSpans(NamedTuple):
    """The spans of a document for a hypothesis: [spans] bool, and probabilities."""

    right: np.ndarray
    scores: np.ndarray


def class_figures(weights: np.ndarray, gold: np.ndarray, predicted: np.ndarray) -> Figures:
    """Return accuracy, and precision, recall and f1 of entailment and contradiction with their
    mean and harmonic mean.

    Recall and F1 of a class that no gold label is are not defined; the precision of one that is
    never predicted is 0.

    Args:
        weights: [resamples, pairs].
        gold, predicted: [pairs], numbers of classes.
    """
    weights = weights.astype(np.float64)
    figures = {"accuracy": _ratio(weights @ (gold == predicted), weights.sum(1))}
    for label, name in ((ENTAILMENT, "entailment"), (CONTRADICTION, "contradiction")):
        is_gold, is_predicted = gold == label, predicted == label
        true, there = weights @ (is_gold & is_predicted), weights @ is_gold
        predicted_count = weights @ is_predicted
        figures |= _precision_recall_f1(true, there, predicted_count, f"_{name}")
    for name in ("precision", "recall", "f1"):
        one, other = figures[f"{name}_entailment"], figures[f"{name}_contradiction"]
        defined = ~(np.isnan(one) | np.isnan(other))
        figures[f"{name}_mean"] = np.where(defined, (one + other) / 2, np.nan)
        harmonic = np.nan_to_num(_ratio(2 * one * other, one + other)) / 100
        figures[f"{name}_hmean"] = np.where(defined, harmonic, np.nan)
    return figures


class SpanTable:
    """Spans of pairs, counted once so that any weights of the pairs can be scored."""

    def __init__(self, spans: Sequence[EvidenceSpans]):
        """Count, of each pair, the spans at each threshold that is a right one's score.

        A threshold that lies between two of them has the recall of the higher one, and a lower
        precision, so that no figure needs it.
        """
        owner = np.repeat(np.arange(len(spans)), [each.right.sum() for each in spans])
        scores = _joined([each.scores[each.right] for each in spans])
        order = np.argsort(-scores, kind="stable")
        self.owner, self.thresholds = owner[order], scores[order]  # [thresholds]
        self.all = self._reaching([each.scores for each in spans])  # [pairs, thresholds]
        self.right = self._reaching([each.scores[each.right] for each in spans])
        self.wrong_above = self._reaching([each.scores[~each.right] for each in spans], "right")
        sizes = [(len(e.right), e.right.sum()) for e in spans]
        self.spans, self.there = np.array(sizes, np.float64).reshape(-1, 2).T  # [pairs]
        self.found = np.array([(e.scores > SURE).sum() for e in spans], np.float64)
        self.true = np.array([(e.right & (e.scores > SURE)).sum() for e in spans], np.float64)

    def _reaching(self, scores: Sequence[np.ndarray], side: Side = "left") -> np.ndarray:
        """Number of scores of each pair that reach each threshold, or lie above it for "right"."""
        counts = [
            len(each) - np.searchsorted(np.sort(each), self.thresholds, side) for each in scores
        ]
        return np.array(counts, np.float64).reshape(len(scores), len(self.thresholds))

    def figures(self, weights: np.ndarray) -> Figures:
        """Return map, precision at recalls, roc_auc; and precision, recall, f1 and accuracy of the
        spans above `SURE`.

        ``map`` is the average precision over all spans together, not interpolated, equal scores
        together. The precision at a recall is that of the highest threshold that reaches it.

        Args:
            weights: [resamples, pairs].
        """
        weights = weights.astype(np.float64)
        there, spans = weights @ self.there, weights @ self.spans
        reached, right = weights @ self.all, weights @ self.right  # [resamples, thresholds]
        span_weights = weights[:, self.owner]  # how often the span counts that the threshold is of
        precision = _ratio(right, reached)
        figures = {"map": _ratio((span_weights * np.nan_to_num(precision)).sum(1), there) / 100}
        recall = right / np.maximum(there, 1)[:, None]
        for name, wanted in RECALLS.items():
            figures[name] = np.full(len(weights), np.nan)
            if some := np.flatnonzero(there).tolist():
                first = (recall[some] >= wanted).argmax(1)
                figures[name][some] = precision[some, first]
        wrong = spans - there
        above = (reached - right + weights @ self.wrong_above) / 2  # equal ones half
        figures["roc_auc"] = _ratio((span_weights * (wrong[:, None] - above)).sum(1), there * wrong)
        true, found = weights @ self.true, weights @ self.found
        figures |= _precision_recall_f1(true, there, found)
        figures["precision"] = np.where(spans > 0, figures["precision"], np.nan)
        figures["accuracy"] = _ratio(spans - there - found + 2 * true, spans)
        return figures


def binary(entailment: float, contradiction: float) -> int:
    """The class where only these two are asked for; entailment at a tie."""
    return CONTRADICTION if contradiction > entailment else ENTAILMENT


def mean_defined(figures: Sequence[Figures]) -> Figures:
    """The mean of each figure over those where it is defined; NaN where it is so nowhere, none of
    nothing."""
    means = {}
    for name in figures[0] if figures else ():
        values = np.stack([each[name] for each in figures])
        means[name] = _ratio(np.nansum(values, 0), (~np.isnan(values)).sum(0)) / 100
    return means


def _precision_recall_f1(true, there, found, suffix: str = "") -> Figures:
    f1 = _ratio(2 * true, there + found)
    return {
        f"precision{suffix}": np.nan_to_num(_ratio(true, found)),
        f"recall{suffix}": _ratio(true, there),
        f"f1{suffix}": np.where(there > 0, f1, np.nan),
    }


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """From 0 to 100; NaN of nothing."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(whole > 0, 100 * part / whole, np.nan)


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0), *arrays])


class HypothesisPair(NamedTuple):
    """A document and a hypothesis; ``spans`` is None where gold does not mention it, where
    evidence is not scored. Classes are numbers in `LABELS`."""

    document: str
    key: str
    gold: int
    predicted: int
    binary: int  # predicted of entailment and contradiction only
    spans: EvidenceSpans | None


class _Scorer:
    """Some of the pairs, scored together."""

    def __init__(
        self, pairs: Sequence[HypothesisPair], binary: Sequence[bool], numbers: Sequence[int]
    ):
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
        self.table = SpanTable([pair.spans for pair in chosen if pair.spans is not None])

    def span(self, weights: np.ndarray) -> Figures:
        """Figures of the evidence; weights are [resamples, all pairs] here and below."""
        return _prefixed("span", self.table.figures(weights[:, self.with_spans]))

    def classes(self, weights: np.ndarray) -> Figures:
        """Figures of the classes of all pairs."""
        figures = class_figures(weights[:, self.all], self.gold, self.predicted)
        return _prefixed("class", figures)

    def two_classes(self, weights: np.ndarray) -> Figures:
        """Figures of entailment against contradiction; undefined where gold does not have both."""
        weights = weights[:, self.binary]
        figures = class_figures(weights, self.binary_gold, self.binary_predicted)
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


# -- answers


@dataclass
class ContractNLIScorer(Benchmark):
    """ContractNLI: each document and hypothesis needs a prediction; documents that gold does not
    have are left out.

    Figures that are not defined, such as the recall of a class that no gold label is, are left out
    of the means over hypotheses, and are no metric where they are defined for none.
    """

    title = "contractnli"
    units = "documents"
    noun = "pair"
    no_place = "evidence may stand in several places"
    needs = ("document", "key", "scores", "span_probs")
    advice = (
        "answers of evidence_classification have it for documents that ldt predict "
        "data.format=contractnli reads"
    )

    def gold(self, files):
        file, items = base.whole(files, "questions of contractnli", self.data.encoding), []
        for example in _pairs(file):
            right = dict(example.fields)
            if "label" not in right:
                raise DataError(f"{example.where}: no annotations; files of a test set have none")
            text, spans = right.pop("text"), len(right["spans"])
            document = str(right["document"])
            right["spans"] = spans
            items.append(Item(str(example.id), document, {}, _length(text), right=right))
        return base.checked(items, file.name, "documents")

    def published(self, lines):
        return published(lines)

    def parse(self, value, name):
        """The entry of each document and hypothesis, by "<document>/<hypothesis>"."""
        if not isinstance(value, list):
            raise DataError(f"{name}: {shown(value)}; expected a list of documents")
        documents = [*base.entries(value, name, "id", "document")]
        base.once((id for _, id, _ in documents), name)
        return {
            f"{id}/{key}": entry
            for document, id, where in documents
            for key, entry in annotated(document, where).items()
        }

    def aggregate(self, items, answers, name):
        ids = [item.id for item in items]
        missing, extra = compare(ids, answers)
        if missing:
            raise DataError(
                f"{name}: no prediction of {plural(len(missing), 'pair')} of document and "
                f"hypothesis, such as {missing[0]!r}; each needs one"
            )
        documents = {item.unit for item in items}
        for id in extra:
            document, _, key = id.rpartition("/")
            if document in documents:
                what = f"the hypothesis {shown(key)} is none of the gold file"
                raise DataError(f"{name}: {document}: {what}")
        pairs = [_pair(item, answers[item.id], name) for item in items]
        binary = _binary(pairs)
        by_key = _scorers(pairs, binary, [pair.key for pair in pairs])
        figures = partial(_means, by_key)
        metrics = {**defined(figures, np.ones((1, len(pairs))))}
        result = self.result(items, metrics, [], extra, figures=figures)
        result.subsets = {**_other_groups(pairs, binary, by_key)}
        result.shown = tuple(key for key in SHOWN if key in metrics)
        return result

    def constants(self, items):
        """The most frequent class of each hypothesis, with all spans alike."""
        labels: dict[str, list[str]] = {}
        for item in items:
            labels.setdefault(item.right["key"], []).append(item.right["label"])
        usual = {key: baseline.commonest([label] for label in each) for key, each in labels.items()}
        return {
            "always the commonest class": {
                item.id: {
                    "class_probs": {
                        label: float(label == usual[item.right["key"]]) for label in LABELS
                    },
                    "span_probs": [0.0] * item.right["spans"],
                }
                for item in items
            }
        }


_length = lru_cache(2)(count_words)  # pairs of one document come one after the other


def score_all(
    golds: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Return the figures of `SHOWN` that are defined, from 0 to 100, as those of a file are.

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
        EvidenceSpans(
            np.isin(np.arange(len(scores)), gold["evidence"]), np.array(scores, np.float64)
        )
        for gold, scores in zip(golds, (each["span_probs"] for each in answers), strict=True)
        if gold["evidence"]
    ]
    figures = SpanTable(spans).figures(np.ones((1, len(spans)))) if spans else {}
    return {"span.map": float(figures["map"][0])} if spans else {}


def _means(by_key: Mapping[Hashable, _Scorer], weights: np.ndarray) -> Figures:
    """The means over the hypotheses."""
    return mean_defined([scorer.figures(weights) for scorer in by_key.values()])


def _prefixed(prefix: str, figures: Figures) -> Figures:
    return {f"{prefix}.{name}": value for name, value in figures.items()}


def _scorers(
    pairs: Sequence[HypothesisPair], binary: Sequence[bool], groups: Iterable[Hashable]
) -> dict[Hashable, _Scorer]:
    """A scorer of the pairs of each group, given by pair."""
    members: dict[Hashable, list[int]] = {}
    for number, group in enumerate(groups):
        members.setdefault(group, []).append(number)
    return {group: _Scorer(pairs, binary, numbers) for group, numbers in members.items()}


def _binary(pairs: Sequence[HypothesisPair]) -> list[bool]:
    """True for pairs that count in class_binary: gold says entailment or contradiction, and says
    both of the hypothesis in some document."""
    labels: dict[str, set[int]] = {}
    for pair in pairs:
        labels.setdefault(pair.key, set()).add(pair.gold)
    both = {key for key, names in labels.items() if len(names - {NOT_MENTIONED}) == 2}
    return [pair.gold != NOT_MENTIONED and pair.key in both for pair in pairs]


def _other_groups(
    pairs: Sequence[HypothesisPair], binary: Sequence[bool], by_key: dict[Hashable, _Scorer]
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


def score(right: Mapping[str, Any], answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return class.accuracy: 1.0 for the right class, else 0.0."""
    return {"class.accuracy": float(answer is not None and answer.get("label") == right["label"])}


def _pair(item: Item, entry: Any, name: str) -> HypothesisPair:
    """A pair with what is predicted of it.

    Args:
        name: of the file of predictions.
    """
    where = f"{name}: {item.id}"
    probabilities = take(entry, "class_probs", dict, where)
    shares = [base.number(probabilities, label, where) for label in LABELS]
    listed = dict(enumerate(take(entry, "span_probs", list, where)))
    scores = [base.number(listed, number, f"{where}: span_probs") for number in listed]
    if len(scores) != (spans := item.right["spans"]):
        raise DataError(f"{where}: {len(scores):,} span_probs; the document has {spans:,} spans")
    return _scored(item.right, shares, scores)


def _evidence(gold: Mapping[str, Any], scores: Sequence[float]) -> EvidenceSpans:
    right = np.isin(np.arange(len(scores)), gold["evidence"])
    return EvidenceSpans(right, np.array(scores, np.float64))


def _scored(
    gold: Mapping[str, Any], shares: Sequence[float], scores: Sequence[float]
) -> HypothesisPair:
    """A pair with the probabilities of the classes, in the order of `LABELS`, and of the spans."""
    label = LABELS.index(gold["label"])
    spans = None if label == NOT_MENTIONED else _evidence(gold, scores)
    return HypothesisPair(
        str(gold["document"]),
        gold["key"],
        label,
        int(np.argmax(shares)),
        binary(shares[ENTAILMENT], shares[CONTRADICTION]),
        spans,
    )
