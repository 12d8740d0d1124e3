"""ldt's encoder-decoder side by side with transformers' LED on this CPU: time and memory.

    python benchmarks/seq2seq.py               # all cases, an hour on 2 cores
    python benchmarks/seq2seq.py --only layer-8192 generate-4096
    python benchmarks/seq2seq.py --tiny        # that it runs; the figures mean nothing

Random weights, batch 1, the first token global, huge pages for both. ``layer``: the forward pass of
one encoder layer of width 64, 4 heads, window 64, where the rest of a model hides nothing. The
others have the shape of led-base-16384: width 768, 12 heads, 6 + 6 layers, window 1,024. A training
step is forward and backward with 256 or 512 labels, without dropout; a generation is 4 beams of 128
tokens, without an end before. Times: both run in turn in one process, and a ratio is that of the
medians. Memory: the peak resident memory over that of the loaded model, median of three fresh
processes.
"""

import argparse
import json
import os
import statistics
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # read by torch at its first allocation

import torch
from measure import in_turn
from rich.console import Console
from rich.table import Table
from transformers import LEDConfig, LEDForConditionalGeneration
from transformers.utils import logging

from ldt.inference.measure import fresh, machine, peak_mib, seconds_of
from ldt.io.files import write_whole
from ldt.model import LdtForConditionalGeneration, LdtSeq2SeqConfig

RESULT = Path(__file__).parent / "results" / "seq2seq.json"
CLASSES = {"ldt": LdtForConditionalGeneration, "transformers": LEDForConditionalGeneration}
BASE = {"d_model": 768, "heads": 12, "layers": 6, "window": 1024, "vocabulary": 50265}
LAYER = {"d_model": 64, "heads": 4, "layers": 1, "window": 64, "vocabulary": 1000}
TINY = {"d_model": 16, "heads": 2, "layers": 1, "window": 16, "vocabulary": 100}
WARM_UP = 64  # tokens


@dataclass(frozen=True)
class Case:
    """What is run, and the least ratios of seconds and of memory."""

    kind: str  # encoder, training, generation
    tokens: int
    written: int = 0  # labels, or tokens that are generated
    seconds: float | None = None
    memory: float | None = None
    rounds: int = 5


# Of encoder and training: what results/cpu-encoder-zen4.json has beside Longformer, less 10 %.
CASES = {
    "layer-8192": Case("encoder", 8192, memory=10),
    "layer-16384": Case("encoder", 16384, memory=10),
    "encoder-4096": Case("encoder", 4096, seconds=2.37),
    "encoder-8192": Case("encoder", 8192, seconds=2.76),
    "training-4096-256": Case("training", 4096, 256, seconds=1.94),
    "training-4096-512": Case("training", 4096, 512),
    "training-8192-512": Case("training", 8192, 512),
    "generate-4096": Case("generation", 4096, 128, seconds=2.5, rounds=3),
    "generate-16384": Case("generation", 16384, 128, seconds=2.5, rounds=3),
}


def config(shape, tokens):
    """The LEDConfig of a shape, for inputs of so many tokens."""
    return LEDConfig(
        vocab_size=shape["vocabulary"],
        d_model=shape["d_model"],
        encoder_layers=shape["layers"],
        decoder_layers=shape["layers"],
        encoder_attention_heads=shape["heads"],
        decoder_attention_heads=shape["heads"],
        encoder_ffn_dim=4 * shape["d_model"],
        decoder_ffn_dim=4 * shape["d_model"],
        attention_window=[shape["window"]] * shape["layers"],
        max_encoder_position_embeddings=max(tokens, 1024),
    )


def build(name, shape, tokens):
    """A random model in evaluation mode."""
    settings = config(shape, tokens)
    if name == "ldt":
        settings = LdtSeq2SeqConfig.from_dict(settings.to_dict())
    torch.manual_seed(0)
    return CLASSES[name](settings).eval()


def step(model, shape, case, tokens):
    """Run a case once, at so many tokens of input."""
    generator = torch.Generator().manual_seed(1)
    draw = partial(torch.randint, 5, shape["vocabulary"], generator=generator)
    inputs = {"input_ids": draw((1, tokens))}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["global_attention_mask"] = torch.zeros_like(inputs["input_ids"])
    inputs["global_attention_mask"][:, 0] = 1
    if case.kind == "encoder":
        with torch.inference_mode():
            model.get_encoder()(**inputs)
    elif case.kind == "training":
        model(**inputs, labels=draw((1, case.written))).loss.backward()
        model.zero_grad()
    else:
        model.generate(
            **inputs,
            num_beams=4,
            max_new_tokens=case.written,
            min_new_tokens=case.written,
            do_sample=False,
        )


def shape_of(case_name, tiny):
    return TINY if tiny else LAYER if case_name.startswith("layer") else BASE


def peak(name, shape, case):
    """MiB, in a fresh process; see `ldt.inference.measure.peak_mib`."""
    logging.set_verbosity_error()
    model = build(name, shape, case.tokens)
    few = Case(case.kind, WARM_UP, min(case.written, 4))
    return peak_mib(
        lambda: step(model, shape, case, case.tokens), lambda: step(model, shape, few, WARM_UP)
    )


def peaks(name, shape, case, runs=3):
    """Median of fresh processes; the allocator's holes differ by some per cent."""
    return statistics.median(fresh(peak, name, shape, case) for _ in range(runs))


def times(shape, case, rounds):
    """{name: median seconds} of both in turn, after a short call each to warm up."""
    models = {name: build(name, shape, case.tokens) for name in CLASSES}
    few = Case(case.kind, WARM_UP, min(case.written, 4))
    for model in models.values():
        seconds_of(lambda m=model: step(m, shape, few, WARM_UP))
    runs = {
        name: lambda m=model: step(m, shape, case, case.tokens) for name, model in models.items()
    }
    return {name: statistics.median(found) for name, found in in_turn(runs, rounds).items()}


def compare(case_name, args):
    """The result of a case: of transformers how many times that of ldt."""
    case, shape = CASES[case_name], shape_of(case_name, args.tiny)
    if args.tiny:
        case = Case(case.kind, 96, min(case.written, 4))
    rounds = args.rounds or case.rounds
    row = {"case": asdict(case), "shape": shape, "rounds": rounds}
    if "time" in args.what:
        row["seconds"] = times(shape, case, rounds)
        row["times_faster"] = row["seconds"]["transformers"] / row["seconds"]["ldt"]
    if "memory" in args.what:
        row["mib"] = {name: peaks(name, shape, case, args.processes) for name in CLASSES}
        row["times_leaner"] = row["mib"]["transformers"] / row["mib"]["ldt"]
    return row


def show(result, console):
    table = Table(title="ldt beside transformers' LED: times faster, times less memory (floor)")
    for title in ("case", "ldt s", "theirs s", "faster", "ldt MiB", "theirs MiB", "leaner"):
        table.add_column(title, justify="left" if title == "case" else "right")
    for name, row in result["cases"].items():
        cells = []
        for unit, ratio, floor in (
            ("seconds", "times_faster", CASES[name].seconds),
            ("mib", "times_leaner", CASES[name].memory),
        ):
            if unit not in row:
                cells += [""] * 3
                continue
            digits = 2 if unit == "seconds" else 0
            cells += [f"{x:.{digits}f}" for x in row[unit].values()]
            cells.append(f"{row[ratio]:.2f}" + ("" if floor is None else f" ({floor})"))
        table.add_row(name, *cells)
    console.print(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES, metavar="CASE")
    parser.add_argument("--what", nargs="+", choices=("time", "memory"), default=("time", "memory"))
    parser.add_argument("--rounds", type=int, help="default: 5, of a generation 3")
    parser.add_argument("--processes", type=int, default=3, help="for the memory of each")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", type=Path, default=RESULT)
    args = parser.parse_args()
    logging.set_verbosity_error()
    console = Console(width=None if sys.stdout.isatty() else 120)
    result = {"cases": {}}
    if args.json.exists():
        result = json.loads(args.json.read_text())
    result["machine"] = machine()
    for name in args.only:
        row = compare(name, args)
        result["cases"][name] = result["cases"].get(name, {}) | row
        write_whole(args.json, json.dumps(result, indent=2) + "\n")
        console.print(name, {key: row[key] for key in row if key.startswith("times")})
    show(result, console)
    console.print(f"written to {args.json}")


if __name__ == "__main__":
    main()
