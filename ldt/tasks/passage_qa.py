"""Questions answered by a passage and a short answer, as in Natural Questions and TyDi QA.

Input: <s> question </s> document </s>, with a marker before each candidate passage.
"""

import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ldt.benchmarks import nq, passage_qa, tydiqa
from ldt.benchmarks.passage_qa import Annotation, PassageAnswer, PassageGold
from ldt.data.features import Feature
from ldt.data.options import DataSection
from ldt.data.sentences import Span
from ldt.errors import DataError, quote
from ldt.io.records import Example, field, text
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines
from ldt.metrics.numbers import logsumexp
from ldt.tasks.base import (
    Outputs,
    PublishedLayout,
    Scores,
    TaskAnswers,
    TaskInputs,
    TaskReads,
    named_labels,
    path_of,
)
from ldt.tasks.questions import (
    CLS,
    SPAN_LABELS,
    SPAN_LOGITS,
    CandidateSpan,
    RightAnswer,
    SpanTask,
    spans_of,
    thinned,
)

TYPES = ("none", "passage", "span", "yes", "no")  # of answers, in the order of the head
NONE, PASSAGE, SPAN, YES, NO = range(len(TYPES))
MARKERS = {"paragraph": "[paragraph]", "table": "[table]", "list": "[list]"}
PASSAGE_MARKER = "[passage]"
# What the writer of a layout needs beside an answer, of documents that are read in it.
OFFSETS = {"nq": nq.offsets, "tydiqa": tydiqa.offsets}


class PassageQA(SpanTask):
    """Passage that answers a question, with a span in it, yes or no.

    An example has ``question``, ``context``, ``candidates``, a list of {start, end} in characters
    of the context, optionally with a ``type`` (paragraph, table or list), and ``annotations``, a
    list of {passage: index of a candidate or None, spans: [[start, end], ...], yes_no: "yes", "no"
    or None}. Candidates may be nested; one without a word cannot be the answer.

    An input has the types of `TYPES`, scores of passages at their markers, of which one or none is
    correct (`ldt.model.heads.questions.one_passage_loss`), and start and end of the span. As in the
    published metrics, the answers of all annotations are correct if at least two of them (or the
    only one) have an answer. An input has the type span if it contains a correct span, another type
    if it contains the marker of a correct passage, else none; without a correct span its target is
    the first token.

    The passage is the one with the highest score over all chunks, relative to the logit of none.
    The span is the best one inside it; its score is the sum of its logits minus those of the first
    token. If the passage's chunk is more likely yes or no than span, that is the answer; its score
    is the log-odds against no short answer (none or passage). Published layouts always get an
    answer, since their metrics choose a threshold; JSON lines omit it below ``answer_thresholds``,
    which are stored in the model: those with the best F1 on the evaluation set over all languages.

    Args:
        null_chunks: share of the chunks without an answer to train on, sampled once by the seed.
            Evaluation and prediction read all.

    Source: Alberti et al. 2019 (arXiv:1901.08634) for types, span scores and markers, and 0.02 of
    the chunks without an answer; Clark et al. 2020 (arXiv:2003.05002), whose baseline keeps 0.1.
    Scores of passages at their markers, and choosing passages first, are our own.
    """

    reads: ClassVar[TaskReads] = replace(
        SpanTask.reads,
        fields=("question", "candidates", "annotations"),
        signs=(("question", "context", "candidates", "annotations"),),
        formats=("nq", "tydiqa"),
    )
    inputs: ClassVar[TaskInputs] = replace(
        SpanTask.inputs,
        head="LdtForPassageAnswering",
        roles=(*SpanTask.inputs.roles, "passages"),
        markers=(*MARKERS.values(), PASSAGE_MARKER),
        extras=(*SpanTask.inputs.extras, "passages", "candidates", "layout"),
        label_names=(*SPAN_LABELS, "labels", "passage_labels"),
    )
    answers: ClassVar[TaskAnswers] = replace(
        SpanTask.answers,
        kind="passage",
        score=passage_qa.score,
        outputs=(*SPAN_LOGITS, "logits", "passage_logits"),
        keys=(
            *("passage", "passage_score", "answer", "start", "end", "span_score", "yes_no"),
            *("best_passage", "best", "best_start", "best_end", "language", "offsets", "n_best"),
        ),
        settings={f"{part}_threshold": ("answer_thresholds", part) for part in passage_qa.PARTS},
        means=False,
        layouts={
            "nq": PublishedLayout(nq.published, default=("nq",), same_format=True),
            "tydiqa": PublishedLayout(tydiqa.published, default=("tydiqa",), same_format=True),
        },
    )

    name: Literal["passage_qa"] = "passage_qa"
    global_attention: list[str] = ["cls", "question", "passages"]
    null_chunks: Annotated[float, Field(ge=0, le=1)] = 1.0

    def learn(self, examples: Iterable[Example], data: DataSection) -> dict[str, Any]:
        """Return id2label, label2id, num_labels, the settings of the loss, passage_loss and
        evidence_weights, and ``answer_thresholds``, empty until an evaluation fits them."""
        super().learn(examples, data)
        changes = {"passage_loss": "one", "evidence_weights": {}, "answer_thresholds": {}}
        return named_labels(TYPES) | changes

    def encode(self, example: Example, tokenizer, **options: Any) -> list[Feature]:
        """Return the features of `QuestionTask`, the first one with ``candidates`` [candidates, 2]
        in characters; ``options`` are data, max_length and config."""
        features = super().encode(example, tokenizer, **options)
        places = [span for _, span in self._candidates(example, options["data"])]
        features[0]["candidates"] = np.array(places, np.int32).reshape(-1, 2)
        return features

    def marks(self, example: Example, data: DataSection) -> list[tuple[Span, str]]:
        """Return the characters of each candidate, with the marker of its type, such as [table]."""
        candidates = self._candidates(example, data)
        return [(span, MARKERS.get(str(name), PASSAGE_MARKER)) for name, span in candidates]

    def labelling(self, example: Example, data: DataSection, config, context: str) -> RightAnswer:
        """Return the answers of all annotations together; spans outside of passages are
        right too."""
        annotations = self._annotations(example, data)
        has_passage, has_span = passage_qa.right_of(annotations)
        spans = dict.fromkeys(span for _, spans, _ in annotations for span in spans)
        if not has_passage:
            annotations = []

        def kind(feature: Feature) -> int:
            here = [y for passage, _, y in annotations if passage in feature["passages"].tolist()]
            yes_no = Counter(each for each in here if each and has_span).most_common(1)
            if feature["start_positions"]:
                return SPAN
            return TYPES.index(yes_no[0][0]) if yes_no else PASSAGE if here else NONE

        right = {passage for passage, _, _ in annotations if passage is not None}
        return RightAnswer([*spans] if has_span else [], CLS, right, kind)

    def shared_keys(self, example: Example, data: DataSection) -> dict[str, Any]:
        """Return {"layout": "nq" or "tydiqa", None for other data}."""
        return {"layout": data.format if data.format in OFFSETS else None}

    def subsample(
        self, features: Sequence[Feature], seed: int
    ) -> tuple[list[int] | None, list[str]]:
        """Return the indices of inputs with an answer and of a random share, ``task.null_chunks``,
        of the others, and a line with their numbers; (None, []) if all are kept."""
        if self.null_chunks == 1:
            return None, []
        answered = [feature["labels"] != NONE for feature in features]
        return thinned(answered, self.null_chunks, self.null_chunks, seed)

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Return a line with the number of inputs by type of answer."""
        counts = Counter(TYPES[feature["labels"]] for feature in features)
        there = ", ".join(f"{name} {counts[name]:,}" for name in TYPES if counts[name])
        return [f"inputs by type of answer: {there}"]

    def gold(self, example: Example, data: DataSection, config) -> PassageGold:
        """Return the annotations, the passage of the baseline and the language; spans are in tokens
        for data of Natural Questions, in bytes for TyDi QA, else in characters. DataError if a
        field has another form."""
        annotations: list[Annotation] = []
        for number, (passage, spans, yes_no) in enumerate(self._annotations(example, data)):
            if data.format == "nq":
                spans = [tuple(s) for s in example.fields["annotations"][number]["tokens"]]
            elif data.format == "tydiqa":
                spans = [
                    passage_qa.in_bytes(tydiqa.offsets(example.fields, None, s)) for s in spans
                ]
            annotations.append((passage, spans, yes_no))
        kinds = [name for name, _ in self._candidates(example, data)]
        first = kinds.index("paragraph") if "paragraph" in kinds else 0 if kinds else None
        language = example.fields["language"] if data.format == "tydiqa" else None
        return PassageGold(tuple(annotations), first, language)

    def decode(self, outputs: Sequence[Outputs], config, example: Example, features) -> dict:
        """Return the passage and the answer with their scores, and flags such as ``truncated``.

        ``passage``, index of a candidate, and ``passage_score``, its logit; ``answer``, text with
        ``start`` and ``end`` in characters, or yes or no, also as ``yes_no``; ``span_score``, its
        log-odds. Below the stored thresholds passage is None, and answer is "" without a place;
        ``best_passage``, and ``best`` from ``best_start`` to ``best_end``, are always given.
        Documents in a published layout also get ``offsets`` for its writer, and those of TyDi QA
        their ``language``.
        """
        context, layout = features[0]["context"], features[0]["layout"]
        passages = (
            (float(score), int(number), chunk)
            for chunk, (output, feature) in enumerate(zip(outputs, features, strict=True))
            for score, number in zip(output["passage_logits"], feature["passages"], strict=False)
        )
        first = operator.itemgetter(0)
        passage_score, passage, chunk = max(passages, key=first, default=(0.0, None, 0))
        spans = self._inside(outputs, features, passage)
        if layout == "nq":  # whose spans are of whole words
            spans = [
                each._replace(span=nq.whole_words(example.fields, each.span)) for each in spans
            ]
        answer = self.answer_of(spans, context)
        score = answer.pop("score") or 0.0
        span = spans[0].span if spans else None
        types = np.asarray(outputs[chunk]["logits"], np.float64)
        yes_no = None
        if types[[YES, NO]].max() > types[SPAN]:
            number = YES if types[YES] >= types[NO] else NO
            yes_no, score = TYPES[number], float(types[number] - logsumexp(types[: PASSAGE + 1]))
            answer |= {"answer": yes_no, "start": None, "end": None}
        answer |= {
            **{"passage": passage, "passage_score": passage_score},
            **{"span_score": score, "yes_no": yes_no},
            **{"best_passage": passage, "best": answer["answer"]},
            **{"best_start": answer["start"], "best_end": answer["end"]},
        }
        refused: dict[str, dict[str, Any]] = {
            "passage": {"passage": None},
            "span": {"answer": "", "start": None, "end": None},
        }
        for part, nothing in refused.items():
            if answer[f"{part}_score"] < config.answer_thresholds.get(part, -np.inf):
                answer |= nothing
        if layout:
            answer["offsets"] = OFFSETS[layout](example.fields, passage, span)
        if layout == "tydiqa":
            answer["language"] = example.fields["language"]
        return answer | features[0]["flags"]

    def measure(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Scores:
        """Return F1, precision and recall of passages and answers, 0 to 100, by the published rules
        at the best thresholds, and these thresholds; and a row for each language."""
        return passage_qa.measure(golds, list(map(passage_qa.answer_of, answers)))

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return f1 and passage_f1 of always naming the first paragraph, or the first passage if
        there is none."""
        first = [PassageAnswer(gold.first) for gold in golds]
        metrics, _ = passage_qa.measure(golds, first)
        figures = {name: metrics[name] for name in ("f1", "passage_f1")}
        return baseline.best({"always the first paragraph": figures})

    def _inside(
        self, outputs: Sequence[Outputs], features: Sequence[Feature], passage: int | None
    ) -> list[CandidateSpan]:
        """Best spans inside a passage; of the whole document if it is None or has none."""
        start, end = 0, len(features[0]["context"])
        if passage is not None:
            start, end = features[0]["candidates"][passage].tolist()
        scores, parts = [], []
        for output, feature in zip(outputs, features, strict=True):
            sides = {name: np.asarray(output[name], np.float64) for name in SPAN_LOGITS}
            scores.append({name: side - side[CLS] for name, side in sides.items()})
            offsets = feature["offsets"]
            inside = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end))
            first, last = (inside[0], inside[-1] + 1) if len(inside) else (0, 0)
            part = {"offsets": offsets[first:last], "first": feature["first"] + int(first)}
            parts.append(part | {"context": feature["context"]})
        return self.best_spans(scores, parts) or self.best_spans(scores, features)

    def _candidates(self, example: Example, data: DataSection) -> list[tuple[str | None, Span]]:
        """Type and characters of each candidate."""
        path = path_of(self, "candidates", data)
        length = len(text(example, path_of(self, "context", data)))
        items = _listed(example, path)
        places = [[x.get("start"), x.get("end")] if isinstance(x, dict) else x for x in items]
        where = f"{example.where}: {path}"
        if not all(isinstance(item, dict) for item in items):
            raise DataError(f"{where}: {quote(places[0])}, expected objects with start and end")
        spans = spans_of(places, length, where)
        return [(item.get("type"), span) for item, span in zip(items, spans, strict=True)]

    def _annotations(self, example: Example, data: DataSection) -> list[Annotation]:
        path = path_of(self, "annotations", data)
        length = len(text(example, path_of(self, "context", data)))
        candidates, annotations = len(self._candidates(example, data)), list[Annotation]()
        for number, item in enumerate(_listed(example, path)):
            where = f"{example.where}: {path} {number:,}"
            match item:
                case {"passage": int() | None as passage, "spans": list() as spans} if passage in (
                    None,
                    *range(candidates),
                ) and (yes_no := item.get("yes_no")) in ("yes", "no", None):
                    annotations.append((passage, spans_of(spans, length, where), yes_no))
                case _:
                    raise DataError(
                        f"{where}: {quote(item)}, expected passage, null or the number of one of "
                        f"{candidates:,} candidates from 0 on, spans, and yes_no, yes, no or null"
                    )
        if not annotations:
            raise DataError(f"{example.where}: {path}: none, a question has at least one")
        return annotations


def _listed(example: Example, path: str) -> list[Any]:
    listed = field(example, path)
    if not isinstance(listed, list):
        raise DataError(f"{example.where}: field {path!r} is {quote(listed)}, expected a list")
    return listed
