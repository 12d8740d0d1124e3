"""Documents with clusters of mentions that refer to the same, and the JSON layouts of them.

The layouts are told apart by their keys. Words stand in ``sentences`` (lists of words, or objects
with ``tokens`` and ``speaker``) or in ``tokens``; else there is a ``text``. Clusters stand in

- ``clusters``, pairs: in given words the first and the last one, counted over the whole document
  (e2e-coref, s2e, LingMess, fastcoref); in a text the first character and the one behind the last
  (fastcoref). Objects {start, end} are always characters, as in answers of ldt;
- ``mention_clusters``, triples: sentence, first word, the one behind the last (PreCo);
- ``coref_chains``, triples: sentence, first word, last word (coref-data).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Literal

from ldt.data.sentences import Span, Words
from ldt.errors import DataError, quote
from ldt.io import records
from ldt.io.records import Example

Clusters = list[list[Span]]

# Fields of clusters, with what is added to the end of a mention so that it is exclusive.
_KEYS = {"clusters": 1, "mention_clusters": 0, "coref_chains": 1}
# Words of one reference, a group each, as LingMess has them (arXiv:2205.12644).
PRONOUNS = (
    "i me my mine myself",
    "you your yours yourself yourselves",
    "he him his himself",
    "she her hers herself",
    "it its itself",
    "we us our ours ourselves",
    "they them their themselves",
    "that this",
)
GROUPS = {word: group for group, words in enumerate(PRONOUNS) for word in words.split()}


@dataclass
class Document:
    """Text with its words, and clusters of mentions.

    Args:
        id: id of the document.
        text: the text; given words are joined by spaces, and sentences by line ends.
        words: first character of each word, and the one behind its last.
        sentences: first word of each sentence, and the one behind its last; empty if unknown.
        speakers: speaker of each word, "" for none; None if unknown.
        clusters: mentions as (first word, the one behind the last); None if unknown.
        pretokenized: True if the user gave the words, False if they were found in a text.
    """

    id: str | int
    text: str
    words: list[Span]
    sentences: list[Span]
    speakers: list[str] | None = None
    clusters: Clusters | None = None
    pretokenized: bool = True

    @classmethod
    def of_words(cls, id: str | int, sentences: Sequence[Sequence[str]], **more: Any) -> "Document":
        """Make a document from the words of each sentence; ``more`` are further fields of
        `Document`."""
        ends = [*accumulate(map(len, sentences), initial=0)]
        letters = [len(word) + 1 for sentence in sentences for word in sentence]
        starts = [*accumulate(letters, initial=0)]
        words = [(start, end - 1) for start, end in pairwise(starts)]
        text = "\n".join(" ".join(sentence) for sentence in sentences if sentence)
        return cls(id, text, words, [*pairwise(ends)], **more)

    def characters(self) -> Clusters:
        """Clusters as (start, end) in characters, end exclusive; [] if there are none or none
        known."""
        return [
            [(self.words[start][0], self.words[end - 1][1]) for start, end in cluster]
            for cluster in self.clusters or []
        ]

    def in_words(self, clusters: Clusters, where: str) -> Clusters:
        """Convert clusters from (start, end) in characters to (first word, the one behind the
        last).

        The words are those with which a mention shares a character; ``where`` begins messages.

        Raises:
            DataError: a mention has no word, or is outside of the text.
        """
        starts, ends = ([place[side] for place in self.words] for side in (0, 1))
        turned: Clusters = []
        for cluster in clusters:
            turned.append([])
            for start, end in cluster:
                first, last = bisect_right(ends, start), bisect_left(starts, end)
                if not 0 <= start < end <= len(self.text) or first >= last:
                    what = f"no word from character {start:,} to {end:,} of {len(self.text):,}"
                    raise DataError(f"{where}: a mention has {what}")
                turned[-1].append((first, last))
        return turned

    def sentence_words(self) -> list[list[str]]:
        """Words of each sentence; all words as one sentence if sentences are unknown."""
        words = [self.text[start:end] for start, end in self.words]
        return [words[start:end] for start, end in self.sentences or [(0, len(words))]]


def read(
    example: Example, path: Callable[[str], str] = str, like: Document | None = None
) -> Document:
    """Read the document of a JSON line; if a mention is given twice the first one counts.

    Args:
        example: record with its words or text, and clusters, in any of the layouts.
        path: function from the name of a field, such as ``clusters``, to its name in the file.
        like: document from which the words are taken if the line has none.

    Returns:
        The document; its ``clusters`` are None if the line has none.

    Raises:
        DataError: there are no words, or something else than the layouts have.
    """
    names = ("sentences", "tokens", "text")
    name = next((name for name in names if records.has(example, path(name))), "text")
    if like is not None and not records.has(example, path(name)):
        document = replace(like, id=example.id, clusters=None)
    elif name == "text":
        text = records.text(example, path(name), blank=True)
        words = [(start, end) for start, end in Words.raw(text).places.tolist()]
        document = Document(example.id, text, words, [], pretokenized=False)
    else:
        value = records.field(example, path(name))
        parts, speakers = _words(value if name == "sentences" else [value], example, path(name))
        document = Document.of_words(example.id, parts, speakers=speakers)
        if name == "tokens":
            document.sentences = []
    if records.has(example, path("speakers")):
        value = records.field(example, path("speakers"))
        document.speakers = _speakers(value, document, f"{example.where}: {path('speakers')!r}")
    for key in _KEYS:
        if records.has(example, path(key)):
            where = f"{example.where}: field {path(key)!r}"
            document.clusters = _clusters(records.field(example, path(key)), key, document, where)
            break
    return document


def _words(value: Any, example: Example, path: str) -> tuple[list[list[str]], list[str] | None]:
    """Words of each sentence, and the speaker of each word if the sentences say it."""
    sentences: list[list[str]] = []
    speakers: list[str] = []
    for item in value if isinstance(value, list) else [value]:
        words = item.get("tokens") if isinstance(item, dict) else item
        if isinstance(words, list):
            words = [word.get("text") if isinstance(word, dict) else word for word in words]
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            what = f"{quote(item)}, expected a list of words"
            raise DataError(f"{example.where}: field {path!r}: {what}")
        sentences.append(words)
        speaker = item.get("speaker") if isinstance(item, dict) else None
        speakers += [str(speaker or "")] * len(words)
    return sentences, speakers if any(speakers) else None


def _speakers(value: Any, document: Document, where: str) -> list[str] | None:
    """Speaker of each word, from a list with an item for each word or sentence, or a list
    of lists."""
    if value is None:
        return None
    flat: list[Any] = []
    for item in value if isinstance(value, list) else [value]:
        flat += item if isinstance(item, list) else [item]
    if len(flat) == len(document.sentences) != len(document.words):
        sizes = [end - start for start, end in document.sentences]
        flat = [name for name, size in zip(flat, sizes, strict=True) for _ in range(size)]
    if len(flat) != len(document.words):
        what = f"{len(flat):,} speakers of {len(document.words):,} words"
        raise DataError(f"{where}: {what}; each word has one, null for none")
    return [str(name or "") for name in flat]


def _clusters(value: Any, key: str, document: Document, where: str) -> Clusters:
    if not isinstance(value, list) or not all(isinstance(cluster, list) for cluster in value):
        raise DataError(f"{where}: {quote(value)}, expected a list of lists of mentions")
    clusters: Clusters = []
    seen: set[Span] = set()
    for cluster in value:
        mentions = dict.fromkeys(_mention(each, key, document, where) for each in cluster)
        clusters.append([mention for mention in mentions if mention not in seen])
        seen.update(mentions)
    return [cluster for cluster in clusters if cluster]


def _mention(value: Any, key: str, document: Document, where: str) -> Span:
    match value:
        case {"start": int(start), "end": int(end)}:
            return document.in_words([[(start, end)]], where)[0][0]
        case [int(start), int(end)] if key == "clusters" and not document.pretokenized:
            return document.in_words([[(start, end)]], where)[0][0]
        case [int(start), int(end)] if key == "clusters":
            begin, size = 0, len(document.words)
        case [int(sentence), int(start), int(end)] if key != "clusters":
            if not 0 <= sentence < len(document.sentences):
                what = f"of sentence {sentence}; the document has {len(document.sentences):,}"
                raise DataError(f"{where}: a mention {what}, counted from 0")
            begin, behind = document.sentences[sentence]
            size = behind - begin
        case _:
            kind = "[start, end]" if key == "clusters" else "[sentence, start, end]"
            raise DataError(f"{where}: {quote(value)}, expected {kind} of a mention")
    first, last = start, end + _KEYS[key]
    if not 0 <= first < last <= size:
        raise DataError(
            f"{where}: a mention from word {start} to {end}; there are {size:,}, from 0"
        )
    return begin + first, begin + last


def json_lines(
    documents: Iterable[Document], layout: Literal["s2e", "preco", "coref-data"] = "s2e"
) -> Iterator[dict[str, Any]]:
    """Yield documents as JSON objects in a published layout.

    Args:
        documents: documents of given words; for s2e of raw text as well.
        layout: ``s2e``: of given words ``sentences`` and places in words, end inclusive; of a raw
            text ``text`` and characters, end exclusive, as fastcoref has them. ``preco`` and
            ``coref-data`` count words in each sentence.

    Raises:
        DataError: a mention goes on over the end of a sentence, which the layout cannot say.
    """
    for document in documents:
        names, words = document.speakers, document.sentence_words()
        mentions = document.clusters or []
        sentences = document.sentences or [(0, len(document.words))]
        speakers = [names[start:end] for start, end in sentences] if names else None
        if layout == "s2e" and not document.pretokenized:
            spans = [[[*span] for span in cluster] for cluster in document.characters()]
            yield {"doc_key": document.id, "text": document.text, "clusters": spans}
        elif layout == "s2e":
            more = {"speakers": speakers} if speakers else {}
            pairs = [[[start, end - 1] for start, end in cluster] for cluster in mentions]
            yield {"doc_key": document.id, "sentences": words} | more | {"clusters": pairs}
        else:
            triples = [[_placed(span, sentences, document) for span in each] for each in mentions]
            if layout == "preco":
                yield {"id": document.id, "sentences": words, "mention_clusters": triples}
                continue
            objects = [
                {
                    "id": number,
                    "tokens": [{"id": place, "text": word} for place, word in enumerate(sentence)],
                    "speaker": (speakers[number] or [""])[0] or None if speakers else None,
                }
                for number, sentence in enumerate(words)
            ]
            chains = [[[number, a, b - 1] for number, a, b in cluster] for cluster in triples]
            yield {"id": document.id, "sentences": objects, "coref_chains": chains}


def _placed(span: Span, sentences: Sequence[Span], document: Document) -> list[int]:
    """Sentence of a mention, its first word there and the one behind its last."""
    number = bisect_right([start for start, _ in sentences], span[0]) - 1
    start, end = sentences[number]
    if span[1] > end:
        raise DataError(
            f"{document.id}: the mention from word {span[0]:,} to {span[1] - 1:,} stands in two "
            "sentences; the layout of s2e can say that"
        )
    return [number, span[0] - start, span[1] - start]
