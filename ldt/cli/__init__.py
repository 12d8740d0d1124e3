"""Commands: parse, call, print. What a command needs is imported when it runs."""

import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from ldt import __version__, errors
from ldt.cli.console import say, settle, stdout
from ldt.cli.failures import explain

# Before torch or transformers are imported; a user's own settings win.
ENVIRONMENT = {
    "THP_MEM_ALLOC_ENABLE": "1",  # torch takes large tensors in huge pages
    # Sizes of batches for which torch and oneDNN keep code: 1,024 of them take hundreds of MB.
    "LRU_CACHE_CAPACITY": "64",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "TOKENIZERS_PARALLELISM": "false",  # threads do not survive the fork of a data worker
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "DATASETS_VERBOSITY": "error",
}

app = typer.Typer(
    rich_markup_mode=None,  # help that a narrow terminal and a pipe can show
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Recipe = Annotated[Path, typer.Argument(metavar="RECIPE", help="A YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Changes to it, as training.seed=1."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the run from its newest checkpoint.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what the run folder holds.")]


@app.callback(invoke_without_command=True)
def ldt(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """NLP on long documents: make a short encoder long, fine-tune it, predict with it."""
    if version:
        print(f"ldt {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def convert(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A BERT, RoBERTa or Longformer: folder or hub id."),
    ],
    target: Annotated[
        Path | None,
        typer.Argument(metavar="TARGET", help="Folder to make; SOURCE-4096 here if not given."),
    ] = None,
    architecture: Annotated[
        Literal["longformer", "poolingformer"],
        typer.Option(help="poolingformer: with a second, wider level of attention."),
    ] = "longformer",
    max_length: Annotated[int, typer.Option(min=1, metavar="TOKENS", help="Longest input.")] = 4096,
    window: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="TOKENS",
            help="Reach, both sides together; else a long source's own, 512, poolingformer's 128.",
        ),
    ] = None,
    positions: Annotated[
        Literal["tile", "interpolate", "random"],
        typer.Option(help="How the position table becomes long: repeated, stretched, or drawn."),
    ] = "tile",
    check: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Text on which both are scored as masked LMs."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace TARGET.")] = False,
) -> None:
    """Turn a short-input encoder into a long-input one.

    It ends with a proof that both compute the same on short inputs.
    """
    from ldt.convert import convert

    report = convert(
        source,
        target,
        architecture=architecture,
        max_length=max_length,
        window=window,
        positions=positions,
        check=check,
        overwrite=overwrite,
    )
    for line in report.lines():
        say(line, console=stdout)


@app.command()
def finetune(
    recipe: Recipe,
    overrides: Overrides = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything, show one encoded example, and stop."),
    ] = False,
) -> None:
    """Fine-tune a model as a recipe says, and evaluate it."""
    from ldt.recipe.recipe import load

    loaded = load(recipe, overrides or (), command="finetune")
    from ldt.training.finetune import finetune

    finetune(loaded, resume=resume, overwrite=overwrite, dry_run=dry_run)


@app.command()
def pretrain(
    recipe: Recipe,
    overrides: Overrides = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything on a little of the text, and stop."),
    ] = False,
) -> None:
    """Train a masked LM or a character model on plain text, from scratch or from a model."""
    from ldt.recipe.recipe import load

    loaded = load(recipe, overrides or (), command="pretrain")
    if loaded.task.name == "charlm":
        from ldt.training.char_lm import pretrain
    else:
        from ldt.training.masked_lm import pretrain

    pretrain(loaded, resume=resume, overwrite=overwrite, dry_run=dry_run)


@app.command()
def predict(
    source: Annotated[
        str,
        typer.Option("--input", metavar="FILE", help="Documents; - reads standard input."),
    ],
    model: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="A finished run; runs/latest if not given.")
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="Answers; standard output if not given.")
    ] = None,
    on_error: Annotated[
        Literal["stop", "skip"],
        typer.Option(help="At a broken record: end, or put it into a file of rejects."),
    ] = "stop",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an unfinished output file.")
    ] = False,
    batch_tokens: Annotated[
        int, typer.Option(min=1, metavar="TOKENS", help="Largest batch, padding included.")
    ] = 16384,
    max_line_bytes: Annotated[
        int, typer.Option(min=1, metavar="BYTES", help="Longest line that is accepted.")
    ] = 256 << 20,
    format: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="jsonl, csv, tsv, parquet, or a published layout: squad, triviaqa, …; "
            "lines, told by content, if not given.",
        ),
    ] = None,
    evidence: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Documents of triviaqa; as in training if not given."),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Where the text is; as in training if not given."),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Where the id is; as in training if not given."),
    ] = None,
    n_best: Annotated[
        int | None, typer.Option(min=1, metavar="NUMBER", help="Answers to a question, best first.")
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")
    ] = "auto",
    precision: Annotated[
        Literal["fp32", "bf16", "int8"],
        typer.Option(help="bf16 and int8 (CPU) are faster and less exact; it says how much."),
    ] = "fp32",
) -> int:
    """Answer for every document of a file.

    The answers are JSON lines in the order of the documents; an output named .json is what the
    published evaluator of the task reads.
    """
    from ldt.inference.predict import predict

    return predict(
        source,
        model=model,
        output=output,
        on_error=on_error,
        resume=resume,
        batch_tokens=batch_tokens,
        max_line_bytes=max_line_bytes,
        format=format,
        evidence=evidence,
        text=text,
        id=id,
        n_best=n_best,
        device=device,
        precision=precision,
    )


@app.command()
def evaluate(
    gold: Annotated[
        str, typer.Option(metavar="FILE", help="Questions with answers, as published.")
    ],
    pred: Annotated[str, typer.Option(metavar="FILE", help="Predictions; - reads standard input.")],
    format: Annotated[
        Literal["triviaqa", "squad", "squad2", "wikihop", "hotpotqa", "conll"],
        typer.Option(help="Layout of both, and the metric; XQuAD is squad."),
    ],
    domain: Annotated[
        Literal["wikipedia", "web"] | None,
        typer.Option(
            help="Of triviaqa: keys by question or by page; the gold file's if not given."
        ),
    ] = None,
    evidence: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Of triviaqa: its documents, for figures by length."),
    ] = None,
    na_prob: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Of squad2: {id: probability of no answer}."),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Everything at full precision; - prints only that."),
    ] = None,
) -> None:
    """The published metric of a prediction file, without a model.

    With a bootstrap interval, and by length of the document and place of the answer.
    """
    from ldt.metrics import evaluate

    evaluate(
        gold, pred, format=format, domain=domain, evidence=evidence, na_prob=na_prob, json=json
    )


@app.command()
def perplexity(
    model: Annotated[str, typer.Option(metavar="FOLDER", help="A masked LM or a character model.")],
    source: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="FILE", help="Text or a table; again for more."),
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(
            metavar="TOKENS", help="Of an input, again for more; the longest if not given."
        ),
    ] = None,
    text: Annotated[str, typer.Option(metavar="FIELD", help="Of a table, with the text.")] = "text",
    seed: Annotated[int, typer.Option(min=0, metavar="NUMBER", help="Of the masks.")] = 0,
    step: Annotated[
        int | None,
        typer.Option(min=1, metavar="CHARACTERS", help="Scored of a sequence; half if not given."),
    ] = None,
    part: Annotated[
        Literal["eval", "test"] | None,
        typer.Option(help="Of the text of a character model's recipe, in place of --input."),
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")
    ] = "auto",
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Everything at full precision.")
    ] = None,
) -> None:
    """How well a masked LM finds hidden words of a text, by length of input.

    All lengths are scored on the same text with the same words hidden. Of a character model: bits
    per character, the text read in overlapping sequences of which the last STEP are scored.
    """
    from ldt.inference.bits import bits, is_character_model

    if is_character_model(model):
        how = {"part": part, "step": step, "device": device, "json_file": json}
        bits(model, source or (), lengths=length or (), **how)
        return
    if not source or step or part:
        raise errors.UserError("a masked LM takes --input; --step and --part are of characters")
    from ldt.inference.perplexity import perplexity

    perplexity(
        model, source, lengths=length or (), text=text, seed=seed, device=device, json_file=json
    )


@app.command()
def bench(
    length: Annotated[
        list[int] | None,
        typer.Option(min=1, metavar="TOKENS", help="Of a document; give it again for more."),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="What to measure, again for more; all if not given."),
    ] = None,
    window: Annotated[
        int, typer.Option(metavar="TOKENS", help="Reach of a token, both sides together.")
    ] = 512,
    dilation: Annotated[
        int, typer.Option(min=1, metavar="TOKENS", help="Gap between the tokens in reach.")
    ] = 1,
    causal: Annotated[
        bool, typer.Option("--causal", help="See no token behind; no global token then.")
    ] = False,
    batch: Annotated[int, typer.Option(min=1, metavar="DOCUMENTS", help="At a time.")] = 1,
    heads: Annotated[int, typer.Option(min=1, metavar="HEADS", help="Of a layer.")] = 12,
    dim: Annotated[int, typer.Option(min=1, metavar="NUMBERS", help="Width of a head.")] = 64,
    encoder: Annotated[
        bool, typer.Option("--encoder", help="Whole encoders instead of attention alone.")
    ] = False,
    layers: Annotated[
        int | None,
        typer.Option(min=1, metavar="LAYERS", help="Of an encoder; 2 on a CPU, 12 on CUDA."),
    ] = None,
    kind: Annotated[
        Literal["forward", "training", "both"],
        typer.Option("--pass", help="Training is forward and backward."),
    ] = "both",
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16"] | None,
        typer.Option(help="fp32 on a CPU, bf16 on CUDA if not given."),
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")
    ] = "auto",
    threads: Annotated[
        int, typer.Option(min=0, metavar="THREADS", help="On the CPU; 0 leaves it to torch.")
    ] = 0,
    rounds: Annotated[
        int, typer.Option(min=1, metavar="ROUNDS", help="Of all in turn, after one to warm up.")
    ] = 5,
    limit: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="What would take longer is not run."),
    ] = 1.0,
    no_memory: Annotated[
        bool, typer.Option("--no-memory", help="Do not measure peak memory.")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Everything that was found.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A picture, .png or .svg.")
    ] = None,
) -> None:
    """Time and memory of attention on this machine, by length.

    ldt's backends beside transformers' Longformer, full attention and FlexAttention.
    """
    from ldt.bench.run import bench

    bench(
        lengths=length or (),
        backends=backend or (),
        kind=kind,
        device=device,
        encoder=encoder,
        layers=layers,
        rounds=rounds,
        limit=limit,
        memory=not no_memory,
        json_file=json,
        plot_file=plot,
        window=window,
        dilation=dilation,
        causal=causal,
        batch=batch,
        heads=heads,
        dim=dim,
        dtype=dtype,
        threads=threads,
    )


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command, say in a line what went wrong if anything did, and exit with its code."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    settle()
    try:
        code = app(arguments, prog_name="ldt", standalone_mode=False) or errors.EXIT_OK
        if sys.stdout is not None:
            sys.stdout.flush()
    except BaseException as error:
        code, prefix, text = explain(error)
        if text:
            with suppress(OSError, SystemExit):  # whoever read standard error has left
                say(text, prefix, "bold red")
    _let_go(sys.stdout)
    _let_go(sys.stderr)
    sys.exit(code)


def _let_go(stream):
    """Flush; what cannot be written must not fail once more when Python ends."""
    try:
        stream.flush()
    except (AttributeError, ValueError):  # no stream, or a closed one
        return
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
