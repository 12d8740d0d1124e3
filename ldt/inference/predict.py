"""A run folder and a file or pipe of documents to a file or pipe of answers.

Torch and the model are imported when they are needed, so that a wrong path is an error at once.
"""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ldt.data.formats import LINES, PUBLISHED, read
from ldt.data.sentences import Unit
from ldt.errors import (
    EXIT_OK,
    EXIT_REJECTS,
    DataError,
    UserError,
    counted,
    plural,
)
from ldt.inference import arithmetic, kept, options
from ldt.inference.agreement import Agreement
from ldt.inference.ahead import ahead, never
from ldt.inference.answer_file import AnswerFile, AnswerStream, Rejects
from ldt.inference.answer_table import layout_of, published_layout
from ldt.inference.ending import Ending
from ldt.inference.executor import THREADS, Seat, Workers
from ldt.inference.group import Encoder, Predictor
from ldt.inference.inputs import (
    check_paths,
    encoding_of_training,
    is_stream,
    layout_of_training,
    pauses,
    rejects_path,
)
from ldt.inference.passages import By, Wanted
from ldt.inference.run_model import RunModel, read_recipe
from ldt.inference.runtimes import RUNTIMES, Runtime
from ldt.inference.shards import Shard
from ldt.inference.stream import Beside, Counts, Documents, answer_all
from ldt.io.progress import progress_line
from ldt.io.records import Example
from ldt.io.sources import Names, each, is_hub_set
from ldt.recipe.recipe import Recipe
from ldt.recipe.run import Run
from ldt.tasks.generation import wordless

log = logging.getLogger("ldt")


def predict(
    input: Names,
    *,
    model: str | None = None,
    output: str | None = None,
    layout: str | None = None,
    on_error: str = "stop",
    resume: bool = False,
    overwrite: bool = False,
    keep: Sequence[str] = (),
    batch_tokens: int = 16384,
    max_line_bytes: int = 256 << 20,
    format: str | None = None,
    evidence: str | None = None,
    text: str | None = None,
    id: str | None = None,
    encoding: str | None = None,
    n_best: int | None = None,
    device: str = "auto",
    precision: str = "auto",
    int8_bound: float = 0.01,
    raw_scores: bool = False,
    label_sets: float | None = None,
    passages: int = 0,
    passages_by: By = "gradient",
    passages_of: Sequence[str] | None = None,
    passages_unit: Unit = "sentence",
    chunks: bool = False,
    shard: str | None = None,
    runtime: Runtime = "torch",
    workers: Sequence[Seat] = (),
) -> int:
    """Answer every document of ``input``, one JSON line each, in the order of the input.

    A line has ``id``, what the task decides (``label``, ``scores``), its flags and ``windows``.
    Messages go to the log.

    Args:
        input: file, "-" for standard input, or what else `ldt.io.records.read` takes; a text file
            or a folder of them, one document each; a pattern; or several of these.
        model: folder of a finished run; None is `LATEST` in the current directory.
        output: file, see `AnswerFile`; a pipe or device is written as it is; None or "-" is
            standard output. A file gets the layout of its ending (`answer_table.layout_of`).
        layout: a published layout of the task, whatever the ending of ``output`` is; None takes
            one for .json alone (`answer_table.published_layout`).
        on_error: "stop" ends at the first record that cannot be used, after the answers before
            it; "skip" puts such records into `rejects_path` and goes on.
        resume: continue the unfinished ``output``; the input must begin with the same records. Of a
            finished one, made of the same records, nothing is left to do.
        overwrite: replace an ``output`` that is there, at the end.
        keep: fields of a record that its answer gets as well, as FIELD or NAME=FIELD.
        batch_tokens: most tokens of a batch, padding included; a longer input is run alone.
        max_line_bytes: a longer line cannot be used.
        format: a name in `ldt.data.formats.FORMATS`; None: lines or a table, detected by content,
            or what the training read, where the input begins like that.
        evidence, text, id, encoding: keys of the data section; None: as in training, but for the
            encoding of what begins as UTF-8 (`encoding_of_training`).
        n_best: answers a document, of tasks that have several.
        device: a torch device; "auto" is the GPU if there is one.
        precision: a name in `ldt.model.precision.PRECISIONS`, or "auto": that of the answers that
            are there, else bf16 on a GPU that has it and fp32 elsewhere.
        int8_bound: share of the first `ldt.inference.agreement.DOCUMENTS` answers that may be
            others in int8 than in fp32; 1 for all.
        raw_scores: whether the scores of a classification are logits, as the model gives them.
        label_sets: probability with which a key ``label_set`` holds all the right classes.
        passages: passages of the document that each answer names as what it rests on, best first.
        passages_by: a name in `ldt.inference.passages.METHODS`.
        passages_of: classes to name passages of; none for those of the answer.
        passages_unit: what they are, a name in `ldt.data.sentences.UNITS`.
        chunks: whether answers list the chunks of their document, with the scores of each.
        shard: "2/7": answer the second of each seven records alone, as lines of a file whose name
            goes on with ".2-of-7"; `ldt.inference.merge` makes ``output`` of all seven.
        runtime: what runs the model; one of `RUNTIMES` that of a folder of `ldt export`, on the
            CPU.
        workers: places of processes that answer in place of this one, `ldt.inference.executor`; all
            on the CPU with the same number of threads, or on GPUs.

    Returns:
        The exit code: 0; 7 when records were skipped; 130 and 143 after SIGINT and SIGTERM.

    Raises:
        UserError: with its exit code, when a path, a record, the model or the memory is to blame.
        BrokenPipeError: nobody reads the output any more.
    """
    options.check(on_error, batch_tokens, format, encoding, int8_bound)
    options.check_runtime(runtime, precision)
    inputs = each(input)
    share = Shard.parse(shard) if shard is not None else None
    if share and (output is None or is_stream(output)):
        raise UserError(f"--shard {share} needs --output FILE, of which it makes a part")
    written = share.part(str(output)) if share else output
    rejects = Rejects(rejects_path(inputs[0], written))
    for source in inputs:
        check_paths(source, written, rejects.path, resume)
    with Ending() as ending, ExitStack() as stack:
        found = Run.find(model)
        folder = found.folder
        trained = read_recipe(folder, runtime)
        about = passages, passages_by, tuple(passages_of or ()), chunks
        wanted = Wanted(*about, batch_tokens, passages_unit)
        wanted.check(trained.task, precision, runtime)
        options.check_shown(trained.task, raw_scores, label_sets)
        more = ["label_set"] if label_sets is not None else []
        more += ["record"] if share else []
        beside = kept.copier(keep, trained.task, [*wanted.keys(), *more])
        if share:
            beside = partial(_numbered, beside=beside)
        # What is wrong with input and output is found before the model is loaded.
        format = format or layout_of_training(inputs, trained.data.format)
        named = {"id": id, "text": text, "encoding": encoding, "evidence": evidence}
        filed = getattr(trained.task, "reads_files", False) or getattr(
            trained.data, "text_files", None
        )
        options.check_reading(inputs[0], format, bool(filed), **named)
        encoding = encoding or encoding_of_training(inputs, getattr(trained.data, "encoding", None))
        layout = published_layout(layout, output, trained.task, (format, trained.data.format))
        if layout and (classes := found.classes()) is not None:
            trained.task.check_layout(layout, classes)
        asked = {"n_best": n_best, "raw_scores": raw_scores, "label_sets": label_sets}
        shown = options.with_options_of(layout, trained.task, asked)
        n_best = shown.pop("n_best")
        recipe = options.changed(
            trained, n_best, format, encoding, evidence=evidence, text=text, id=id
        )
        made_by = _made_by(found, recipe, precision, keep, wanted) | {
            f"--{name.replace('_', '-')}": str(value) for name, value in shown.items() if value
        }
        # Threads of a GPU's worker change no answer.
        on_cpu = [str(seat.threads) for seat in workers[:1] if seat.device == "cpu"]
        made_by |= {"--runtime": runtime} if runtime in RUNTIMES else {}
        made_by |= {"--layout": layout or "", THREADS: "".join(on_cpu)}
        made_by |= {"--shard": str(share), "task": recipe.task.name} if share else {}
        sink = ending.sink = _open_sink(output, recipe, made_by, resume, overwrite, stack)
        reading = {"document": recipe.task.document, "max_line_bytes": max_line_bytes}
        documents = Documents(partial(read, inputs, recipe.data, **reading), share)
        with _layout_named(format, trained.data.format):
            if isinstance(sink, AnswerFile) and sink.finished is not None:
                ending.code = _nothing_left(sink, documents, on_error)
                return ending.code
            waits = any(map(pauses, inputs))
            if not (waits or is_hub_set(inputs[0]) or format in PUBLISHED):
                _read_first(documents, on_error, beside)
            run = RunModel(folder, recipe, device, shown, wanted, batch_tokens, runtime)
            rounding, hands = (precision, int8_bound), None
            if workers:
                predictor, agreement, hands = _employ(workers, run, rounding, sink, stack)
            else:
                predictor, agreement = _load(run, rounding, sink, stack)
            stack.enter_context(closing(rejects))
            skipped = None if on_error == "stop" else rejects
            counts = _answer(
                documents, waits, predictor, hands, sink, batch_tokens, skipped, beside, agreement
            )
        _log_summary(counts, rejects, predictor.max_length)
        ending.code = EXIT_REJECTS if rejects.count else EXIT_OK
    return ending.code


def _load(
    model: RunModel,
    rounding: tuple[str, float],
    sink: AnswerFile | AnswerStream,
    stack: ExitStack,
) -> tuple[Predictor, Agreement | None]:
    """The model; it computes as the run did that began the file. In int8, what compares answers.

    Args:
        rounding: the precision, and the share of answers that int8 may change.
    """
    precision = arithmetic.settled(rounding[0], model.automatic, sink)
    predictor, exact = model.predictor(precision)
    if isinstance(sink, AnswerFile):
        arithmetic.same_products(sink, stack)
    if precision != "int8":
        return predictor, None
    return predictor, arithmetic.compared(exact, rounding[1], sink)


def _employ(
    seats: Sequence[Seat],
    model: RunModel,
    rounding: tuple[str, float],
    sink: AnswerFile | AnswerStream,
    stack: ExitStack,
) -> tuple[Encoder, Agreement | None, Workers]:
    """What `_load` does, of processes with the model; here are only the inputs made."""
    makers = [replace(model, device=seat.device) for seat in seats]
    # A document whose passages are occluded may take an hour without a sign of life.
    endless = model.wanted.by == "occlusion"
    workers = stack.enter_context(Workers(makers, seats, endless))
    workers.start()
    inputs = model.inputs()
    found = workers.settings()
    precision = arithmetic.settled(rounding[0], lambda: found["precision"], sink)
    products = sink.remember("arithmetic", lambda: found["arithmetic"])
    workers.load({"precision": precision, "arithmetic": products, "memory": workers.memory})
    each = plural(seats[0].threads, "thread")
    log.info(f"{len(seats):,} worker processes, {each} each")
    if precision != "int8":
        return inputs, None, workers
    return inputs, arithmetic.compared(None, rounding[1], sink), workers


def _answer(
    documents: Documents,
    pauses: bool,
    predictor: Encoder,
    workers: Workers | None,
    sink: AnswerFile | AnswerStream,
    batch_tokens: int,
    rejects: Rejects | None,
    beside: Beside | None,
    agreement: Agreement | None,
) -> Counts:
    """Write the answer of every record; with ``rejects`` broken records go there, else raise."""
    broken = refuse = None
    if rejects:
        rejects.forget()
        broken, refuse = rejects.write, rejects.refuse
    # A pipe is read by a thread, so that what waits is answered while it pauses.
    busy = workers.busy if workers else never
    examples = ahead(documents, broken, busy=busy) if pauses else documents(on_error=broken)
    with progress_line(shown=isinstance(sink, AnswerFile)) as tell:
        counts = answer_all(
            examples,
            predictor,
            sink,
            batch_tokens=batch_tokens,
            hands=workers,
            refuse=refuse,
            beside=beside,
            progress=tell,
            agreement=agreement,
        )
    facts = {"records": documents.count} if documents.shard else {}
    sink.finish(documents=documents.sha256(), rejects=rejects.count if rejects else 0, **facts)
    return counts


def _numbered(example: Example, beside: Beside | None) -> dict[str, Any]:
    """What an answer of a shard has of its record: its number, and what ``beside`` makes."""
    return {"record": example.record, **(beside(example) if beside else {})}


def _made_by(
    run: Run, recipe: Recipe, precision: str, keep: Sequence[str], wanted: Wanted
) -> dict[str, str]:
    """What decides the answers, by names for messages."""
    return {
        "model": run.fingerprint(recipe),
        "text field": recipe.data.text or recipe.task.document,
        "id field": recipe.data.id or "id",
        "format": recipe.data.format or "lines",
        "encoding": getattr(recipe.data, "encoding", "utf-8"),
        "n best": recipe.task.model_dump().get("n_best", 1),
        **({} if precision == "auto" else {"precision": precision}),
        "--keep": ",".join(keep),
        "--passages": str(wanted),
    }


def _open_sink(
    output: str | None,
    recipe: Recipe,
    made_by: dict[str, str],
    resume: bool,
    overwrite: bool,
    stack: ExitStack,
) -> AnswerFile | AnswerStream:
    if output is None or output == "-":
        return AnswerStream(sys.stdout.buffer)
    if is_stream(output):
        return AnswerStream(stack.enter_context(open(output, "wb")))
    target, layouts = Path(output), recipe.task.layouts
    if made_by["--keep"] and made_by["--layout"]:
        raise UserError(
            f"--keep: no place in {output}, which has the layout {made_by['--layout']}; name it "
            ".jsonl, .csv or .parquet, without --layout"
        )
    layout = layout_of(target, layouts.get(made_by["--layout"]))
    if "--shard" in made_by:
        target, layout = Path(Shard.parse(made_by["--shard"]).part(output)), None
    file = AnswerFile(target, made_by=made_by, resume=resume, overwrite=overwrite, layout=layout)
    return stack.enter_context(closing(file))


def _nothing_left(sink: AnswerFile, documents: Documents, on_error: str) -> int:
    """The exit code of a run that finds its answers finished: that of the run that made them.

    Raises:
        UserError: they are those of other documents.
        DataError: a record cannot be read.
    """
    assert sink.finished is not None
    for _ in documents(on_error=_ignore if on_error == "skip" else None):
        pass
    if documents.sha256() != sink.finished.get("documents"):
        raise UserError(
            f"{sink.target}: finished, of other documents than there are now; --overwrite "
            "replaces it"
        )
    rejected = sink.finished.get("rejects")
    without = f", without {plural(rejected, 'rejected record')}" if rejected else ""
    log.info("%s: finished by the same model and options%s; nothing to do", sink.target, without)
    return EXIT_REJECTS if rejected else EXIT_OK


def _read_first(documents: Documents, on_error: str, beside: Beside | None) -> None:
    """Read the first record, which fails where the input is no file of documents.

    Raises:
        DataError: it cannot be read or, where such records are not skipped, lacks a kept field.
    """
    skip = on_error == "skip"
    with closing(documents(on_error=_ignore if skip else None)) as records:
        first = next(records, None)
    if first and beside and not skip:
        beside(first)


def _ignore(error: DataError, raw: bytes) -> None:
    """Leave out a record that cannot be read."""


@contextmanager
def _layout_named(format: str | None, trained: str | None) -> Iterator[None]:
    """Add the layout of the training to errors of documents for which none was given."""
    try:
        yield
    except DataError as error:
        if format is None and trained not in (None, *LINES):
            raise DataError(f"{error}; trained with --format {trained}") from error
        raise


def _log_summary(counts: Counts, rejects: Rejects, max_length: int) -> None:
    if counts.labels:
        log.info("answers: %s", counted(counts.labels))
    parts = [counts.rate(), f"{plural(counts.long, 'document')} longer than {max_length:,} tokens"]
    if counts.cut:
        parts.append(
            f"{counts.cut:,} cut off: {plural(counts.unread, 'token')} "
            f"({counts.unread / max(counts.lengths, 1):.1%}) not read"
        )
    if counts.resumed:
        parts.append(f"{plural(counts.resumed, 'document')} answered before")
    if rejects.count:
        parts.append(f"{plural(rejects.count, 'record')} rejected, see {rejects.path}")
    log.info("%s", "; ".join(parts))
    if not counts.documents and not counts.resumed and not rejects.count:
        log.warning("no documents in the input, so no answers")
    if doubt := wordless(counts.wordless, counts.documents):
        log.warning("%s", doubt)
