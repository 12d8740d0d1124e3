"""Answers from two paragraphs, with supporting sentences, as in HotpotQA.

Input: <s> [question] question [/question]
       (<t> title </t> (sentence [/sent])* [/par])*  yes no null </s>
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ldt.benchmarks import hotpotqa
from ldt.data.features import Feature, Segment, cut_off, ends, join
from ldt.data.options import DataSection, Length
from ldt.data.sentences import real_tokens
from ldt.data.tokenization import marker_ids, tokenize, tokenize_inside
from ldt.errors import DataError
from ldt.io.records import Example, field, text
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines
from ldt.metrics.numbers import logistic, logsumexp, softmax
from ldt.tasks.base import (
    NO_LABEL,
    Fault,
    Outputs,
    PublishedLayout,
    Scores,
    Task,
    TaskAnswers,
    TaskInputs,
    TaskReads,
    best_constant,
    grouped,
    named_labels,
    path_of,
    question_of,
)
from ldt.tasks.questions import Weight
from ldt.tasks.text import aligned, mentions

TYPES = ("span", "yes", "no")  # of answers, in the order of the head
OPTIONS = " yes no null"  # behind the last paragraph, as the authors have it
PARAGRAPHS = 2  # that an answer's evidence is from, in this data set always
MARKS = 3  # tokens of a paragraph beside its title and sentences: <t>, </t>, [/par]
LEAST = 8  # tokens that hold some of any paragraph


@dataclass
class Paragraph:
    """Tokenized paragraph.

    Args:
        number: index in the context.
        title: ids of the title.
        sentences: (index in the paragraph, ids, offsets [tokens, 2] in characters) of each
            sentence.
    """

    number: int
    title: list[int]
    sentences: list[tuple[int, list[int], np.ndarray]]

    @property
    def size(self) -> int:
        """Number of tokens, special ones included."""
        return MARKS + len(self.title) + sum(len(ids) + 1 for _, ids, _ in self.sentences)

    def cut(self, room: int) -> None:
        """Shorten the paragraph in place to ``room`` tokens: its title to half of them at most,
        then its end."""
        if self.size <= room:
            return
        self.title = self.title[: (room - MARKS - 1) // 2]
        sentences, self.sentences = self.sentences, []
        for place, ids, offsets in sentences:
            left = room - self.size - 1
            if left < min(len(ids), 1):
                break
            self.sentences.append((place, ids[:left], offsets[:left]))


class HotpotQA(Task):
    """Span, yes or no, with supporting sentences from two paragraphs.

    Input and head follow Beltagy et al. 2020 (arXiv:2004.05150, appendix D), with the tokens that
    the authors name (allenai/longformer, issues 78 and 141). The answer is predicted in one stage;
    the paper's second stage, after dropping paragraphs, is left out. If the answer is a span, all
    its mentions in the supporting sentences are correct (`ldt.tasks.text.mentions`).

    Paragraphs that do not fit one input are read in several, each whole and with the question
    first; ``data.stride`` has no effect. The type of the answer is trained on inputs with evidence.
    A paragraph that is too long loses its end.

    Decoding takes the two best paragraphs, their evidence sentences (at least the best one of
    each), and the answer from these sentences.

    Args:
        weights: weights of the losses ``span``, ``class``, ``passages`` and ``sentences``; 1 if not
            given. The paper does not give its weights.
        threshold: least probability of an evidence sentence.
        max_answer: longest answer, in tokens.
    """

    reads: ClassVar[TaskReads] = replace(
        Task.reads,
        document="context",
        query_fields=("question",),
        fields=("question", "answer", "supporting_facts"),
        noun="questions",
        signs=(("question", "context", "supporting_facts", "answer"),),
    )
    inputs: ClassVar[TaskInputs] = replace(
        Task.inputs,
        head="LdtForEvidenceAnswering",
        roles=(
            *("cls", "question", "titles", "sentences"),
            *("document", "paragraphs", "options", "sep"),
        ),
        markers=("[question]", "[/question]", "<t>", "</t>", "[/sent]", "[/par]"),
        extras=("offsets", "paragraphs", "sentences", "context", "lost", "unfound"),
        label_names=(
            *("labels", "start_positions", "end_positions"),
            *("passage_labels", "sentence_labels"),
        ),
    )
    answers: ClassVar[TaskAnswers] = replace(
        Task.answers,
        kind="facts",
        score=hotpotqa.score,
        outputs=(
            *("start_logits", "end_logits", "logits"),
            *("passage_logits", "sentence_logits"),
        ),
        keys=(
            *("answer", "type", "score", "title", "sentence", "start", "end"),
            *("supporting_facts", "fact_scores"),
        ),
        metric="joint_f1",
        layouts={"hotpotqa": PublishedLayout(hotpotqa.published)},
    )

    name: Literal["hotpotqa"] = "hotpotqa"
    global_attention: list[str] = ["cls", "question", "titles", "sentences"]
    weights: dict[Literal["span", "class", "passages", "sentences"], Weight] = {}
    threshold: float = Field(0.5, ge=0, le=1)
    max_answer: Length = 30

    def learn(self, examples: Iterable[Example], data: DataSection) -> dict[str, Any]:
        """Return id2label, label2id, num_labels, and the settings of the loss, evidence_weights and
        passage_loss."""
        super().learn(examples, data)
        return {**named_labels(TYPES), "evidence_weights": self.weights, "passage_loss": "each"}

    def faults(self, example: Example, data: DataSection) -> Iterator[Fault]:
        """Yield an answer that occurs in no sentence, and supporting facts that are not in the
        context."""
        answer, facts = self.gold(example, data, None).values()
        context = _read_context(example, path_of(self, "context", data))
        there = _sentences(context)
        sentences_read = "\n".join(sentence for _, sentences in context for sentence in sentences)
        if answer not in TYPES[1:] and not mentions(sentences_read, [answer]):
            yield Fault("answer_not_mentioned", f"no mention of {answer[:60]!r}")
        for title, place in sorted(facts - there):
            yield Fault("answer_not_in_context", f"no sentence {place} of {title[:60]!r}, a fact")

    def encode(
        self, example: Example, tokenizer, *, data: DataSection, max_length: int, config=None
    ) -> list[Feature]:
        """Return a feature per input, each of whole paragraphs.

        ``passage_positions`` are the <t> of the ``paragraphs`` [paragraphs], given by their index
        in the context; ``sentence_positions`` the [/sent] of the ``sentences`` [sentences, 4]:
        index of the paragraph, index in it, first token, number of tokens. ``offsets`` [tokens, 2]
        are characters within a token's sentence. The first feature has the ``context``, and with
        labels the number of supporting facts (``lost``) and answers (``unfound``) missing in it.
        """
        question = question_of(self, example, data)
        context = _read_context(example, path_of(self, "context", data))
        asks, asked, *marks = marker_ids(tokenizer, self.inputs.markers)
        cls, sep = ends(tokenizer)
        question_ids = [asks, *tokenize(tokenizer, f" {question.strip()}"), asked]
        head = [cls, Segment("question", question_ids)]
        tail = [Segment("options", tokenize(tokenizer, OPTIONS)), sep]
        around = sum(len(segment.ids) for segment in head + tail)
        room = max_length - around
        if room < LEAST:
            raise DataError(
                f"{example.where}: the question leaves {max(room, 0):,} of {max_length:,} tokens "
                "for the paragraphs; a larger data.max_length would do (ldt convert SOURCE "
                "--max-length N makes a longer model)"
            )
        read = tokenized(context, tokenizer)
        length = around + sum(paragraph.size for paragraph in read)
        chunks, flags = in_inputs(read, room, example, data)
        shared = {"document": 0, "tokens": length, "flags": flags}
        features = [self._feature(head, chunk, tail, marks) | shared for chunk in chunks]
        features[0]["context"] = context
        if config is not None:
            self._label(features, self.gold(example, data, config), context)
        return features

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Return lines with the numbers of answers and of supporting facts that cannot be trained
        on, if any."""
        counts = Counter[str]()
        for feature in features:
            counts.update({key: feature.get(key, 0) for key in ("lost", "unfound")})
        lines = {
            "unfound": "answers that no supporting sentence mentions, learnt by their evidence",
            "lost": "supporting facts that are not in their context",
        }
        return [f"{line}: {counts[key]:,}" for key, line in lines.items() if counts[key]]

    def gold(self, example: Example, data: DataSection, config) -> dict[str, Any]:
        """Return {"answer": text, "facts": set of (title, index of a sentence)}."""
        path, facts = path_of(self, "supporting_facts", data), set()
        listed = field(example, path)
        for fact in listed if isinstance(listed, list) else [listed]:
            match fact:
                case [str(title), int(place)]:
                    facts.add((title, place))
                case _:
                    raise DataError(
                        f"{example.where}: field {path!r}: {str(fact)[:60]}, expected "
                        "[title, number of a sentence]"
                    )
        return {"answer": text(example, path_of(self, "answer", data)), "facts": facts}

    def decode(self, outputs: Sequence[Outputs], config, example: Example, features) -> dict:
        """Return the answer, its evidence and flags such as ``truncated``.

        ``answer``, ``type`` (span, yes or no) and ``score``, the probability of the type, for a
        span times those of its start and end within the evidence; for a span also ``title``,
        ``sentence``, ``start`` and ``end``, in characters of the sentence; ``supporting_facts``, a
        list of [title, index of a sentence], and ``fact_scores``, their probabilities.
        """
        context = features[0]["context"]
        evidence = self._evidence(outputs, features)
        chunks = sorted({chunk for chunk, _, _ in evidence}) or [0]
        types = softmax(np.mean([outputs[c]["logits"] for c in chunks], 0, dtype=float))
        name, sure = TYPES[int(types.argmax())], types.max().item()
        answer = {"answer": name, "type": name, "score": sure}
        if name == "span":
            answer |= self._span(outputs, features, evidence)
            answer["score"] *= sure
        rows = [(features[c]["sentences"][row].tolist(), score) for c, row, score in evidence]
        answer["supporting_facts"] = [[context[p][0], place] for (p, place, *_), _ in rows]
        answer["fact_scores"] = [score for _, score in rows]
        return answer | features[0]["flags"]

    def measure(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Scores:
        """Return em and f1 of the answer, of the facts (sp_) and of both jointly (joint_), from 0
        to 100, and a row per type of answer."""
        scores = []
        for answer, gold in zip(answers, golds, strict=True):
            values = hotpotqa.score(gold, answer)
            shown = {name: values[name] for name in hotpotqa.SHOWN}
            scores.append((TYPES[_type(gold["answer"])], shown))
        return grouped("type", scores, TYPES, "questions")

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return the scores of the answer that is most frequent in training, without facts."""
        usual = baseline.commonest([gold["answer"]] for gold in trained)
        answer = {"answer": usual, "supporting_facts": []}
        return best_constant(self, {baseline.quoted(usual): answer}, golds, config)

    def _feature(
        self, head: list[Segment], chunk: list[Paragraph], tail: list[Segment], marks: list[int]
    ) -> Feature:
        titled, untitled, sentence_end, paragraph_end = marks
        segments, length = list(head), sum(len(segment.ids) for segment in head)
        starts, ends, rows, offsets = [], [], [], []
        for paragraph in chunk:
            starts.append(length)
            segments.append(Segment("titles", [titled]))
            segments.append(Segment("document", [*paragraph.title, untitled]))
            length += len(paragraph.title) + 2
            for place, ids, characters in paragraph.sentences:
                rows.append((paragraph.number, place, length, len(ids)))
                offsets.append((length, characters))
                segments.append(Segment("document", ids))
                segments.append(Segment("sentences", [sentence_end]))
                length += len(ids) + 1
                ends.append(length - 1)
            segments.append(Segment("paragraphs", [paragraph_end]))
            length += 1
        feature = join([*segments, *tail], self.global_attention)
        feature["offsets"] = np.zeros((len(feature["input_ids"]), 2), np.int32)
        for start, characters in offsets:
            feature["offsets"][start : start + len(characters)] = characters
        feature["paragraphs"] = np.array([paragraph.number for paragraph in chunk], np.int32)
        feature["sentences"] = np.array(rows, np.int32).reshape(-1, 4)
        return feature | {"passage_positions": starts, "sentence_positions": ends}

    def _label(self, features: list[Feature], gold: dict, context) -> None:
        titles = {title for title, _ in gold["facts"]}
        answer_type, mentioned = _type(gold["answer"]), False
        for feature in features:
            rows = feature["sentences"].tolist()
            here = [(context[p][0], place) in gold["facts"] for p, place, *_ in rows]
            known = any(here) or len(features) == 1
            feature["labels"] = answer_type if known else NO_LABEL
            feature["sentence_labels"] = [int(is_fact) for is_fact in here]
            feature["passage_labels"] = [
                int(context[p][0] in titles) for p in feature["paragraphs"].tolist()
            ]
            spans = []
            for (p, place, first, size), is_fact in zip(rows, here, strict=True):
                if is_fact and TYPES[answer_type] == "span":
                    places = mentions(context[p][1][place], [gold["answer"]])
                    offsets = feature["offsets"][first : first + size]
                    spans += [(first + a, first + b) for a, b in aligned(offsets, places)]
            mentioned = mentioned or bool(spans)
            feature["start_positions"] = [start for start, _ in spans] or [NO_LABEL]
            feature["end_positions"] = [end for _, end in spans] or [NO_LABEL]
            if spans:
                feature["answer_tokens"] = min(end - start + 1 for start, end in spans)
        features[0]["lost"] = len(gold["facts"] - _sentences(context))
        features[0]["unfound"] = int(TYPES[answer_type] == "span" and not mentioned)

    def _evidence(
        self, outputs: Sequence[Outputs], features: Sequence[Feature]
    ) -> list[tuple[int, int, float]]:
        """(chunk, row among its sentences, probability) of each evidence sentence, in document
        order."""
        titles: dict[int, float] = {}
        sentences: dict[int, list[tuple[int, int, float]]] = {}
        for chunk, (output, feature) in enumerate(zip(outputs, features, strict=True)):
            logits = output["sentence_logits"].astype(float)
            for row, (number, *_) in enumerate(feature["sentences"].tolist()):
                sentence = chunk, row, logistic(logits[row].item())
                sentences.setdefault(number, []).append(sentence)
            for place, number in enumerate(feature["paragraphs"].tolist()):
                titles[number] = output["passage_logits"][place].item()
        ranked = sorted(sentences, key=lambda number: -titles[number])
        chosen = []
        for number in sorted(ranked[:PARAGRAPHS]):
            best = max(score for *_, score in sentences[number])
            limit = min(self.threshold, best)
            chosen += [each for each in sentences[number] if each[-1] >= limit]
        return chosen

    def _span(
        self,
        outputs: Sequence[Outputs],
        features: Sequence[Feature],
        evidence: list[tuple[int, int, float]],
    ) -> dict[str, Any]:
        """Best span within the evidence, its place, and its start and end probability."""
        best, start_logits, end_logits = None, [], []
        for chunk, row, _ in evidence:
            number, place, first, size = features[chunk]["sentences"][row].tolist()
            start, end = (
                outputs[chunk][name][first : first + size].astype(float)
                for name in ("start_logits", "end_logits")
            )
            offsets = features[chunk]["offsets"][first : first + size]
            real = real_tokens(offsets)
            if not len(real):
                continue
            start_logits.append(start[real])
            end_logits.append(end[real])
            pairs = start[real][:, None] + end[real]
            near = np.triu(np.tri(len(real), k=self.max_answer - 1)) > 0  # start <= end, not far
            pairs = np.where(near, pairs, -np.inf)
            a, b = np.unravel_index(pairs.argmax(), pairs.shape)
            if best is None or pairs[a, b] > best[0]:
                characters = offsets[real[a], 0].item(), offsets[real[b], 1].item()
                best = pairs[a, b].item(), number, place, characters
        if best is None:
            return {"answer": "", "score": 0.0}
        logit, number, place, (start, end) = best
        title, sentences = features[0]["context"][number]
        total = sum(logsumexp(np.concatenate(side)) for side in (start_logits, end_logits))
        return {
            "answer": sentences[place][start:end],
            "score": float(np.exp(logit - total)),
            "title": title,
            "sentence": place,
            "start": start,
            "end": end,
        }


def _sentences(context: list[tuple[str, list[str]]]) -> set[tuple[str, int]]:
    """(title, index) of each sentence, as in supporting facts."""
    return {(title, place) for title, listed in context for place in range(len(listed))}


def _type(answer: str) -> int:
    word = answer.strip().lower()
    return TYPES.index(word) if word in TYPES[1:] else 0


def _read_context(example: Example, path: str) -> list[tuple[str, list[str]]]:
    """(title, sentences) of each paragraph; DataError if there is no word in them."""
    listed, context = field(example, path), []
    for paragraph in listed if isinstance(listed, list) else [listed]:
        match paragraph:
            case [str(title), list(sentences)] if all(isinstance(text, str) for text in sentences):
                context.append((title, sentences))
            case _:
                raise DataError(
                    f"{example.where}: field {path!r}: {str(paragraph)[:60]}, expected a list of "
                    "[title, list of sentences]"
                )
    if not any(text.strip() for _, sentences in context for text in sentences):
        raise DataError(f"{example.where}: field {path!r}: there is not a word in its sentences")
    return context


def tokenized(context: list[tuple[str, list[str]]], tokenizer) -> list[Paragraph]:
    """Make a `Paragraph` of each (title, sentences) of a context: ids of its stripped title, ids
    and offsets of each sentence, all tokenized as if a space preceded them."""
    return [
        Paragraph(
            number,
            tokenize(tokenizer, f" {title.strip()}"),
            [(place, *tokenize_inside(tokenizer, text)) for place, text in enumerate(sentences)],
        )
        for number, (title, sentences) in enumerate(context)
    ]


def in_inputs(
    paragraphs: list[Paragraph], room: int, example: Example, data: DataSection
) -> tuple[list[list[Paragraph]], dict[str, Any]]:
    """Divide paragraphs among inputs, whole and in order; returns the paragraphs of each input, and
    flags for the answer. One longer than ``room`` (tokens beside the question, at least `LEAST`) is
    cut in place.

    Raises:
        DataError: they do not fit one input and ``data.overflow`` is "error".
    """
    total = sum(paragraph.size for paragraph in paragraphs)
    if total <= room:
        return [paragraphs], {}
    if data.overflow == "error":
        raise DataError(
            f"{example.where}: the paragraphs of {example.id!r} have {total:,} tokens, {room:,} "
            "fit beside the question; data.overflow=chunks reads them in parts, truncate the "
            "first part of them"
        )
    groups: list[list[Paragraph]] = [[]]
    left = room
    for paragraph in paragraphs:
        paragraph.cut(room)
        if paragraph.size > left and groups[-1]:
            groups.append([])
            left = room
        groups[-1].append(paragraph)
        left -= paragraph.size
    most = 1 if data.overflow == "truncate" else data.max_chunks
    read = sum(paragraph.size for group in groups[:most] for paragraph in group)
    return groups[:most], cut_off(total - read)
