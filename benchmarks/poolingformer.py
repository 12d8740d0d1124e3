"""Poolingformer's ablations: what a second level finds, where, and what it costs.

    python benchmarks/poolingformer.py FOLDER                        # about two hours on one core
    python benchmarks/poolingformer.py FOLDER --only two-levels cost # those anew; the others stay

A document is contract prose in which clauses like "The agent for Vienna is Amber ." stand. Some
words behind it each clause comes again with its name masked, and the model, whose tokens are words,
tells which of the names it was. No token is global, so what is further away than a window reaches
must be handed on from layer to layer. As a long encoder is made of a short one, all rows begin with
a model of small windows that has learned what these reach, converted as ldt convert does it, and
then train on all distances; depth, width, data and steps are equal, windows a quarter of the
paper's. The rows that begin with ``paper`` have the paper's windows, in documents and at distances
four times as long. Each run is kept in FOLDER and not trained again.

The row ``cost`` is measured at the paper's windows, with the base width and random weights: the
models take turns, with huge pages for all, and memory is that of a fresh process over its loaded
model, the median of three. Writes results/poolingformer.json and a picture beside it (needs
matplotlib).
"""

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # read by torch at its first allocation

sys.path.append(str(Path(__file__).parent))

import encoders
import torch
from measure import medians
from poolingformer_clauses import MASK, NAMES, PAD, PAIRS, Contracts
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file
from setting import PASSES, Setting

from ldt.inference.measure import machine
from ldt.io.files import write_whole
from ldt.model import LdtConfig, LdtForTokenClassification
from ldt.training.masked_lm import begin_with_sines

RESULT = Path(__file__).parent / "results" / "poolingformer.json"

SMALL, LARGE = 32, 128  # windows, tokens on both sides together
LENGTH, BATCH = 256, 4
SHAPE = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 256}
LAYERS = 4
RATE, WARM_UP, STEPS = 2e-3, 50, 600
TEST = 256  # documents

EDGES = (0, 12, 16, 24, 32, 48, 64, 96, 128)  # of the distances told apart; more than, up to
# In reach of SMALL, of LARGE, of no window of one layer. Layers of SMALL hand on over 3 * 16 tokens
# or more, so "beyond" is the part of the middle where that is hard.
RANGES = {"near": (0, 16), "middle": (16, 64), "beyond": (32, 64), "far": (64, 128)}

TWO = {"attention_window": SMALL, "pooling_window": LARGE, "pooling_layers": [2]}
TWO |= {"pooling_gate": True}
PAPER = TWO | {"attention_window": 4 * SMALL, "pooling_window": 4 * LARGE}
ONE_SIDED = TWO | {"attention_window": 8 * SMALL, "pooling_window": 8 * LARGE}
ROWS = {  # name -> (what it is, keys of LdtConfig)
    "small": (f"window {SMALL}", {"attention_window": SMALL}),
    "large": (f"window {LARGE}", {"attention_window": LARGE}),
    "two-levels": (f"{SMALL} and {LARGE} pooled, layer 3 of 4, ldconv", TWO),
    "mean": ("pooling by mean", TWO | {"pooling": "mean"}),
    "max": ("pooling by max", TWO | {"pooling": "max"}),
    "conv": ("pooling by conv", TWO | {"pooling": "conv"}),
    "mix": ("Mix: level 2 reads the layer's input", TWO | {"pooling_input": "embeddings"}),
    "shared": ("weight sharing", TWO | {"pooling_share_weights": True}),
    "sum": ("plain sum, no gate", TWO | {"pooling_gate": False}),
    "fresh": ("level 2 begins at random", TWO),
    "lower": ("layer 1", TWO | {"pooling_layers": [0]}),
    "top": ("layer 4", TWO | {"pooling_layers": [3]}),
    "two-layers": ("layers 2 and 3", TWO | {"pooling_layers": [1, 2]}),
    "all-layers": ("layers 1 to 4", TWO | {"pooling_layers": [0, 1, 2, 3]}),
    "paper-small": (f"window {4 * SMALL}", {"attention_window": 4 * SMALL}),
    "paper-large": (f"window {4 * LARGE}", {"attention_window": 4 * LARGE}),
    "paper": (f"{4 * SMALL} and {4 * LARGE} pooled, 5 tokens every 4", PAPER),
    "paper-fine": ("3 tokens every 2", PAPER | {"pooling_size": 3, "pooling_stride": 2}),
    "paper-coarse": ("9 tokens every 8", PAPER | {"pooling_size": 9, "pooling_stride": 8}),
    "paper-apart": ("4 tokens every 4, no overlap", PAPER | {"pooling_size": 4}),
    "paper-separate": ("weights of keys from keys", PAPER | {"pooling": "ldconv_separate"}),
    "paper-one-sided": (f"{8 * SMALL} and {8 * LARGE}: if windows count one side", ONE_SIDED),
}


def scale(row):
    """Times that the documents, distances and windows of a row are as long as the others'."""
    return 4 if row.startswith("paper") else 1


STYLE = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}
CURVES = {"small": "#E69F00", "large": "#000000", "two-levels": "#0072B2"}

COST = Setting(layers=4, vocabulary=1000)  # and base width; 1 layer in 4 has a second level
COST_TOKENS = 8192
COSTS = {"small": ("ldt", 128), "large": ("ldt", 512), "two-levels": ("poolingformer", 512)}


def build(row, start=None):
    """A model of a row, of random weights or of those of ``start``, the state_dict of a `start`.

    The second level begins as ``ldt convert`` has it: its projections are copies of the first
    level's. The position table of a random model begins as sines.
    """
    config = LdtConfig(
        vocab_size=len(Contracts(0).ids) + MASK + 1,
        num_hidden_layers=LAYERS,
        max_position_embeddings=scale(row) * LENGTH + PAD + 1,
        pad_token_id=PAD,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.04,
        num_labels=len(NAMES),
        **SHAPE,
        **ROWS[row][1],
    )
    model = LdtForTokenClassification(config)
    if start is None:
        begin_with_sines(model)
    else:
        names = [n for n in model.state_dict() if row != "fresh" or "pooled." not in n]
        copies = {name: start.get(name.replace("pooled.", "")) for name in names}
        copies = {name: value for name, value in copies.items() if value is not None}
        model.load_state_dict(copies, strict=False)
    return model


def fit(model, data, steps):
    """Train; (seconds of the processor a step, mean loss of the last tenth)."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    seconds, losses = 0.0, []
    for step in range(steps):
        ids, labels, _ = data.batch(BATCH)
        for group in optimizer.param_groups:
            group["lr"] = RATE * min((step + 1) / WARM_UP, 1) * (1 - step / steps)
        begin = time.process_time()
        loss = model(ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds += time.process_time() - begin
        losses.append(loss.item())
    return seconds / steps, statistics.mean(losses[-max(1, steps // 10) :])


def contracts(seed, row, longest=EDGES[-1]):
    """The documents of a row."""
    times = scale(row)
    return Contracts(seed, times * longest, times * LENGTH)


def start(folder, row, seed, steps):
    """The state_dict of a model with small windows that has learned what they reach."""
    small = "small" if scale(row) == 1 else "paper-small"
    file = folder / f"start-{small}-{seed}-{steps}.safetensors"
    if not file.exists():
        torch.manual_seed(seed)
        model = build(small)
        fit(model, contracts(f"start {seed}", small, SMALL // 2), steps)
        save_file(model.state_dict(), file)
    return load_file(file)


def train(folder, row, seed, steps):
    """{right, asked: for each distance; seconds of the processor a step; loss of the last tenth}"""
    begin = start(folder, row, seed, steps)
    torch.manual_seed(seed)
    model = build(row, begin)
    seconds, loss = fit(model, contracts(seed, row), steps)
    right, asked = test(model.eval(), row)
    return {
        "right": right,
        "asked": asked,
        "seconds_a_step": seconds,
        "loss": loss,
        "parameters": model.num_parameters(),
    }


@torch.inference_mode()
def test(model, row):
    """How many questions are answered right, and how many there are, between `EDGES`."""
    data = contracts("test", row)
    right, asked = torch.zeros(2, len(EDGES) - 1, dtype=torch.int64)
    for _ in range(0, TEST, BATCH):
        ids, labels, distances = data.batch(BATCH)
        found, distances = model(ids).logits.argmax(-1), distances / scale(row)
        for i, (low, high) in enumerate(pairwise(EDGES)):
            here = (low < distances) & (distances <= high)
            asked[i] += here.sum()
            right[i] += (found == labels)[here].sum()
    return right.tolist(), asked.tolist()


def accuracy(run, low, high):
    """Share of right answers at distances over ``low`` and up to ``high``, both in `EDGES`."""
    part = slice(EDGES.index(low), EDGES.index(high))
    return sum(run["right"][part]) / max(1, sum(run["asked"][part]))


def spread(values):
    """Mean and ends."""
    return {"mean": statistics.mean(values), "low": min(values), "high": max(values)}


def summary(row, runs):
    """The figures of a row over the runs of its seeds."""
    times = scale(row)
    distances = [
        {"over": times * low, "up_to": times * high}
        | spread([accuracy(run, low, high) for run in runs])
        for low, high in pairwise(EDGES)
    ]
    ranges = {name: spread([accuracy(run, *ends) for run in runs]) for name, ends in RANGES.items()}
    return {
        "what": ROWS[row][0],
        "seeds": len(runs),
        "accuracy": ranges | {"by_distance": distances},
        "loss": spread([run["loss"] for run in runs]),
        "cpu_seconds_a_step": statistics.median(run["seconds_a_step"] for run in runs),
        "parameters": runs[0]["parameters"],
    }


def cost(rounds):
    """Seconds and MiB of whole encoders at the paper's windows, and as parts of the large one's."""
    found = {}
    for kind in PASSES:
        cells = {
            row: (name, COST_TOKENS, kind, replace(COST, window=window))
            for row, (name, window) in COSTS.items()
        }
        seconds = medians({row: encoders.load(*cell)[0] for row, cell in cells.items()}, rounds)
        for row, cell in cells.items():
            figures = {"seconds": seconds[row], "mib": encoders.peak(*cell)}
            found.setdefault(row, {})[kind] = figures
    for row in found.values():
        for kind in PASSES:
            large = found["large"][kind]
            parts = {f"{key}_to_large": row[kind][key] / large[key] for key in ("seconds", "mib")}
            row[kind].update(parts)
    about = f"{COST.layers} layers of width {COST.width}, {COST_TOKENS} tokens, windows 128 and 512"
    return {"setting": about, "rounds": rounds, "machine": machine(), "rows": found}


def note(result):
    """Whether the paper's claim shows: two levels beat one large window, and cost less."""
    rows, sentences, shows = result["rows"], [], []
    if set(CURVES) <= set(rows):
        for part in ("middle", "beyond"):
            small, large, ours = (rows[name]["accuracy"][part] for name in CURVES)
            seeds = min(rows[name]["seeds"] for name in CURVES)
            verdict, better = "no difference beyond that of the seeds", False
            if seeds < 2:
                verdict = "one seed is no ground for a verdict"
            elif ours["low"] > large["high"]:
                verdict, better = "two levels do better than the large window", True
            elif large["low"] > ours["high"]:
                verdict = "two levels do worse than the large window"
            shows.append(better)
            low, high = RANGES[part]
            sentences.append(
                f"Over {low} and up to {high} tokens away two levels find {_range(ours)}, one "
                f"large window {_range(large)}, one small window {_range(small)}: {verdict}."
            )
    if result["cost"]:
        for kind in PASSES:
            ours = result["cost"]["rows"]["two-levels"][kind]
            shows.append(ours["seconds_to_large"] < 1 and ours["mib_to_large"] < 1)
            sentences.append(
                f"At the paper's windows ({kind}) two levels take {ours['seconds_to_large']:.2f} "
                f"of the large window's time and {ours['mib_to_large']:.2f} of its memory."
            )
    if len(shows) == 4:
        verb = "shows" if all(shows) else "does not show"
        sentences.append(f"That two levels beat one large window at lower cost {verb} here.")
    return " ".join(sentences)


def _range(found):
    return f"{found['mean']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def show(result, console):
    title = f"right answers by distance (of paper rows: four times), chance {1 / len(NAMES)}"
    table = Table(title=title)
    heads = (f"{name}: {low} to {high}" for name, (low, high) in RANGES.items())
    for head in ("row", "what", *heads, "CPU ms a step", "seeds"):
        table.add_column(head, justify="left" if head in ("row", "what") else "right")
    for name, row in result["rows"].items():
        cells = [_range(row["accuracy"][part]) for part in RANGES]
        step = f"{1000 * row['cpu_seconds_a_step']:.0f}"
        table.add_row(name, row["what"], *cells, step, str(row["seeds"]))
    console.print(table)
    if result["cost"]:
        table = Table(title=f"{result['cost']['setting']}: seconds, MiB (parts of large)")
        for head in ("row", *PASSES):
            table.add_column(head, justify="left" if head == "row" else "right")
        for name, row in result["cost"]["rows"].items():
            table.add_row(name, *(_cost(row[kind]) for kind in PASSES))
        console.print(table)
    console.print(result["note"])


def _cost(cell):
    return (
        f"{cell['seconds']:.2f} ({cell['seconds_to_large']:.2f}), "
        f"{cell['mib']:.0f} ({cell['mib_to_large']:.2f})"
    )


def draw(result, path):
    """Accuracy against distance of the rows in `CURVES`, with the range over seeds."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 4.6), layout="constrained")
        axes = figure.subplots()
        for name, colour in CURVES.items():
            if name not in result["rows"]:
                continue
            row = result["rows"][name]
            bins = row["accuracy"]["by_distance"]
            x = [(part["over"] + part["up_to"]) / 2 for part in bins]
            x[0] = (len(Contracts.clause("", "")) + EDGES[1]) / 2
            low, mean, high = ([part[key] for part in bins] for key in ("low", "mean", "high"))
            axes.plot(x, mean, color=colour, marker="o", markersize=4, label=row["what"])
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        for window in (SMALL, LARGE):
            axes.axvline(window / 2, color="#999999", linewidth=1, linestyle="--")
            axes.text(window / 2, 1.02, f"reach of {window}", ha="center", fontsize=10)
        axes.axhline(1 / len(NAMES), color="#999999", linewidth=1, linestyle=":")
        axes.set(xscale="log", ylim=(0, 1))
        axes.set_xlabel("distance of the evidence, tokens")
        axes.set_ylabel("right answers")
        axes.legend(frameon=False)
        axes.set_xticks(EDGES[1:], [str(edge) for edge in EDGES[1:]])
        axes.minorticks_off()
        axes.grid(axis="y", color="#dddddd", linewidth=0.8)
        figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    names = (*ROWS, "cost")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="ROW")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rounds", type=int, default=5, help="of the measurement of cost")
    parser.add_argument("--json", type=Path, default=RESULT)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 150)
    setting = {
        "windows": [SMALL, LARGE],
        "length": LENGTH,
        "batch": BATCH,
        "layers": LAYERS,
        **SHAPE,
        "learning_rate": RATE,
        "questions_of_the_test": TEST * PAIRS,
        "chance": 1 / len(NAMES),
    }
    result = {"setting": setting, "rows": {}, "cost": {}, "note": ""}
    if args.json.exists():
        before = json.loads(args.json.read_text("utf-8"))
        if before["setting"] == setting:
            result = before
    args.json.parent.mkdir(exist_ok=True)
    for row in args.only:
        if row == "cost":
            result["cost"] = cost(args.rounds)
        else:
            runs = [kept(args.folder, row, seed, args.steps) for seed in range(args.seeds)]
            result["rows"][row] = {"steps": args.steps} | summary(row, runs)
        result["rows"] = {name: result["rows"][name] for name in ROWS if name in result["rows"]}
        result["note"] = note(result)
        write_whole(args.json, json.dumps(result, indent=2) + "\n")
        draw(result, args.json.with_suffix(".png"))
    show(result, console)
    console.print(f"written to {args.json}")


def kept(folder, row, seed, steps):
    """What `train` gives, from ``folder`` if it has run there before."""
    file = folder / f"{row}-{seed}-{steps}.json"
    if not file.exists():
        write_whole(file, json.dumps(train(folder, row, seed, steps)))
    return json.loads(file.read_text("utf-8"))


if __name__ == "__main__":
    main()
