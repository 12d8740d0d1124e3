"""ContractNLI (Koreeda and Manning 2021, arXiv:2110.01799): contracts and hypotheses on them.

The class of each hypothesis, and the spans of the contract that are its evidence. Predictions are a
list of documents with class_probs and span_probs of each hypothesis. Figures are called as in the
published file: ``span.map``, ``class.accuracy``; those of all questions are means over the
hypotheses, each scored over all documents (``macro_label_micro_doc`` there). They are computed of
pairs that count so often each: weights are [resamples, pairs]; every figure is [resamples], from 0
to 100, NaN where it is not defined.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from ldt.benchmarks import base
from ldt.benchmarks.base import AnswersById, Benchmark, Id, Number, Shape, Whole
from ldt.data.options import DataSection
from ldt.errors import DataError, UserError, listed, plural
from ldt.io import strict_json
from ldt.io.records import Example
from ldt.metrics import baseline
from ldt.metrics.result import Item, Result, compare, count_words, defined

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

_SPAN: Any = Annotated[list[Whole], Field(min_length=2, max_length=2)]
_ANNOTATION: Any = {"choice": Literal[*LABELS], "spans": [Whole]}
_DOCUMENT: Any = {"id": (str, Whole), "text": str, "spans": [_SPAN]}
_FILE = Shape(
    {
        "documents": [_DOCUMENT | {"annotation_sets?": [{"annotations": {str: _ANNOTATION}}]}],
        "labels": {str: {"hypothesis": str}},
    }
)
_ENTRY: Any = {"class_probs": dict.fromkeys(LABELS, Number), "span_probs": [Number]}
_PREDICTIONS = Shape([{"id": Id, "annotation_sets": [{"annotations": {str: _ENTRY}}]}])


def read(source: str | strict_json.JsonFile, data: DataSection) -> Iterator[Example]:
    """Yield an example for each document and hypothesis of a file (a path, "-" for standard input,
    or its loaded JSON), in the encoding of ``data``; its id is "<document>/<hypothesis>".

    Fields: text; spans, [start, end) of each in characters of the text; hypothesis; key (its name)
    and document (its id as the file has it), which predictions say; and, where the file has
    annotations, label (one of `LABELS`) and evidence, numbers of spans from 0.
    """
    file = strict_json.read(source, data.encoding)
    value = _FILE(file.value, file.name)
    for document in value["documents"]:
        text, spans, where = document["text"], document["spans"], f"{file.name}: {document['id']}"
        for start, end in spans:
            if not 0 <= start <= end <= len(text):
                what = f"expected 0 <= start <= end <= {len(text)}, the length of the text"
                raise DataError(f"{where}: span [{start}, {end}]; {what}")
        sets = document.get("annotation_sets")
        annotations = sets[0]["annotations"] if sets else {}
        if sets and (odd := annotations.keys() ^ value["labels"].keys()):
            what = "stand only in the annotations or only in the labels"
            raise DataError(f"{where}: hypotheses that {what}: {listed(sorted(odd))}")
        for key, label in value["labels"].items():
            fields = {"text": text, "spans": spans, "hypothesis": label["hypothesis"]}
            fields |= {"key": key, "document": document["id"]}
            if sets:
                evidence = annotations[key]["spans"]
                if odd := [n for n in evidence if not 0 <= n < len(spans)]:
                    what = f"span {odd[0]} as evidence; the document has {len(spans):,}, from 0"
                    raise DataError(f"{where}/{key}: {what}")
                fields |= {"label": annotations[key]["choice"], "evidence": evidence}
            yield Example(fields, f"{document['id']}/{key}", f"{where}/{key}")


def class_figures(weights: np.ndarray, gold: np.ndarray, predicted: np.ndarray) -> Figures:
    """Return accuracy, and precision, recall and f1 of entailment and contradiction with their mean
    and harmonic mean, each [draws] from 0 to 100.

    Recall and F1 of a class without gold labels are NaN; the precision of one that is never
    predicted is 0. ``weights`` [draws, pairs] say how often each pair counts; ``gold`` and
    ``predicted`` [pairs] are indices of `LABELS`.
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


class _SpanTable:
    """Precision and recall of spans at each threshold, counted once for any weights of the pairs.

    The thresholds are the scores of right spans. A threshold between two of them has the recall of
    the higher one, and a lower precision, so that no metric needs it. ``pairs`` have for each pair
    which spans are right [spans], bool, and their probabilities.
    """

    def __init__(self, pairs: Sequence[tuple[np.ndarray, np.ndarray]]):
        owner = np.repeat(np.arange(len(pairs)), [int(side.sum()) for side, _ in pairs])
        of_right = np.concatenate([np.zeros(0), *(each[side] for side, each in pairs)])
        order = np.argsort(-of_right, kind="stable")
        self.owner, thresholds = owner[order], of_right[order]  # [thresholds]

        def counts(chosen: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
            rows = [chosen(side[:, None], each[:, None]).sum(0) for side, each in pairs]
            return np.array(rows, np.float64).reshape(len(pairs), len(thresholds))

        # [pairs, thresholds]
        self.all = counts(lambda side, each: each >= thresholds)
        self.right = counts(lambda side, each: side & (each >= thresholds))
        self.wrong_above = counts(lambda side, each: ~side & (each > thresholds))
        # [pairs]
        self.spans = np.array([len(side) for side, _ in pairs], np.float64)
        self.there = np.array([side.sum() for side, _ in pairs], np.float64)
        self.found = np.array([(each > SURE).sum() for _, each in pairs], np.float64)
        self.true = np.array([(side & (each > SURE)).sum() for side, each in pairs], np.float64)

    def figures(self, weights: np.ndarray) -> Figures:
        """Metrics from 0 to 100 for weights [draws, pairs]: map (average precision over all spans
        together, not interpolated, equal scores together), precision at recalls (of the highest
        threshold that reaches it), roc_auc; and precision, recall, f1 and accuracy of the spans
        above `SURE`."""
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
        true, hits = weights @ self.true, weights @ self.found
        figures |= _precision_recall_f1(true, there, hits)
        figures["precision"] = np.where(spans > 0, figures["precision"], np.nan)
        figures["accuracy"] = _ratio(spans - there - hits + 2 * true, spans)
        return figures


def mean_defined(figures: Sequence[Figures]) -> Figures:
    """Average each metric over the dicts of ``figures``, draw by draw, without NaN; NaN where all
    are.

    Args:
        figures: dicts of the same metrics, each value [draws]; {} is returned for none.
    """
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
    """Percentage, 0 to 100; NaN where the whole is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(whole > 0, 100 * part / whole, np.nan)


class _Pairs:
    """Pairs of a document and a hypothesis (``golds``, with document, key, label and evidence) with
    ``answers``, the probabilities of the classes and of the spans, scored in groups."""

    def __init__(
        self, golds: Sequence[Mapping[str, Any]], answers: Sequence[tuple[Mapping[str, float], Any]]
    ):
        self.keys = [gold["key"] for gold in golds]
        self.documents = [str(gold["document"]) for gold in golds]
        self.gold = np.array([LABELS.index(gold["label"]) for gold in golds])
        shares = np.array([[classes[label] for label in LABELS] for classes, _ in answers])
        self.predicted = shares.argmax(1)
        # What is predicted of entailment and contradiction only, entailment at a tie.
        self.binary = ENTAILMENT + (shares[:, CONTRADICTION] > shares[:, ENTAILMENT])
        # Evidence is not scored where gold does not mention it.
        self.spans = {
            number: _spans(gold, answer[1])
            for number, (gold, answer) in enumerate(zip(golds, answers, strict=True))
            if self.gold[number] != NOT_MENTIONED
        }
        # _Pairs that count in class_binary: gold has both classes of the hypothesis somewhere.
        pairs = [*zip(self.keys, self.gold.tolist(), strict=True)]
        classes = [{key for key, each in pairs if each == c} for c in (ENTAILMENT, CONTRADICTION)]
        both = set.intersection(*classes)
        self.two = np.array([label != NOT_MENTIONED and key in both for key, label in pairs])

    def of(self, numbers: Sequence[int]) -> Callable[[np.ndarray], Figures]:
        """Function from weights [draws, all pairs] to the metrics [draws] of the pairs with these
        numbers."""
        spans = [number for number in numbers if number in self.spans]
        table = _SpanTable([self.spans[number] for number in spans])
        gold, two = self.gold[numbers], self.two[numbers]
        predicted, binary = self.predicted[numbers], self.binary[numbers]

        def figures(weights: np.ndarray) -> Figures:
            chosen = weights[:, numbers]
            of_two = class_figures(chosen * two, gold, binary)
            both = ~np.isnan(of_two["f1_mean"])  # undefined where gold does not have both classes
            of_two = {name: np.where(both, value, np.nan) for name, value in of_two.items()}
            return {
                **_prefixed("span", table.figures(weights[:, spans])),
                **_prefixed("class", class_figures(chosen, gold, predicted)),
                **_prefixed("class_binary", of_two),
            }

        return figures

    def by(self, names: Sequence[str]) -> dict[str, Callable[[np.ndarray], Figures]]:
        """Functions (`of`) by group; ``names`` has the name of each pair's group."""
        members: dict[str, list[int]] = {}
        for number, name in enumerate(names):
            members.setdefault(name, []).append(number)
        return {name: self.of(numbers) for name, numbers in members.items()}

    def subsets(self) -> dict[str, dict[str, float | int]]:
        """Metrics of `SHOWN` in the other published groups, then for each hypothesis."""
        once, by_key = np.ones((1, len(self.keys))), self.by(self.keys)
        # Of the spans of each pair, in the order of the figures of hypotheses, as means are too.
        alone: dict[str, list[Figures]] = {key: [] for key in by_key}
        for number, sides in self.spans.items():
            figures = _SpanTable([sides]).figures(np.ones((1, 1)))
            alone[self.keys[number]].append(_prefixed("span", figures))
        by_document = mean_defined([each(once) for each in self.by(self.documents).values()])
        by_pair = mean_defined([one for each in alone.values() for one in each])
        by_hypothesis = mean_defined([*map(mean_defined, filter(None, alone.values()))])
        groups = {
            "micro_label_micro_doc": self.of(range(len(self.keys)))(once),
            "macro_label_macro_doc": by_hypothesis,
            "micro_label_macro_doc": by_document | by_pair,
            **{str(key): figures(once) for key, figures in by_key.items()},
        }
        return {name: _shown(figures) for name, figures in groups.items()}


def _spans(gold: Mapping[str, Any], shares: Any) -> tuple[np.ndarray, np.ndarray]:
    scores = np.array(shares, np.float64)
    return np.isin(np.arange(len(scores)), gold["evidence"]), scores


def _prefixed(prefix: str, figures: Figures) -> Figures:
    return {f"{prefix}.{name}": value for name, value in figures.items()}


def _shown(figures: Figures) -> dict[str, float | int]:
    values = {name: float(figures[name][0]) for name in SHOWN if name in figures}
    return {name: value for name, value in values.items() if not np.isnan(value)}


def _means(by_key: Mapping[str, Callable], weights: np.ndarray) -> Figures:
    return mean_defined([figures(weights) for figures in by_key.values()])


def published(answers: Iterable[dict]) -> list[dict]:
    """Convert answers to the official layout, a list of documents; UserError for one without
    ``document`` or ``key``.

    Args:
        answers: each with ``document`` (its id, as the gold file has it), ``key``, ``scores``
            (label to probability) and span_probs, one a span; those of a document may be apart.
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
    right = ("label",)
    needs = ("document", "key", "scores", "span_probs")
    advice = (
        "answers of evidence_classification have it for documents that ldt predict "
        "data.format=contractnli reads"
    )
    read = staticmethod(read)
    published = staticmethod(published)

    def item(self, example: Example) -> Item:
        """Make the `Item` of a document and a hypothesis: ``right`` has document, key, label,
        evidence (numbers of spans) and ``spans``, the count of all; the bootstrap unit is the
        document."""
        right = {name: example.fields[name] for name in ("document", "key", "label", "evidence")}
        right["spans"] = len(example.fields["spans"])
        words, document = _length(example.fields["text"]), str(right["document"])
        return Item(str(example.id), document, {}, words, right=right)

    def parse(self, value: Any, name: str) -> AnswersById:
        """Convert the published list of documents to {"<document>/<hypothesis>": {class_probs,
        span_probs}}."""
        documents = _PREDICTIONS(value, name)
        base.once((document["id"] for document in documents), name)
        return {
            f"{document['id']}/{key}": entry
            for document in documents
            for entries in document["annotation_sets"]
            for key, entry in entries["annotations"].items()
        }

    def aggregate(self, items: Sequence[Item], answers: AnswersById, name: str) -> Result:
        """Means over hypotheses of the metrics of classes and spans, 0 to 100, and the other
        published groups as subsets; DataError if a pair has no prediction or another number of
        spans."""
        missing, extra = compare([item.id for item in items], answers)
        if missing:
            raise DataError(
                f"{name}: no prediction of {plural(len(missing), 'pair')} of document and "
                f"hypothesis, such as {missing[0]!r}; each needs one"
            )
        for item in items:
            count, spans = len(answers[item.id]["span_probs"]), item.right["spans"]
            if count != spans:
                what = f"{count:,} span_probs; the document has {spans:,} spans"
                raise DataError(f"{name}: {item.id}: {what}")
        entries = [answers[item.id] for item in items]
        shares = [(entry["class_probs"], entry["span_probs"]) for entry in entries]
        pairs = _Pairs([item.right for item in items], shares)
        figures = partial(_means, pairs.by(pairs.keys))
        metrics = defined(figures, np.ones((1, len(items))))
        result = self.result(items, metrics, [], extra, figures=figures)
        result.subsets = pairs.subsets()
        result.shown = tuple(key for key in SHOWN if key in metrics)
        return result

    def constants(self, items: Sequence[Item]) -> dict[str, AnswersById]:
        """Trivial prediction: the most frequent class of each hypothesis, and 0 as probability of
        each span."""
        labels: dict[str, list[str]] = {}
        for item in items:
            labels.setdefault(item.right["key"], []).append(item.right["label"])
        usual = {key: baseline.commonest([label] for label in each) for key, each in labels.items()}
        constant = {}
        for item in items:
            shares = {label: float(label == usual[item.right["key"]]) for label in LABELS}
            zeros = [0.0] * item.right["spans"]
            constant[item.id] = {"class_probs": shares, "span_probs": zeros}
        return {"always the commonest class": constant}


_length = lru_cache(2)(count_words)  # pairs of one document come one after the other


def score(right: Mapping[str, Any], answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return {"class.accuracy": 1.0} if ``label`` is the same in both, else 0.0; None is wrong."""
    return {"class.accuracy": float(answer is not None and answer.get("label") == right["label"])}


def score_all(
    golds: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Return the figures of `SHOWN` that are defined, from 0 to 100: each is computed over the
    documents of a hypothesis, then averaged over the hypotheses.

    Args:
        golds: document, key (its hypothesis), label and evidence (indices of spans) of each pair.
        answers: ``scores`` (label to probability) and ``span_probs`` (one a span) of each pair, in
            the order of ``golds``.
    """
    pairs = _Pairs(golds, [(answer["scores"], answer["span_probs"]) for answer in answers])
    return _shown(_means(pairs.by(pairs.keys), np.ones((1, len(golds)))))


def evidence_map(
    golds: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Return span.map, the average precision from 0 to 100 over the spans of all pairs with
    evidence together; {} if none has any.

    Args:
        golds: for each pair its ``evidence``, numbers of the spans that are evidence.
        answers: in the order of ``golds``, each with ``span_probs``, a probability for each span.
    """
    both = zip(golds, answers, strict=True)
    pairs = [_spans(gold, each["span_probs"]) for gold, each in both if gold["evidence"]]
    if not pairs:
        return {}
    return {"span.map": float(_SpanTable(pairs).figures(np.ones((1, len(pairs))))["map"][0])}
