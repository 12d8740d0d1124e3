"""Late chunks against chunks alone, one vector of a long text, and token vectors, on QMSum.

    python benchmarks/late_chunks.py FOLDER                     # where data/qmsum lies
    python benchmarks/late_chunks.py FOLDER --split all --cases chunks-256 --seeds 0

The vectors of a meeting are scored twice:

- documents: a summary finds its meeting, of which the most similar vector counts;
- inside: a question finds the chunks of its own meeting that overlap the turns marked as relevant.

Chunks are of 254 tokens, the same in each case. MiniLM, converted by `ldt convert`, reads a meeting
three times, one text at a time, and the cases are made of its states:

- chunks-256: each chunk read alone;
- late-512, tokens: means of a chunk's states, or all of them for MaxSim, where parts of 512 tokens
  are read that overlap by an eighth;
- late-4096, long-4096: means of a chunk's states, or of all, where parts of 4,096 tokens are read
  by MiniLM made long, with a window of 256.

Each is untrained, and trained ``--seeds`` times: a matrix of 384 by 384, as ``task.size`` has it,
behind the model, which stays as it is. It begins as the identity and learns by ldt's loss from
questions and their answers, of the train split, for 100 steps of 16 meetings (4 for tokens) with
all of their chunks (4 each for tokens, one vector each for long-4096). A seed draws two thirds of
the meetings of train (every ``--train-every``-th one), and the batches. Searched are meetings of
val, which shares none with train. Nothing is selected by them; the last step counts.

BM25 and chance are beside each. States are kept in ``--work``, figures in results/late_chunks.json,
as they come, and a second run goes on with both.
"""

import argparse
import gzip
import json
import random
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from longembed_qmsum import CHUNKS, meetings, model
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer

import ldt
from ldt.benchmarks.retrieval import Collection, bm25, search
from ldt.data.tokenization import tokenize_with_offsets
from ldt.io.files import write_whole
from ldt.metrics.ranking import measures, ndcg_by_chance, ranked
from ldt.metrics.result import Item, intervals, mean
from ldt.model.heads.embedding import contrastive, similarities
from ldt.tasks.units import UnitSettings, unit_length

RESULT = Path(__file__).parent / "results" / "late_chunks.json"
STATES = {  # the model whose states a case is made of
    **{"chunks-256": "tokens-512", "late-512": "tokens-512", "tokens": "tokens-512"},
    **{"late-4096": "tokens-4096", "long-4096": "tokens-4096"},
}
SHOWN = ("ndcg@10", "mrr@10", "recall@1")
DEPTH = 10_000  # more than a meeting has chunks
STEPS, RATE, MEETINGS = 100, 5e-4, {"tokens": 4}


class Reader:
    """Vectors of texts by a model, each read once, and kept in a file."""

    def __init__(self, folder, name, **options):
        self.files = folder / "-".join([name, *map(str, options.values())])
        self.files.mkdir(exist_ok=True)
        self.open = lambda: ldt.load(model(folder, name), **options)

    @cached_property
    def engine(self):
        return self.open()

    def __call__(self, id, field, text):
        """Characters [n, 2] and vectors [n, size] of a text."""
        file = self.files / f"{id}.npz"
        if not file.exists():
            (answer,) = self.engine.answer([{field: text}])
            half = answer["vectors"].astype(np.float16)
            np.savez(unfinished := file.with_suffix(".part.npz"), half, np.array(answer["spans"]))
            unfinished.replace(file)
        with np.load(file) as arrays:
            return arrays["arr_1"], arrays["arr_0"].astype(np.float32)


class Meetings:
    """Meetings of splits, their summaries and questions, and vectors of them.

    Args:
        folder: for models and vectors.
        data: where data/qmsum lies.
        splits: of the meetings.
        every: sampling stride; one of this many meetings is used.
    """

    def __init__(self, folder, data, splits, every):
        texts, summaries, home = meetings(data, splits)
        self.folder, self.texts = folder, dict([*texts.items()][::every])
        self.name = f"{splits[-1]}{len(splits)}"  # of the files of its queries
        tokenizer = AutoTokenizer.from_pretrained(model(folder, "tokens-512"))
        chunks = UnitSettings("chunk", CHUNKS["unit_tokens"])
        self.chunks = {
            id: chunks.of(text, tokenize_with_offsets(tokenizer, text)[1])[0]
            for id, text in self.texts.items()
        }
        self.queries, self.summaries, self.questions, self.answers = {}, {}, {}, {}
        for id, text in summaries.items():
            if home[id] in self.texts:
                self.queries[id], self.summaries[id] = text, (home[id], {0})
        for number, (id, question, answer, places) in enumerate(questions(data, splits)):
            if id in self.texts and (right := relevant(self.chunks[id], places)):
                self.queries[f"Q{number}"], self.questions[f"Q{number}"] = question, (id, right)
                self.queries[f"A{number}"], self.answers[f"A{number}"] = answer, (id, right)

    def documents(self, case):
        """The vectors of each meeting: a list of arrays [n, 384], one for each unit."""
        alone = Reader(self.folder, "short-512", **CHUNKS)
        reader = Reader(self.folder, STATES[case])
        return {id: self._units(case, alone, reader, id) for id in self.texts}

    def _units(self, case, alone, reader, id):
        text = self.texts[id]
        if case == "chunks-256":
            return [*alone(id, "text", text)[1][:, None]]
        places, states = reader(id, "text", text)
        inside = places[:, 0] < places[:, 1]  # not [CLS] and [SEP]
        starts = [] if case == "long-4096" else [a for a, _ in self.chunks[id][1:]]
        states = np.split(states[inside], np.searchsorted(places[inside, 0], starts))
        return states if case == "tokens" else [each.mean(0, keepdims=True) for each in states]

    def asked(self, case, ids):
        """The vectors of queries, by id."""
        reader = Reader(self.folder, STATES[case])
        read = {id: reader(f"{self.name}-{id}", "query", self.queries[id])[1] for id in ids}
        return read if case == "tokens" else {id: x.mean(0)[None] for id, x in read.items()}

    def beside(self):
        """The figures of BM25, and what is expected by chance."""
        asked = {id: self.queries[id] for id in self.summaries}
        whole = bm25(Collection(self.texts, asked, {}))
        rankings, chance = {}, []
        for id, chunks in self.chunks.items():
            texts = {f"{n:05}": self.texts[id][a:b] for n, (a, b) in enumerate(chunks)}
            asked = {q: self.queries[q] for q, (home, _) in self.questions.items() if home == id}
            if asked:
                rankings |= bm25(Collection(texts, asked, {}), DEPTH)
            sizes = (len(self.questions[query][1]) for query in asked)
            chance += [ndcg_by_chance([1.0] * size, 10, len(texts)) for size in sizes]
        inside = figures(scored(rankings, self.questions))
        return {
            "documents": figures(scored(whole, self.home())),
            "inside": inside | {"chance": 100 * sum(chance) / len(chance)},
        }

    def home(self):
        """The meeting of each summary, as what is right."""
        return {query: (id, [id]) for query, (id, _) in self.summaries.items()}

    def found(self, case, documents, matrix=None):
        """The figures of a case by the vectors of its documents, behind a matrix."""

        def made(vectors):
            return unit_length(vectors if matrix is None else vectors @ matrix)

        total, ids = case == "tokens", sorted(documents, reverse=True)
        falling = ((id, made(np.concatenate(documents[id]))) for id in ids)
        asked = {id: made(x) for id, x in self.asked(case, self.summaries).items()}
        result = {"documents": figures(scored(search(asked, falling, total=total), self.home()))}
        if case == "long-4096":
            return result
        rankings, asked = {}, self.asked(case, self.questions)
        for id, units in documents.items():
            parts = [(f"{number:05}", made(each)) for number, each in enumerate(units)]
            own = {q: made(asked[q]) for q, (home, _) in self.questions.items() if home == id}
            if own:
                rankings |= search(own, parts[::-1], depth=DEPTH, total=total)
        return result | {"inside": figures(scored(rankings, self.questions))}


def questions(folder, splits):
    """Questions with marked turns: meeting, question, its answer, characters of the turns."""
    for split in splits:
        with gzip.open(folder / "data/qmsum" / f"{split}.jsonl.gz", "rt", encoding="utf-8") as file:
            for meeting in map(json.loads, file):
                turns = meeting["meeting_transcripts"]
                lengths = [len(f"{turn['speaker']}: {turn['content']}\n") for turn in turns]
                starts = np.cumsum([0, *lengths])
                for asked in meeting["specific_query_list"]:
                    spans = [(int(a), int(b)) for a, b in asked["relevant_text_span"]]
                    places = [(starts[a], starts[b + 1]) for a, b in spans if b < len(turns)]
                    yield meeting["id"], asked["query"], asked["answer"], places


def relevant(chunks, places):
    """Numbers of the chunks that overlap one of the places."""
    return {n for n, (a, b) in enumerate(chunks) if any(a < y and x < b for x, y in places)}


def scored(rankings, right):
    """Scores of rankings by what is right for each query; the query's meeting is its unit."""
    items = []
    for query, (meeting, known) in right.items():
        names = {id if isinstance(id, str) else f"{id:05}" for id in known}
        hits = [float(id in names) for id in ranked(rankings[query])]
        items.append(Item(query, meeting, measures(hits, [1.0] * len(names))))
    return items


def figures(items):
    """Means of the scores of queries, and 95 % intervals of a bootstrap over meetings."""
    values, between = mean([item.scores for item in items]), intervals(items)
    rows = {name: [values[name], *between.get(name, ())] for name in SHOWN}
    return rows | {"queries": len(items)}


def train(case, seed, learnt, documents):
    """The matrix that a seed learns from meetings, and the loss of the last step."""
    draw, each = random.Random(seed), case == "tokens"
    lessons = learnt.summaries if case == "long-4096" else learnt.questions | learnt.answers
    asked = learnt.asked(case, lessons)
    ids = draw.sample(sorted({id for id, _ in lessons.values()}), 2 * len(documents) // 3)
    by_meeting = {id: [q for q, (home, _) in lessons.items() if home == id] for id in ids}
    matrix = torch.eye(documents[ids[0]][0].shape[1], requires_grad=True)
    optimizer = torch.optim.Adam([matrix], RATE)
    for _ in range(STEPS):
        batch = draw.sample(ids, min(len(ids), MEETINGS.get(case, 16)))
        queries = [draw.choice(by_meeting[id]) for id in batch]
        units, right = [], []
        for row, (id, query) in enumerate(zip(batch, queries, strict=True)):
            numbers, known = [*range(len(documents[id]))], lessons[query][1]
            if each:
                others = [*{*numbers} - known]
                numbers = draw.sample([*known], 1) + draw.sample(others, min(3, len(others)))
            right += [(row, len(units) + n) for n, unit in enumerate(numbers) if unit in known]
            units += [documents[id][unit] for unit in numbers]
        sides = [[asked[query] for query in queries], units]
        vectors = [pad_sequence([*map(torch.tensor, side)], batch_first=True) for side in sides]
        vectors = [F.normalize(side @ matrix, dim=-1) for side in vectors]
        counts = [torch.arange(len(side)) for side in vectors]
        shape = len(queries), len(units)
        pairs = torch.zeros(shape, dtype=torch.bool)
        pairs[tuple(zip(*right, strict=True))] = True
        alike = similarities(*vectors, *counts, shape, each)
        loss = contrastive(SimpleNamespace(similarities=alike, right=pairs), 1 if each else 0.05)
        (loss / pairs.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return matrix.detach().numpy(), loss.item() / len(right)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where data/qmsum lies")
    parser.add_argument("--split", choices=("all", "val"), default="val", help="to search")
    parser.add_argument("--every", type=int, default=1, help="meetings that one is searched of")
    parser.add_argument("--train-every", type=int, default=1, help="and one is learnt of")
    parser.add_argument("--cases", nargs="*", choices=STATES, default=[*STATES])
    parser.add_argument("--seeds", type=int, default=5, help="trainings; 0: none")
    parser.add_argument("--work", type=Path, default=Path("late_chunks"))
    parser.add_argument("--json", type=Path, default=RESULT)
    args = parser.parse_args()
    folder = args.work.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    results = json.loads(args.json.read_text()) if args.json.exists() else {}
    splits = ["train", "val"] if args.split == "all" else ["val"]
    searched = Meetings(folder, args.folder, splits, args.every)
    part = results.setdefault(f"{args.split}, {len(searched.texts)} meetings", {})

    def keep(name, value):
        print(name, json.dumps(value), flush=True)
        part[name] = value
        write_whole(args.json, json.dumps(results, indent=1) + "\n")

    keep("BM25", searched.beside())
    learnt = Meetings(folder, args.folder, ["train"], args.train_every) if args.seeds else None
    for case in args.cases:
        documents = searched.documents(case)
        if case not in part:
            keep(case, searched.found(case, documents))
        lessons = learnt.documents(case) if learnt else {}
        for seed in range(args.seeds):
            name = f"{case} of {len(lessons)} meetings, seed {seed}"
            if name not in part:
                matrix, loss = train(case, seed, learnt, lessons)
                keep(name, {"loss": loss} | searched.found(case, documents, matrix))


if __name__ == "__main__":
    main()
