"""Coreference: what the head costs by length; heads on MiniLM trained on LitBank.

    python benchmarks/coreference.py growth
    python benchmarks/coreference.py learn LITBANK --folder FOLDER --gum GUM --gap GAP.tsv

``growth`` runs a head alone, on random states of width 768, without and with its backward pass:
processor seconds of one thread, and what the process's memory grows by.

``learn`` keeps the states of MiniLM, converted by `ldt convert` to 4,096 tokens and a window of
256, and trains a head on those of LITBANK/train (documents of CoNLL-2012), the encoder as it is:
AdamW, a linear rate, a document a step. Mentions are predicted. Scored are LITBANK/dev, read whole
and in parts of 512 words, GUM's documents and GAP's pronouns, by heads that saw LitBank alone;
beside them the rule of `ldt.benchmarks.coreference.by_words`, which is given the gold mentions.
Figures are kept in results/coreference.json as they come.
"""

import argparse
import json
import multiprocessing
import random
import resource
import time
from pathlib import Path

import numpy as np
import torch
from commands import convert

from ldt.benchmarks import gap
from ldt.benchmarks.coreference import by_words, read
from ldt.data.options import DataSection
from ldt.io.files import write_whole
from ldt.metrics import coreference as metrics
from ldt.metrics.result import mean
from ldt.model import LdtConfig, LdtForCoreference, load, load_tokenizer
from ldt.tasks.coreference import Coreference, spans_of

RESULT = Path(__file__).parent / "results" / "coreference.json"
LENGTHS = [2048 << n for n in range(6)]
WORDS = 0.78  # a token, in English
HEADS = {"s2e": 1024, "lingmess": 2048}  # width of the layers
SHOWN = ("conll_f1", "muc_f1", "b_cubed_f1", "ceaf_e_f1", "mention_f1", "no_singletons_conll_f1")


def note(part, row):
    """Add a row to the results."""
    there = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    there.setdefault(part, []).append(row)
    write_whole(RESULT, json.dumps(there, indent=1).encode() + b"\n")
    print(part, row, flush=True)


# -- growth


def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cost(scorer, tokens, trained):
    """A row of the cost of a head on a document of so many tokens."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    small = {"num_hidden_layers": 1, "vocab_size": 9, "attention_window": 8, "hidden_size": 768}
    facts = {"scorer": scorer, "ffnn_size": HEADS[scorer], "singletons": True}
    model = LdtForCoreference(LdtConfig(**small, pad_token_id=1, coref_head=facts))
    count = int(WORDS * tokens)
    number, word = torch.arange(count), torch.randint(2000, (count,))
    words = torch.stack([number, number, number, number // 20, number * 0 - 1, word], 1)
    starts = number[::8][:-1]
    mentions = torch.stack([starts, starts + 1, starts % (count // 50)], 1) if trained else None
    states = torch.randn(count, 2 * 768, requires_grad=trained)
    if trained:  # gradients of the weights are there whatever the length
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
    before, begin = memory(), time.process_time()
    with torch.set_grad_enabled(trained):
        _, loss = model.links(states, words, mentions)
        if trained:
            loss.backward()
    seconds = round(time.process_time() - begin, 2)
    row = {"scorer": scorer, "trained": trained, "tokens": tokens, "seconds": seconds}
    return row | {"MiB": round(memory() - before)}


def growth(args):
    """Rows of all lengths, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    for scorer in HEADS:
        for trained in (False, True):
            for tokens in args.lengths:
                with context.Pool(1) as pool:
                    note("growth", pool.apply(cost, (scorer, tokens, trained)))


# -- learning


class Reader:
    """Documents as the states of their words, kept in a folder."""

    def __init__(self, folder, model):
        self.folder = folder / "states"
        self.folder.mkdir(exist_ok=True)
        self.model, self.task = model, Coreference()
        self.tokenizer = load_tokenizer(folder / "minilm-4096", model.config)

    def __call__(self, name, example):
        """The feature of a document, with ``states`` [words, 2d] and its ``document``."""
        data = DataSection(stride=256)
        limit, config = 4096, self.model.config
        (feature,) = self.task.encode(
            example, self.tokenizer, data=data, max_length=limit, config=config
        )
        file = self.folder / f"{name}-{example.id}.npy"
        if not file.exists():
            ids, words = torch.tensor([feature["input_ids"]]), torch.from_numpy(feature["words"])
            with torch.inference_mode():
                states = self.model.word_states(words=words[None].long(), input_ids=ids)[0]
            np.save(file, states.numpy())
        states = torch.from_numpy(np.load(file))
        return feature | {"states": states, "document": self.task.document(example, data)}


def parted(example, size=512):
    """The document in parts of so many words, without their clusters."""
    words = [word for sentence in example.fields["sentences"] for word in sentence]
    for begin in range(0, len(words), size):
        part = {"tokens": words[begin : begin + size]}
        yield type(example)(part, f"{example.id}-{begin}", example.where), begin


def train(model, features, epochs, rate):
    """Train the head on the states of documents."""
    head = [x for name, x in model.named_parameters() if not name.startswith("longformer.")]
    optimizer = torch.optim.AdamW(head, rate)
    steps = epochs * len(features)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(n / 40, 1 - n / steps))
    model.train()
    for _ in range(epochs):
        for feature in random.sample(features, len(features)):
            words, labels = (torch.from_numpy(feature[key]).long() for key in ("words", "labels"))
            table, loss = model.links(feature["states"], words, labels)
            (loss / len(table)).backward()
            torch.nn.utils.clip_grad_norm_(head, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        print(f"loss {loss.item() / len(table):.3f}", flush=True)
    model.eval()


def answer(model, feature):
    """The answer for a document."""
    with torch.inference_mode():
        table, _ = model.links(feature["states"], torch.from_numpy(feature["words"]).long())
    outputs = [{"logits": table.numpy()}]
    return Coreference().decode(outputs, model.config, None, [feature])


def of_clusters(pairs):
    figures = metrics.measure(pairs)
    return {name: round(figures[name], 2) for name in SHOWN}


def learn(args):
    """Rows of the rule, and of a head for each seed on each set."""
    torch.set_num_threads(1)
    convert(args.folder, "minilm-4096", "--window", "256")
    sets = {name: sorted((args.litbank / name).glob("*.conll")) for name in ("train", "dev")}
    sets["gum"] = sorted(args.gum.rglob("*.conll")) if args.gum else []
    examples = {}
    for name, files in sets.items():
        every = [each for file in files for each in read(str(file), None)]
        examples[name] = every[: args.documents]
    rows = [*gap.read(str(args.gap), None)][: args.documents] if args.gap else []
    facts = {"ffnn_size": args.size, "singletons": True}
    reader = Reader(args.folder, load(args.folder / "minilm-4096", LdtForCoreference))
    features = {name: [reader(name, x) for x in every] for name, every in examples.items()}
    golds = {n: [x["document"].characters() for x in each] for n, each in features.items()}
    for name in ("dev", "gum"):
        if examples[name]:
            documents = [feature["document"] for feature in features[name]]
            pairs = [(each.clusters, by_words(each)) for each in documents]
            note("learn", {"set": name, "by": "rule, gold mentions"} | of_clusters(pairs))
    pieces = [[(reader("dev", x), n) for x, n in parted(each)] for each in examples["dev"]]
    paragraphs = [reader("gap", row) for row in rows]
    for seed in args.seeds:
        random.seed(seed)
        torch.manual_seed(seed)
        model = load(args.folder / "minilm-4096", LdtForCoreference, coref_head=facts)
        train(model, features["train"], args.epochs, args.rate)
        row = {"epochs": args.epochs, "seed": seed}
        for name in ("dev", "gum"):
            if examples[name]:
                answers = [spans_of(answer(model, x)["clusters"]) for x in features[name]]
                figures = of_clusters(zip(golds[name], answers, strict=True))
                note("learn", {"set": name, "by": "head"} | row | figures)
        answers = [joined(model, parts) for parts in pieces]
        golds_of = [feature["document"].clusters for feature in features["dev"]]
        figures = of_clusters(zip(golds_of, answers, strict=True))
        note("learn", {"set": "dev", "by": "head, parts of 512 words"} | row | figures)
        if rows:
            scores = [
                gap.score(one.fields, answer(model, feature)["clusters"])
                for one, feature in zip(rows, paragraphs, strict=True)
            ]
            figures = {name: round(x, 2) for name, x in mean(scores, gap.figures).items()}
            note("learn", {"set": "gap", "by": "head"} | row | figures)


def joined(model, parts):
    """The clusters of the parts of a document, none of which goes through two; in words."""
    clusters = []
    for feature, begin in parts:
        starts = {int(start): begin + n for n, (start, _) in enumerate(feature["places"])}
        ends = {int(end): begin + n + 1 for n, (_, end) in enumerate(feature["places"])}
        for cluster in spans_of(answer(model, feature)["clusters"]):
            clusters.append([(starts[start], ends[end]) for start, end in cluster])
    return clusters


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    costs = commands.add_parser("growth")
    costs.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    costs.set_defaults(run=growth)
    learning = commands.add_parser("learn")
    learning.add_argument("litbank", type=Path)
    learning.add_argument("--folder", type=Path, default=Path())
    learning.add_argument("--gum", type=Path)
    learning.add_argument("--gap", type=Path)
    learning.add_argument("--documents", type=int, help="of each set at most")
    learning.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    learning.add_argument("--epochs", type=int, default=10)
    learning.add_argument("--rate", type=float, default=5e-4)
    learning.add_argument("--size", type=int, default=512)
    learning.set_defaults(run=learn)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
