"""Data of official.py: samples of the published files, passages to rank, TF-IDF."""

import gzip
import json
import math
import re
from collections import Counter
from types import SimpleNamespace
from typing import NamedTuple

from ldt.benchmarks import contractnli, qasper
from ldt.io.files import write_whole

UTF_8 = SimpleNamespace(encoding=None)  # section data of a recipe, as readers look at it


class Words:
    """TF-IDF of texts: smoothed idf, vectors of length 1, as scikit-learn's TfidfVectorizer.

    Args:
        texts: give the document frequencies; their words alone count.
    """

    def __init__(self, texts):
        texts = [set(self.split(text)) for text in texts]
        counts = Counter(word for text in texts for word in text)
        self.idf = {w: 1 + math.log((1 + len(texts)) / (1 + n)) for w, n in counts.items()}

    @staticmethod
    def split(text):
        return re.findall(r"\b\w\w+\b", text.lower())

    def vector(self, text):
        counts = Counter(word for word in self.split(text) if word in self.idf)
        weights = {word: count * self.idf[word] for word, count in counts.items()}
        size = math.sqrt(sum(weight**2 for weight in weights.values())) or 1.0
        return {word: weight / size for word, weight in weights.items()}

    def cosines(self, question, texts):
        """The cosine of a question and each of some texts."""
        asked = self.vector(question)
        vectors = map(self.vector, texts)
        return [sum(asked.get(word, 0.0) * x for word, x in v.items()) for v in vectors]


def sample(file, target, count):
    """Write a file of a set with its ``count`` shortest documents alone, or all, and return it."""
    text = gzip.decompress(file.read_bytes()).decode()
    if ".jsonl" in file.name:
        lines = sorted(text.splitlines(), key=len)[:count]
        write_whole(target, "".join(f"{line}\n" for line in lines))
        return target
    value = json.loads(text)
    key = next((key for key in ("data", "documents") if key in value), None)
    listed = list(value.items()) if key is None else value[key]
    some = sorted(listed, key=lambda entry: len(json.dumps(entry)))[:count]
    value = dict(some) if key is None else value | {key: some}
    write_whole(target, json.dumps(value))
    return target


class ParsedRequest(NamedTuple):
    """What passages of a document are ranked for; ``right`` are numbers of the gold ones."""

    id: str
    question: str
    passages: list[str]
    right: list[int]


def claims(file):
    """ContractNLI's examples, one a contract and hypothesis."""
    return list(contractnli.read(str(file), UTF_8))


def hypotheses(file):
    """Those that gold has evidence for."""
    return [
        ParsedRequest(each.id, each.fields["hypothesis"], parts(each), each.fields["evidence"])
        for each in claims(file)
        if each.fields["evidence"]
    ]


def questions(file):
    """QASPER's questions with a paragraph as evidence, of any annotator."""
    found = []
    for each in qasper.read(str(file), UTF_8):
        right = sorted({n for answer in each.fields["answers"] for n in answer["paragraphs"]})
        if right:
            found.append(
                ParsedRequest(each.id, each.fields["question"], each.fields["paragraphs"], right)
            )
    return found


def parts(example):
    """The texts of the spans of a contract."""
    return [example.fields["text"][start:end] for start, end in example.fields["spans"]]


RANKED = {"contractnli": hypotheses, "qasper": questions}
