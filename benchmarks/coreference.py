"""Coreference: what the head costs by length; heads on MiniLM trained on LitBank.

    python benchmarks/coreference.py growth
    python benchmarks/coreference.py learn LITBANK --folder FOLDER --gum GUM --gap GAP.tsv

``growth`` runs a head alone, on random states of width 768, without and with its backward pass:
processor seconds of one thread, and what the process's memory grows by.

``learn`` trains MiniLM, converted by `ldt convert` to 4,096 tokens and a window of 256, on
LITBANK/train (documents of CoNLL-2012) as the recipe has it, but for `LEARN`. Mentions are
predicted. Scored are LITBANK/dev, read whole and in parts of 512 words, GUM's documents and GAP's
pronouns, by models that saw LitBank alone; beside them the rule of
`ldt.benchmarks.coreference.by_words`, which is given the gold mentions. Figures are kept in
results/coreference.json as they come.
"""

import argparse
import json
import multiprocessing
import resource
import time
from pathlib import Path

import torch
from commands import convert, train

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
SPLITS = {"train": "train", "eval": "dev"}
LEARN = {
    **{"model.path": "minilm-4096", "data.format": "coreference", "task.ffnn_size": 512},
    **{"training.learning_rate": 3e-4, "training.warmup_steps": 40},
    **{"training.gradient_accumulation_steps": 1, "training.save_strategy": "no"},
    **{"training.eval_strategy": "no", "training.load_best_model_at_end": "false"},
}
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
    """The features of documents, with their ``document``; of each, the answer of a model."""

    def __init__(self, folder):
        self.task, self.model = Coreference(), load(folder, LdtForCoreference)
        self.tokenizer = load_tokenizer(folder, self.model.config)

    def feature(self, example):
        data, config = DataSection(stride=256), self.model.config
        (feature,) = self.task.encode(
            example, self.tokenizer, data=data, max_length=4096, config=config
        )
        return feature | {"document": self.task.document(example, data)}

    def answer(self, example):
        feature = self.feature(example)
        ids, words = torch.tensor([feature["input_ids"]]), torch.from_numpy(feature["words"])
        with torch.inference_mode():
            states = self.model.word_states(words=words[None].long(), input_ids=ids)[0]
            table, _ = self.model.links(states, words.long())
        outputs = [{"logits": table.numpy()}]
        answer = self.task.decode(outputs, self.model.config, None, [feature])
        return answer["clusters"], feature


def parted(example, size=512):
    """The document in parts of so many words, without their clusters."""
    words = [word for sentence in example.fields["sentences"] for word in sentence]
    for begin in range(0, len(words), size):
        part = {"tokens": words[begin : begin + size]}
        yield type(example)(part, f"{example.id}-{begin}", example.where), begin


def joined(reader, example):
    """The clusters of the parts of a document, none of which goes through two; in words."""
    clusters = []
    for part, begin in parted(example):
        answer, feature = reader.answer(part)
        starts = {int(start): begin + n for n, (start, _) in enumerate(feature["places"])}
        ends = {int(end): begin + n + 1 for n, (_, end) in enumerate(feature["places"])}
        for cluster in spans_of(answer):
            clusters.append([(starts[start], ends[end]) for start, end in cluster])
    return clusters


def of_clusters(pairs):
    figures = metrics.measure(pairs)
    return {name: round(figures[name], 2) for name in SHOWN}


def examples(files):
    return [each for file in files for each in read(str(file), None)]


def learn(args):
    """Rows of the rule, and of a model for each seed on each set."""
    folder = args.folder.absolute()
    convert(folder, "minilm-4096", "--window", "256")
    sets = {
        "dev": examples(sorted((args.litbank / "dev").glob("*.conll"))),
        "gum": examples(sorted(args.gum.rglob("*.conll"))),
    }
    rows = [*gap.read(str(args.gap), None)]
    reader = Reader(folder / "minilm-4096")
    golds = {n: [reader.feature(x)["document"] for x in each] for n, each in sets.items()}
    for name, documents in golds.items():
        pairs = [(each.clusters, by_words(each)) for each in documents]
        note("learn", {"set": name, "by": "rule, gold mentions"} | of_clusters(pairs))
    data = {f"data.{a}": args.litbank.absolute() / b / "*.conll" for a, b in SPLITS.items()}
    for seed in args.seeds:
        row = {"seed": seed, "epochs": args.epochs}
        changes = {"training.seed": seed, "training.num_train_epochs": args.epochs}
        train(folder, f"coreference-{seed}", "coreference", data | LEARN | changes)
        reader = Reader(folder / f"coreference-{seed}")
        for name, every in sets.items():
            answers = [spans_of(reader.answer(x)[0]) for x in every]
            figures = of_clusters(zip([x.characters() for x in golds[name]], answers, strict=True))
            note("learn", {"set": name, "by": "model"} | row | figures)
        answers = [joined(reader, x) for x in sets["dev"]]
        figures = of_clusters(zip([x.clusters for x in golds["dev"]], answers, strict=True))
        note("learn", {"set": "dev", "by": "model, parts of 512 words"} | row | figures)
        scores = [gap.score(one.fields, reader.answer(one)[0]) for one in rows]
        figures = {name: round(x, 2) for name, x in mean(scores, gap.figures).items()}
        note("learn", {"set": "gap", "by": "model"} | row | figures)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    costs = commands.add_parser("growth")
    costs.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    costs.set_defaults(run=growth)
    learning = commands.add_parser("learn")
    learning.add_argument("litbank", type=Path)
    learning.add_argument("--folder", type=Path, default=Path())
    learning.add_argument("--gum", type=Path, required=True)
    learning.add_argument("--gap", type=Path, required=True)
    learning.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    learning.add_argument("--epochs", type=int, default=8)
    learning.set_defaults(run=learn)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
