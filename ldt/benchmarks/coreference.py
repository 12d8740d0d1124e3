"""Coreference: documents with clusters as CoNLL-2012 or JSON lines, and their CoNLL F1.

CoNLL-2012: a word a line, the last column of which opens and closes mentions. Read are OntoNotes,
LitBank and other sets of 12 columns or more, those of 5 (the word in column 4 of both), of 3 or 4
(column 2; GUM) and of 2. The layouts of JSON lines are those of `ldt.data.clusters`. Predictions
have any of these, lines of ldt predict among them.

Source: the layout of Pradhan et al. 2012 (W12-4501); metrics as in `ldt.metrics.coreference`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ldt.benchmarks.base import AnswersById, Benchmark, once
from ldt.benchmarks.conll import lines
from ldt.benchmarks.recognition import BEGIN, recognised
from ldt.data import answer_files, clusters
from ldt.data.clusters import GROUPS, Clusters, Document
from ldt.data.options import DataSection
from ldt.errors import DataError, quote
from ldt.io.records import Example
from ldt.io.streams import open_source
from ldt.metrics import coreference as metrics
from ldt.metrics.result import Item, Result, compare, mean

_END = re.compile(r"#\s*end document")
_NAME = re.compile(r"\((?P<name>.*)\)(?:;\s*part\s*(?P<part>\d+))?")
_BRACKET = re.compile(r"\((?P<one>[^()|]+)\)|\((?P<opens>[^()|]+)|(?P<closes>[^()|]+)\)|\|")
_NOTHING = ("-", "_", "*", "")
_SPEAKER, _COLUMNS = 9, 12  # column of the speaker, where there are so many


def read(source: str, data: DataSection | None) -> Iterator[Example]:
    """Yield an example for each document of a file in CoNLL-2012, or for each JSON line of answers.

    Fields from CoNLL-2012: ``tokens``, or ``sentences`` where empty lines part some; ``clusters``,
    lists of [first word, last word]; ``speakers`` of the words, if known. Its id is the name with
    the part, as NAME_0, or without a name that of the file. A JSON line keeps its fields.

    Args:
        source: path, or "-" for standard input.
        data: data section of a recipe, for the encoding; None for UTF-8.
    """
    if not recognised(source, "coreference"):
        yield from answer_files.answers(source)
        return
    with open_source(source) as file:
        document = None
        numbered = lines(file, data.encoding if data else "utf-8")
        for number, text in numbered:
            if match := BEGIN.match(text):
                if document is not None:
                    yield document.example()
                document = _Reading(file.name, number, match["name"].strip())
            elif _END.match(text):
                if document is not None:
                    yield document.example()
                document = None
            elif document is not None:
                document.add(number, text)
            elif text.strip() and not text.startswith("#"):
                what = "a word outside of a document; #begin document (NAME) is missing before it"
                raise DataError(f"{file.name}:{number}: {what}")
        if document is not None:
            yield document.example()


class _Reading:
    """A document of CoNLL-2012 while its lines are read."""

    def __init__(self, file: str, number: int, title: str):
        self.file, self.number = file, number
        name = _NAME.match(title)
        part = f"_{int(name['part'])}" if name and name["part"] else ""
        stem = Path(file).name.partition(".")[0]
        self.id = f"{name['name'] if name else title}{part}" or stem
        self.sentences: list[list[str]] = [[]]
        self.speakers: list[list[str]] = [[]]
        self.words, self.column = 0, -1
        self.clusters: dict[str, list[list[int]]] = {}  # by entity, in the order of the file
        self.open: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)  # word, line

    def add(self, number: int, text: str) -> None:
        cells = text.split("\t") if "\t" in text else text.split()
        if not text.strip():
            if self.sentences[-1]:
                self.sentences.append([])
                self.speakers.append([])
            return
        if self.column < 0:
            self.column = 3 if len(cells) > 4 else int(len(cells) > 2)
        if len(cells) < self.column + 2:
            what = f"{len(cells)} columns; the word is in column {self.column + 1}"
            raise DataError(f"{self.file}:{number}: {what}, its clusters in the last")
        self.sentences[-1].append(cells[self.column])
        speaker = cells[_SPEAKER] if len(cells) >= _COLUMNS else ""
        self.speakers[-1].append("" if speaker in _NOTHING else speaker)
        self._mentions(cells[-1].strip(), number)
        self.words += 1

    def _mentions(self, cell: str, number: int) -> None:
        if cell in _NOTHING:
            return
        if _BRACKET.sub("", cell):
            what = f"{quote(cell)}, expected mentions such as (1, 1), (1) or (1)|(2"
            raise DataError(f"{self.file}:{number}: {what}")
        for bracket in _BRACKET.finditer(cell):
            entity = bracket["one"] or bracket["opens"] or bracket["closes"]
            if entity is None:
                continue
            mentions = self.clusters.setdefault(entity, [])
            if bracket["one"]:
                mentions.append([self.words, self.words])
            elif bracket["opens"]:
                self.open[entity].append((self.words, number))
            elif self.open[entity]:
                mentions.append([self.open[entity].pop()[0], self.words])
            else:
                what = f"{entity}) closes a mention of {entity}, which none before opens"
                raise DataError(f"{self.file}:{number}: {what}")

    def example(self) -> Example:
        for entity, waiting in self.open.items():
            if waiting:
                what = f"({entity} opens a mention that is not closed in the document"
                raise DataError(f"{self.file}:{waiting[-1][1]}: {what}")
        fields: dict[str, Any] = {"tokens": self.sentences[0], "speakers": self.speakers[0]}
        if len(self.sentences) > 1:
            some = len(self.sentences) - (not self.sentences[-1])
            fields = {"sentences": self.sentences[:some], "speakers": self.speakers[:some]}
        if not any(map(any, self.speakers)):
            del fields["speakers"]
        fields["clusters"] = [sorted(mentions) for mentions in self.clusters.values()]
        return Example(fields, self.id, f"{self.file}:{self.number}")


def documents(answers: Iterable[Mapping[str, Any]]) -> Iterator[Document]:
    """Yield the `Document` (words and clusters) of each answer of ldt predict, which holds
    ``sentences`` or ``tokens``; DataError for one with neither, as for a raw text."""
    for answer in answers:
        if {"sentences", "tokens"}.isdisjoint(answer):
            what = "no sentences or tokens; answers for given words have a place in this layout"
            raise DataError(f"answer {quote(answer['id'])}: {what}")
        example = Example({**answer}, answer["id"], f"answer {answer['id']}")
        yield clusters.read(example)


def published(answers: Iterable[Mapping[str, Any]]) -> str:
    """Convert answers to CoNLL-2012 of 12 columns, separated by tabs, as one text; a number at the
    end of an id, as in NAME_0, is the part of the document."""
    return "".join(part for each in documents(answers) for part in conll(each))


def published_lines(answers: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Convert answers to dicts for JSON lines of s2e and fastcoref."""
    return clusters.json_lines(documents(answers))


def conll(document: Document) -> Iterator[str]:
    """Yield the lines of a document in CoNLL-2012, each with its line feed: 12 columns parted by
    tabs, the mentions of its clusters in the last."""
    # Of each word the brackets that close at it, the inner ones first, then those that open there.
    closing, opening = defaultdict[int, list](list), defaultdict[int, list](list)
    for number, cluster in enumerate(document.clusters or []):
        for start, end in cluster:
            if end - start == 1:
                opening[start].append((0, f"({number})"))
            else:
                closing[end - 1].append((-start, f"{number})"))
                opening[start].append((-end, f"({number}"))
    match = re.fullmatch(r"(.*)_(\d+)", str(document.id), re.S)
    name, part = match.groups() if match else (str(document.id), "")
    yield f"#begin document ({name})" + (f"; part {int(part):03}\n" if part else ";\n")
    place = 0
    for words in document.sentence_words():
        for number, word in enumerate(words):
            speaker = document.speakers[place] if document.speakers else ""
            marks = [mark for side in (closing, opening) for _, mark in sorted(side[place])]
            row = [name, str(int(part or 0)), str(number), word, *"-----", speaker or "-", "*"]
            row = [re.sub(r"[\t\r\n]", " ", cell) for cell in row]
            yield "\t".join([*row, "|".join(marks) or "-"]) + "\n"
            place += 1
        if document.sentences:
            yield "\n"
    yield "#end document\n"


def by_words(document: Document) -> Clusters:
    """Cluster the gold mentions, (first word, the one behind the last), by a trivial rule: the same
    words together, pronouns with the last one of their group (he, him, his), else with the
    mention before."""
    parts: Clusters = []
    of: dict[Any, list] = {}
    before = None
    words = [document.text[start:end].lower() for start, end in document.words]
    for start, end in sorted(mention for each in document.clusters or [] for mention in each):
        same: Any = tuple(words[start:end])
        pronoun = GROUPS.get(same[0]) if len(same) == 1 else None
        key = same if pronoun is None else pronoun
        cluster = of.get(key, before if pronoun is not None else None)
        if cluster is None:
            parts.append(cluster := [])
        cluster.append((start, end))
        of[key] = before = cluster
    return parts


@dataclass
class CoreferenceScorer(Benchmark):
    """Coreference: metrics of all documents together; one without an answer has no mention."""

    title = "coreference"
    units = "documents"
    noun = "document"
    shards = True
    no_place = "a document has many mentions"
    shown = ("conll_f1", "muc_f1", "b_cubed_f1", "ceaf_e_f1", "lea_f1", "mention_f1")

    read = staticmethod(read)
    published = staticmethod(published)

    def item(self, example: Example) -> Item:
        """Make the `Item` of a document: ``right`` is its `Document`, with the gold clusters;
        DataError without clusters."""
        document = clusters.read(example)
        if document.clusters is None:
            what = "no clusters; the files of a test set cannot be scored"
            raise DataError(f"{example.where}: {what}")
        return Item(str(example.id), str(example.id), {}, len(document.words), right=document)

    def load(self, files: Sequence[str]) -> list[Example]:
        """Read the examples of all files of predictions, in any of the layouts."""
        return [example for file in files for example in self.read(file, self.data)]

    def parse(self, value: list[Example], name: str) -> AnswersById:
        """Convert examples to {id: example}; DataError if an id comes twice."""
        once((str(example.id) for example in value), name)
        return {str(example.id): example for example in value}

    def aggregate(self, items: Sequence[Item], answers: AnswersById, name: str) -> Result:
        """Metrics of `ldt.metrics.coreference`, 0 to 100, of all documents together, and a table of
        links by distance; DataError if a document has other words than the gold one."""
        scored, pairs = [], []
        for item in items:
            pairs.append((item.right.clusters, _response(item.right, answers.get(item.id))))
            scored.append(replace(item, scores=metrics.score(*pairs[-1])))
        figures = mean([item.scores for item in scored], metrics.figures)
        ids = compare([item.id for item in items], answers)
        tables = {"links by distance": metrics.by_distance(pairs)}
        return self.result(scored, figures, *ids, derive=metrics.figures, tables=tables)

    def constants(self, items: Sequence[Item]) -> dict[str, AnswersById]:
        """Trivial prediction: documents with the clusters of `by_words`, which knows the gold
        mentions."""
        return {
            "gold mentions by their words": {
                item.id: replace(item.right, clusters=by_words(item.right)) for item in items
            }
        }


def _response(gold: Document, answer: Example | Document | None) -> Clusters:
    if not isinstance(answer, Example):
        return answer.clusters or [] if answer else []
    document = clusters.read(answer, like=gold)
    if len(document.words) != len(gold.words):
        what = f"{len(document.words):,} words; the gold document has {len(gold.words):,}"
        raise DataError(f"{answer.where}: {what}")
    if document.clusters is None:
        raise DataError(f"{answer.where}: no clusters")
    return document.clusters
