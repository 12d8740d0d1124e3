"""Named entities in a long document: [cls] document [sep], with a BIO tag for each word."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from ldt.benchmarks import conll
from ldt.data import sentences as splitter
from ldt.data.features import Feature, ends
from ldt.data.options import DataSection, Names
from ldt.data.sentences import Unit, Words, cuts_word
from ldt.data.tokenization import tokenize_with_offsets
from ldt.errors import DataError, listed
from ldt.io.records import Example, has, text
from ldt.metrics.baseline import Baselines
from ldt.metrics.entities import COUNTS, NAMES, Entity, by_sentence, ratios, tags_of
from ldt.metrics.entities import score as score_entities
from ldt.metrics.numbers import softmax
from ldt.tasks import results
from ldt.tasks.base import (
    NO_LABEL,
    DocumentTokens,
    Fault,
    Outputs,
    PublishedLayout,
    Scores,
    TaskAnswers,
    TaskInputs,
    TaskReads,
    best_constant,
    evaluation_set,
    in_chunks,
    named_labels,
    not_empty,
    path_of,
    refuse_unseen,
    training_set,
)
from ldt.tasks.deciding import Weighted
from ldt.tasks.explained import ByPlaces, Reading
from ldt.tasks.text import read_entities, read_sentences


class TokenClassification(Weighted, ByPlaces):
    """Entities as in CoNLL: non-overlapping, each of one type.

    An example has ``tokens``, a list of words or of sentences (lists of words), with ``tags`` of
    the same form; or a ``text`` with ``entities``, a list of {start, end, label} in characters. If
    it has both, ``data.text`` decides for the text. Raw text is split into words at white space and
    punctuation, never inside a token.

    The first token of a word carries its label. In overlapping chunks a word is tagged by the chunk
    in which it is furthest from an edge.

    Args:
        labels: entity types in the order of the model's outputs; none takes those of the training
            set, sorted as text.
    """

    reads: ClassVar[TaskReads] = replace(
        Weighted.reads,
        fields=("tokens", "tags", "entities"),
        signs=(("tokens", "tags"), ("text", "entities")),
        instead=("tokens",),
        formats=("conll",),
    )
    inputs: ClassVar[TaskInputs] = replace(
        Weighted.inputs,
        head="LdtForTokenClassification",
        roles=("cls", "document", "sep"),
        stride=32,
        extras=("words", "text", "astray", "sizes", "nested"),
        one_class=True,
    )
    answers: ClassVar[TaskAnswers] = replace(
        Weighted.answers,
        kind="entities",
        formats=("token_classification",),
        result=results.evaluate_entities,
        keys=("entities", "tags"),
        layouts={"conll": PublishedLayout(conll.published)},
    )

    chunked: ClassVar[bool] = False

    name: Literal["token_classification"] = "token_classification"
    global_attention: list[str] = ["cls"]
    labels: Names | None = None

    def learn(self, examples: Iterable[Example], data: DataSection) -> dict[str, Any]:
        """Return id2label, label2id and num_labels: O, and B and I of each type of ``task.labels``,
        in its order, else of each type in the training set, sorted. DataError if there are no
        entities, or one of another type."""
        counts, documents = Counter[str](), 0
        for documents, example in enumerate(examples, 1):  # noqa: B007
            for entity in self.gold(example, data, None):
                if self.labels and entity.label not in self.labels:
                    raise DataError(
                        f"{example.where}: an entity {entity.label!r}, which is not in "
                        f"task.labels: {listed(self.labels)}"
                    )
                counts[entity.label] += 1
        if not counts:
            raise DataError(
                f"{training_set(data)}: nothing to learn, {documents:,} documents and no entity in "
                "them"
            )
        types = self.labels or sorted(counts)
        return named_labels(["O", *(f"{kind}-{name}" for name in types for kind in "BI")])

    def meaning(self, config) -> str:
        """Return a line with the number of entity types and their order (``task.labels``, else
        sorted)."""
        types = _types(config)
        order = "as task.labels orders them" if self.labels else "sorted as text"
        return (
            f"labels: entities of {len(types):,} types, {order} (task.labels names them in order)"
        )

    def check(self, examples: Iterable[Example], data: DataSection, config) -> None:
        """Read the entities of all evaluation examples. DataError if there is no example, if
        entities cannot be read, or for types that the model's ``config`` does not have."""
        golds = (
            (example.where, entity.label)
            for example in not_empty(self, examples, evaluation_set(data))
            for entity in self.gold(example, data, config)
        )
        refuse_unseen(golds, _types(config), "types")

    def parts(self, example: Example, data: DataSection) -> tuple[str, str]:
        """Return the text, or the words joined by spaces; and ""."""
        tokens = self._tokens(example, data)
        return Words.pretokenized(*tokens).text if tokens else self._text(example, data), ""

    def classes(self, example: Example, data: DataSection) -> list[str]:
        """Return the type of each entity, with repetitions."""
        return [entity.label for entity in self.gold(example, data, None)]

    def faults(self, example: Example, data: DataSection) -> Iterator[Fault]:
        """Yield entities of a raw text that begin or end inside a word."""
        if self._tokens(example, data) is None:
            document = self._text(example, data)
            for start, end, label in self.gold(example, data, None):
                if cuts_word(document, start, end):
                    yield Fault("span_cuts_word", f"{label} {document[start:end][:40]!r}")

    def encode(
        self, example: Example, tokenizer, *, data: DataSection, max_length: int, config=None
    ) -> list[Feature]:
        """Return a feature per chunk; an empty document has one, flagged ``empty``.

        ``words`` [words, 4] int32 has for each word that begins in the chunk its number, the
        position of its first token, and its start and end in characters. ``labels`` [tokens] are
        -100 except where a word begins. The first feature has the ``text``, and ``astray``, the
        number of entities not aligned with words.
        """
        document = self._words(example, data)
        ids, offsets = tokenize_with_offsets(tokenizer, document.text)
        words = document.located(offsets)
        cls, sep = ends(tokenizer)
        read = DocumentTokens("document", ids)
        features = in_chunks(self, example, data, max_length, [cls], read, [sep], document.text)
        labels, astray = None, 0
        if config is not None:
            gold = self.gold(example, data, config)
            labels, astray = _labels(gold, words, config, raw=document.sizes is None)
        for feature in features:
            _, start, end = feature["read"]
            here = (words[:, 1] >= start) & (words[:, 1] < end)
            inside = words[here] - [0, start - 1, 0, 0]
            feature["words"] = inside.astype(np.int32)
            if labels is not None:
                feature["labels"] = np.full(len(feature["input_ids"]), NO_LABEL, np.int32)
                feature["labels"][inside[:, 1]] = labels[here]
        features[0] |= {"text": document.text, "astray": astray}
        features[0] |= {"sizes": document.sizes, "nested": document.nested}
        return features

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Return a line with the number of entities that begin or end inside a word, if any."""
        astray = sum(feature.get("astray", 0) for feature in features)
        what = "entities that begin or end inside of a word, learnt as whole words"
        return [f"{what}: {astray:,}"] if astray else []

    def gold(self, example: Example, data: DataSection, config) -> list[Entity]:
        """Return the entities, start and end in words of ``tokens`` or in characters of ``text``,
        end exclusive; DataError if they or the tags have another form."""
        tokens = self._tokens(example, data)
        if tokens is None:
            return read_entities(
                example, path_of(self, "entities", data), self._text(example, data)
            )
        tags = read_sentences(example, path_of(self, "tags", data))
        sizes = [[len(sentence) for sentence in some] for some, _ in (tags, tokens)]
        if sizes[0] != sizes[1] or tags[1] != tokens[1]:
            raise DataError(
                f"{example.where}: {sum(sizes[0]):,} tags and {sum(sizes[1]):,} tokens, in "
                f"{len(sizes[0]):,} and {len(sizes[1]):,} sentences; each token has one tag"
            )
        try:
            return by_sentence(tags[0])
        except ValueError as error:
            raise DataError(
                f"{example.where}: field {path_of(self, 'tags', data)!r}: {error}"
            ) from None

    def decode(self, outputs: Sequence[Outputs], config, example: Example, features) -> dict:
        """Return ``entities``, for given words also ``tags`` in their form; and flags such as
        ``truncated``.

        An entity has start, end and label as in `gold`, its text, and as score the mean probability
        of its words. An I that continues no entity of its type counts, and is written, as B.
        """
        # Each word that was read has one label, and entities do not cross the border of a sentence.
        first, sizes = features[0], features[0]["sizes"]
        numbers, scores, places = _merged(outputs, features, len(config.id2label))
        tags = [config.id2label[label] for label in scores.argmax(1).tolist()]
        ends = np.searchsorted(numbers, np.cumsum(sizes)).tolist() if sizes else [len(tags)]
        in_words, entities = [], []
        for a, b, label in by_sentence(tags[i:j] for i, j in zip([0, *ends], ends, strict=False)):
            chars = places[a, 0].item(), places[b - 1, 1].item()
            words = numbers[a].item(), numbers[b - 1].item() + 1
            in_words.append(Entity(*words, label))
            start, end = words if sizes else chars
            score = scores[a:b].max(1).mean().item()
            entity = {"start": start, "end": end, "label": label}
            entities.append(entity | {"text": first["text"][slice(*chars)], "score": score})

        # Given words get a tag each, also those that were cut off, in the form they came in.
        answer: dict[str, Any] = {"entities": entities}
        if sizes is not None:
            tags = tags_of(in_words, sum(sizes))
            ends = np.cumsum(sizes).tolist()
            parted = [tags[end - size : end] for end, size in zip(ends, sizes, strict=True)]
            answer["tags"] = parted if first["nested"] else tags
        return answer | first["flags"]

    def reading(self, example: Example, tokenizer, data, unit: Unit = "sentence") -> Reading:
        """Return the text, or given words joined by spaces, with sentences or paragraphs as
        passages; for given sentences a paragraph is as many sentences as fit its size."""
        document = self._words(example, data)
        _, offsets = tokenize_with_offsets(tokenizer, document.text)
        if not document.nested:
            return Reading(document.text, offsets, splitter.UNITS[unit](document.text))
        ends = np.cumsum([size for size in document.sizes or () if size])
        places = zip(document.places[[0, *ends[:-1]], 0], document.places[ends - 1, 1], strict=True)
        pairs = [(int(a), int(b)) for a, b in places]
        passages = pairs if unit == "sentence" else [*splitter.together(pairs)]
        return Reading(document.text, offsets, passages)

    def places(self, answer: dict, example: Example, data: DataSection) -> list[tuple[int, float]]:
        document = self._words(example, data)
        starts = None if document.sizes is None else document.places[:, 0]
        return [
            (each["start"] if starts is None else int(starts[each["start"]]), each["score"])
            for each in answer["entities"]
        ]

    def measure(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Scores:
        """Return precision, recall and f1 over all entities, from 0 to 100, with a row per type; an
        entity is right if start, end and type are."""
        totals: Counter[str] = Counter()
        for answer, gold in zip(answers, golds, strict=True):
            entities = {
                Entity(*(each[key] for key in Entity._fields)) for each in answer["entities"]
            }
            totals.update(score_entities({"entities": set(gold)}, {"entities": entities}))
        rows = [
            {"type": label} | _percent(totals, label) | {"support": totals[f"{label}:gold"]}
            for label in _types(config)
        ]
        return _percent(totals, ""), rows

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return the scores of O for every word."""
        return best_constant(self, {"always O": {"entities": []}}, golds, config)

    def raw_text(self, example: Example, data: DataSection) -> str | None:
        """Return the text to whose characters entities refer; None for given words, or if there is
        none."""
        try:
            return None if self._tokens(example, data) else self._text(example, data)
        except DataError:
            return None

    def _tokens(self, example: Example, data: DataSection) -> tuple[list[list[str]], bool] | None:
        """Words as sentences, and True if given so; None for an example with text."""
        path = path_of(self, "tokens", data)
        if data.text is not None:
            return None
        if not has(example, path):
            if self.reads.document in example.fields:
                return None
            raise DataError(
                f"{example.where}: no field {path!r}, a list of words, and no "
                f"{self.reads.document!r}; data.fields and data.text name others"
            )
        return read_sentences(example, path)

    def _words(self, example: Example, data: DataSection) -> Words:
        tokens = self._tokens(example, data)
        return Words.pretokenized(*tokens) if tokens else Words.raw(self._text(example, data))

    def _text(self, example: Example, data: DataSection) -> str:
        return text(example, path_of(self, self.reads.document, data))


def _labels(gold: list[Entity], words: np.ndarray, config, *, raw: bool) -> tuple[np.ndarray, int]:
    """Label of each word of `Words.located`, and the number of entities not aligned with words;
    ``raw`` entities are in characters, others in words."""
    labels, astray = np.full(len(words), config.label2id["O"]), 0
    for start, end, name in gold:
        if raw:
            a = np.searchsorted(words[:, 3], start, side="right")
            b = np.searchsorted(words[:, 2], end)
            exact = a < b and (words[a, 2], words[b - 1, 3]) == (start, end)
            astray += not exact
        else:
            a, b = np.searchsorted(words[:, 0], [start, end])
        inside = labels[a:b]
        inside[:] = config.label2id[f"I-{name}"]
        inside[:1] = config.label2id[f"B-{name}"]
    return labels, astray


def _merged(
    outputs: Sequence[Outputs], features: Sequence[Feature], labels: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Words that were read: number [words], probabilities [words, labels] and characters [words,
    2], from the chunk in which each is furthest from an edge."""
    parts, depths, logits = [], [], []
    for output, feature in zip(outputs, features, strict=True):
        place, last = feature["words"][:, 1], len(feature["input_ids"]) - 1
        parts.append(feature["words"])
        depths.append(np.minimum(place, last - place))
        logits.append(output["logits"][place].reshape(-1, labels))
    words = np.concatenate(parts)
    order = np.lexsort((-np.concatenate(depths), words[:, 0]))  # stable: the earlier of two chunks
    numbers, chosen = np.unique(words[order, 0], return_index=True)
    chosen = order[chosen]
    return numbers, softmax(np.concatenate(logits).astype(float)[chosen]), words[chosen, 2:]


def _types(config) -> list[str]:
    return [name[2:] for name in config.label2id if name.startswith("B-")]


def _percent(totals: Counter[str], label: str) -> dict[str, float]:
    """Precision, recall and F1 of a type ("" for all), from 0 to 100."""
    values = ratios(*(totals[f"{label}:{name}"] for name in COUNTS))
    return {name: 100 * value for name, value in zip(NAMES, values, strict=True)}
