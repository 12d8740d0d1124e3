"""Coreference: the mentions of a document in clusters, each of what refers to the same.

Input: [cls] document [sep]. A document that does not fit is read in chunks; the state of a word is
that of the chunk where it stands farthest from a border, and mentions are linked across all.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from ldt.benchmarks.coreference import published, published_lines
from ldt.data import clusters
from ldt.data import sentences as splitter
from ldt.data.clusters import GROUPS, Clusters, Document
from ldt.data.features import NO_POSITION, Feature, ends
from ldt.data.options import Count, DataSection, Rate
from ldt.data.sentences import Span, real_tokens
from ldt.data.tokenization import tokenize_inside, tokenize_with_offsets
from ldt.errors import DataError
from ldt.io.records import Example
from ldt.metrics import coreference as metrics
from ldt.metrics.baseline import Baselines
from ldt.metrics.numbers import logistic
from ldt.tasks.base import (
    Continuing,
    DocumentTokens,
    Drawing,
    Joining,
    Outputs,
    PublishedLayout,
    Scores,
    TaskAnswers,
    TaskInputs,
    TaskReads,
    best_constant,
    evaluation_set,
    in_chunks,
    not_empty,
    path_of,
    training_set,
)

# Keys of `config.coref_head` that the task has as well.
SETTINGS = ("scorer", "ffnn_size", "max_span_length", "top_lambda", "dropout_prob", "antecedents")
# WordTable of LingMess (arXiv:2205.12644) that a comparison of two mentions leaves out.
STOP_WORDS = frozenset(
    "'s a all an and at for from in into more of on or some the these those".split()
)
POSSESSIVE = frozenset("my mine your yours his her hers its our ours their".split())
NONE: dict[str, Any] = {"clusters": []}


def score(gold: Clusters, answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return {"conll_f1": 0 to 1}, the mean of MUC, B-cubed and CEAF-e F1 of a document's clusters;
    an ``answer`` of None has no clusters."""
    clusters = spans_of(answer["clusters"]) if answer else []
    return {"conll_f1": metrics.measure([(gold, clusters)])["conll_f1"] / 100}


class WordTable(NamedTuple):
    """The words of a document among its tokens.

    Args:
        ids: tokens of the document, those of speakers among them.
        table: [words, 6], as the head takes them, tokens counted from the document's first.
        places: [words, 2], characters.
    """

    ids: list[int]
    table: np.ndarray
    places: np.ndarray


class Coreference(Continuing, Drawing, Joining):
    """Clusters of mentions.

    A record has ``sentences`` (lists of words), ``tokens`` or ``text``, with ``clusters``, lists of
    mentions, and maybe ``speakers``; see `ldt.data.clusters` for the layouts. A mention lies in
    one sentence; sentences that are not given are found by rules.

    A key that the recipe has not is as the model that is trained has it.

    Args:
        scorer: ``s2e``, or ``lingmess``, with an expert for each category of pairs.
        singletons: whether mentions that nothing else refers to are found; none finds them if the
            training set has some.
        ffnn_size: width of the head's layers.
        max_span_length: words of the longest mention.
        top_lambda: candidates that are compared with each other, for each word.
        antecedents: candidates before a mention that it may be linked to, the last ones.
        dropout_prob: dropout of the head.
        speakers: whether the name of a speaker stands in the input where the speaker changes.
        chunks: chunks of a training document that an epoch trains on, neighbours, drawn anew in
            each epoch; a link from one part to another is not learnt then.
        resolved: whether answers have the text with each pronoun replaced by the first mention of
            its cluster that is none.
    """

    reads: ClassVar[TaskReads] = TaskReads(
        fields=("sentences", "tokens", "clusters", "speakers", "mention_clusters", "coref_chains"),
        signs=(
            ("sentences", "clusters"),
            ("tokens", "clusters"),
            ("text", "clusters"),
            ("sentences", "mention_clusters"),
            ("sentences", "coref_chains"),
        ),
        instead=("sentences", "tokens"),
        formats=("coreference",),
    )
    inputs: ClassVar[TaskInputs] = TaskInputs(
        head="LdtForCoreference",
        roles=("cls", "document", "sep"),
        extras=("text", "places", "sizes"),
        loss_per_document=True,
        any_encoder=True,
        stride=256,
    )
    answers: ClassVar[TaskAnswers] = TaskAnswers(
        kind="clusters",
        keys=("clusters", "resolved", "sentences", "tokens"),
        metric="conll_f1",
        means=False,
        score=score,
        layouts={
            "coreference": PublishedLayout(published, default=()),
            "s2e": PublishedLayout(published_lines, default=()),
        },
    )

    name: Literal["coreference"] = "coreference"
    global_attention: list[str] = []
    scorer: Literal["s2e", "lingmess"] = "s2e"
    singletons: bool | None = None
    ffnn_size: Count = 1024
    max_span_length: Count = 30
    top_lambda: Rate = 0.4
    antecedents: Count = 1000
    dropout_prob: float = 0.3
    speakers: bool = True
    chunks: Count = 8
    resolved: bool = False

    def continued(self, config, folder: Path) -> Self:
        """Return a copy of the task with the head's settings in ``config.coref_head`` that the
        recipe does not give; ``folder`` is not read."""
        known = {
            name: value
            for name, value in config.coref_head.items()
            if name in {*SETTINGS, "singletons"} - self.model_fields_set
        }
        return self.model_copy(update=known)

    # -- read

    def document(self, example: Example, data: DataSection) -> Document:
        """Return the document of a record, with its sentences; if these are not given, they are
        found by rules. DataError if it cannot be read."""
        document = clusters.read(example, lambda name: path_of(self, name, data))
        if not document.sentences and document.words:
            starts = [start for start, _ in document.words]
            spans = splitter.UNITS["sentence"](document.text)
            borders = np.searchsorted(starts, [start for start, _ in spans]).tolist()
            borders = sorted({0, *borders, len(starts)})
            document.sentences = [*zip(borders, borders[1:], strict=False)]
        return document

    def parts(self, example: Example, data: DataSection) -> tuple[str, str]:
        """Return the text of the document, and ""."""
        return self.document(example, data).text, ""

    def gold(self, example: Example, data: DataSection, config) -> Clusters:
        """Return the clusters, each a list of mentions (start, end) in characters, [] for none;
        DataError if the record has no field of them."""
        document = self.document(example, data)
        if document.clusters is None:
            raise DataError(f"{example.where}: no clusters")
        return document.characters()

    def learn(self, examples: Iterable[Example], data: DataSection) -> dict[str, Any]:
        """Return the config's ``coref_head``: the head's settings from the recipe, and
        ``singletons``, by default True if a cluster has one mention. DataError if no document
        has a cluster."""
        sizes = Counter[int]()
        for example in not_empty(self, examples, training_set(data)):
            sizes.update(map(len, self.gold(example, data, None)))
        if not sizes:
            raise DataError(f"{training_set(data)}: no cluster to learn from")
        singletons = 1 in sizes if self.singletons is None else self.singletons
        facts = {name: getattr(self, name) for name in SETTINGS}
        return {"coref_head": facts | {"singletons": singletons}}

    def meaning(self, config) -> str:
        """Line that says if singletons, mentions that nothing else refers to, are found or left
        out."""
        state = "found" if config.coref_head["singletons"] else "left out"
        return f"singletons, mentions that nothing else refers to: {state} (task.singletons)"

    def check(self, examples: Iterable[Example], data: DataSection, config) -> None:
        """Read all clusters of the evaluation set; DataError if it has none."""
        source = evaluation_set(data)
        if not sum(len(self.gold(x, data, config)) for x in not_empty(self, examples, source)):
            raise DataError(f"{source}: no cluster in any document")

    # -- encode

    def encode(
        self, example: Example, tokenizer, *, data: DataSection, max_length: int, config=None
    ) -> list[Feature]:
        """Return a feature per chunk.

        ``words`` [words, 6] int32 are those that are read in the chunk: number in the document,
        first and last token in the input, sentence, group of the pronoun or -1, and a number for
        each spelling, -1 for a stop word. ``labels`` [mentions, 3] are first and last word and
        cluster of the mentions that begin among them. The first feature has the ``text``,
        ``places`` [words, 2], the characters of all words, and ``sizes``, the words of each
        sentence, None for a raw text.
        """
        document = self.document(example, data)
        words = self._words(document, tokenizer)
        cls, sep = ends(tokenizer)
        read = DocumentTokens("document", words.ids)
        features = in_chunks(self, example, data, max_length, [cls], read, [sep], document.text)
        owner = _owners(words.table, [feature["read"] for feature in features])
        mentions = np.array(
            [
                (start, end - 1, number)
                for number, cluster in enumerate(document.clusters or [])
                for start, end in cluster
            ],
            np.int32,
        ).reshape(-1, 3)
        mentions = mentions[mentions[:, 0] < len(owner)]
        for number, feature in enumerate(features):
            before, start, end = feature["read"]
            table = words.table[owner == number]
            table[:, 1:3] = table[:, 1:3].clip(max=end - 1) + before - start
            feature["words"] = table
            if config is not None:
                feature["labels"] = mentions[owner[mentions[:, 0]] == number]
        sizes = [end - start for start, end in document.sentences]
        features[0] |= {"text": document.text, "places": words.places.astype(np.int32)}
        features[0] |= {"sizes": sizes if document.pretokenized else None}
        return features

    def _words(self, document: Document, tokenizer) -> WordTable:
        """The words of a document among its tokens; one without a token has those beside it."""
        places = np.array(document.words, int).reshape(-1, 2)
        ids, offsets = tokenize_with_offsets(tokenizer, document.text)
        real = real_tokens(offsets)
        if not len(real):
            places = places[:0]
        starts, behind = offsets[real].T
        first = np.searchsorted(behind, places[:, 0], "right").clip(max=len(real) - 1)
        last = np.searchsorted(starts, places[:, 1]) - 1
        table = np.zeros((len(places), 6), np.int32)
        table[:, 0] = np.arange(len(places))
        table[:, 1], table[:, 2] = real[first], real[np.maximum(first, last)]
        for number, (start, end) in enumerate(document.sentences):
            table[start:end, 3] = number
        texts = [document.text[start:end].lower() for start, end in places]
        numbers: dict[str, int] = {}
        for row, word in zip(table, texts, strict=True):
            row[4] = GROUPS.get(word, -1)
            row[5] = -1 if word in STOP_WORDS else numbers.setdefault(word, len(numbers))
        if self.speakers and document.speakers is not None:
            ids = _with_speakers(ids, table, document.speakers, tokenizer)
        return WordTable(ids, table, places)

    def draw(self, features: list[Feature], generator: np.random.Generator) -> list[Feature]:
        """Return ``task.chunks`` neighbouring chunks, drawn at random; their ``words`` lose
        sentences that stand in part in the chunks beside them."""
        extra = len(features) - self.chunks
        if extra <= 0:
            return features
        first = int(generator.integers(extra + 1))
        drawn = features[first : first + self.chunks]
        beside = [*features[max(first - 1, 0) : first], *features[first + self.chunks :][:1]]
        cut = np.concatenate([feature["words"][:, 3] for feature in beside])
        parts = [feature["words"] for feature in drawn]
        whole = [words[~np.isin(words[:, 3], cut)] for words in parts]
        if not any(map(len, whole)):  # of one sentence, or none is known
            whole = parts
        return [feature | {"words": each} for feature, each in zip(drawn, whole, strict=True)]

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Return lines with the numbers of mentions too long to be learnt, and of links lost by
        `draw`, if any."""
        mentions = links = lost = long = 0
        chunk, document = 0, None
        last: dict[int, int] = {}
        for feature in features:
            if feature["document"] != document:
                chunk, document, last = -1, feature["document"], {}
            chunk += 1
            labels = feature["labels"]
            mentions += len(labels)
            long += int((labels[:, 1] - labels[:, 0] >= self.max_span_length).sum())
            for cluster in labels[np.argsort(labels[:, 0], kind="stable"), 2].tolist():
                links += cluster in last
                lost += chunk - last.get(cluster, chunk) >= self.chunks
                last[cluster] = chunk
        lines = []
        if long:
            what = f"of more than {self.max_span_length:,} words, which are not learnt"
            lines.append(f"of {mentions:,} mentions {long:,} {what}")
        if lost:
            what = f"lost where documents are cut to {self.chunks:,} chunks (task.chunks)"
            lines.append(f"of {links:,} links {lost:,} {what}")
        return lines

    # -- answer

    def run(self, model, inputs: Mapping[str, Any], *, quick: bool = False) -> dict[str, Any]:
        """Return {"logits": states of the words of each chunk}, of which `joined` makes the real
        logits."""
        return {"logits": model.word_states(**inputs)}

    def joined(self, model, outputs: Sequence[Outputs], features) -> list[Outputs]:
        """Score mentions and links from the states of all words; returns one output, whose
        ``logits`` have a row for each candidate: first and last word, row of the antecedent or
        -1, scores of the link and the mention."""
        import torch

        sizes = [len(feature["words"]) for feature in features]
        pairs = zip(outputs, sizes, strict=True)
        states = np.concatenate([output["logits"][:size] for output, size in pairs])
        words = np.concatenate([feature["words"] for feature in features])
        both = (torch.from_numpy(x).to(model.device) for x in (states, words.astype(np.int64)))
        with torch.inference_mode():
            table, _ = model.links(*both)
        return [{"logits": table.float().cpu().numpy()}]

    def decode(self, outputs: Sequence[Outputs], config, example: Example, features) -> dict:
        """Return ``clusters`` of mentions in the order of the text, each with its characters, end
        exclusive, and its text; given words in ``sentences`` or ``tokens``; and flags such as
        ``truncated``.

        The ``antecedent`` of a mention is the place in its cluster of the one that it is linked to,
        None of the first one; its ``score`` the probability of the link against none, of a
        singleton that it is a mention. ``outputs`` are those of `joined`.
        """
        text, places = features[0]["text"], features[0]["places"]
        table = outputs[0]["logits"]
        table = table[table[:, 0] != NO_POSITION].astype(float)
        groups = _linked(table[:, 2].astype(int).tolist())
        singletons = config.coref_head.get("singletons", False)
        answer: dict[str, Any] = {"clusters": []}
        for group in groups:
            if len(group) == 1 and not (singletons and table[group[0], 4] > 0):
                continue
            cluster, numbers = [], {row: number for number, row in enumerate(group)}
            for row in group:
                first, last, antecedent, link, score = table[row].tolist()
                start, end = int(places[int(first), 0]), int(places[int(last), 1])
                chosen = numbers[int(antecedent)] if antecedent >= 0 else None
                mention = {"start": start, "end": end, "text": text[start:end]}
                value = logistic(score if chosen is None else link)
                cluster.append(mention | {"antecedent": chosen, "score": value})
            answer["clusters"].append(cluster)
        if (sizes := features[0]["sizes"]) is not None:
            tokens = [text[start:end] for start, end in places.tolist()]
            ends = np.cumsum(sizes, dtype=int).tolist()
            parts = [tokens[end - size : end] for end, size in zip(ends, sizes, strict=True)]
            answer |= {"sentences": parts} if sizes else {"tokens": tokens}
        if self.resolved:
            answer["resolved"] = resolved(text, answer["clusters"])
        return answer | features[0]["flags"]

    # -- score

    def measure(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Scores:
        """Return the F1 scores over all documents, 0 to 100, without rows; ``ldt evaluate`` has
        more metrics."""
        responses = (spans_of(answer["clusters"]) for answer in answers)
        scores = metrics.measure(zip(golds, responses, strict=True))
        names = [*(f"{name}_f1" for name in metrics.METRICS), f"{metrics.MULTIPLE}conll_f1"]
        return {name: scores[name] for name in ("conll_f1", *names)}, []

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return the metrics of an answer without clusters."""
        return best_constant(self, {"no clusters": NONE}, golds, config)


def _linked(antecedents: Sequence[int]) -> list[list[int]]:
    """Group candidates into clusters of indices; ``antecedents`` has the index that each is linked
    to, -1 for none."""
    groups: list[list[int]] = []
    of: list[list[int]] = []
    for place, antecedent in enumerate(antecedents):
        if antecedent < 0:
            groups.append([])
        of.append(groups[-1] if antecedent < 0 else of[antecedent])
        of[-1].append(place)
    return groups


def spans_of(clusters: Iterable[Iterable[dict[str, Any]]]) -> Clusters:
    """Convert the clusters of an answer, lists of {"start", "end", ...}, to lists of
    (start, end)."""
    return [[(each["start"], each["end"]) for each in cluster] for cluster in clusters]


def resolved(text: str, clusters: Iterable[Sequence[dict[str, Any]]]) -> str:
    """Return the text with each pronoun replaced by the first mention of its cluster that is none,
    with 's for a possessive; ``clusters`` are those of an answer."""
    changes: list[tuple[Span, str]] = []
    for cluster in clusters:
        names = [each["text"] for each in cluster if each["text"].lower() not in GROUPS]
        for each in cluster if names else ():
            if (pronoun := each["text"].lower()) in GROUPS:
                more = "'s" if pronoun in POSSESSIVE else ""
                changes.append(((each["start"], each["end"]), names[0] + more))
    parts, before = [], 0
    for (start, end), name in sorted(changes):
        parts += [text[before:start], name]
        before = end
    return "".join([*parts, text[before:]])


def _with_speakers(ids: list[int], table: np.ndarray, speakers: list[str], tokenizer) -> list[int]:
    """Tokens with the name of each speaker where it changes, as LingMess writes it; moves the
    places in ``table`` behind them."""
    parts, before, shift = [], 0, 0
    for number, (row, speaker) in enumerate(zip(table, speakers, strict=False)):
        if speaker and (not number or speaker != speakers[number - 1]):
            place = int(row[1])
            name, _ = tokenize_inside(tokenizer, f"##### {speaker} ###")
            parts += [ids[before:place], name]
            before, shift = place, shift + len(name)
        row[1:3] += shift
    return [each for part in (*parts, ids[before:]) for each in part]


def _owners(table: np.ndarray, reads: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """[words], the chunk in which each word of the `WordTable` stands farthest from a cut, of equal
    ones the first; -1 for a word that no chunk has. ``reads`` is ``read`` of each chunk."""
    length = max(end for _, _, end in reads)
    owner, most = np.full(len(table), -1), np.full(len(table), -1)
    for number, (_, start, end) in enumerate(reads):
        before = table[:, 1] - start if start else length + table[:, 1]
        behind = end - 1 - table[:, 2] if end < length else length + end - 1 - table[:, 2]
        depth = np.minimum(before, behind)
        depth = np.where((before >= 0) & (table[:, 1] < end), depth.clip(0), -1)
        owner[depth > most] = number
        most = np.maximum(most, depth)
    return owner
