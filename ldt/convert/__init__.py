"""Turn a short-input encoder into a long-input one, and prove that it still computes the same."""

import errno
import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from ldt.convert.lengthen import POSITION_TABLES, head_class, long_config, long_weights
from ldt.convert.proof import prove
from ldt.convert.report import Report, _shown
from ldt.convert.source import find_source, read_source
from ldt.errors import ModelError, ResourceError, UserError
from ldt.inference.masked_text import MaskedText, score, scorer, texts
from ldt.model import LdtForMaskedLM, load, load_tokenizer
from ldt.model.config import upper_middle_layers
from ldt.model.loading import quiet

WINDOWS = {"longformer": 512, "poolingformer": 128}  # architecture -> window, unless one is given

_NOT_TOKENIZER = (  # of tokenizer_config.json: where it came from, and how somebody once called it
    "is_local",
    "local_files_only",
    "max_length",
    "name_or_path",
    "pad_to_multiple_of",
    "special_tokens_map_file",
    "stride",
    "tokenizer_file",
    "truncation_strategy",
)
_SAMPLE = "Nothing in this agreement (see § 4.2) limits liability for caffè or naïve résumés.\n"


def convert(
    source,
    target=None,
    *,
    architecture="longformer",
    max_length=4096,
    window=None,
    positions="tile",
    second_level=None,
    check=None,
    overwrite=False,
) -> Report:
    """Write a long-input model made from a short-input one, after a proof that it is the same.

    A ``longformer`` is a plain one, so transformers' LongformerModel loads it too. Its position
    table repeats the source's own in blocks of the source's own length; its global projections
    start as copies of the local ones. Sources that are long already are lengthened in the same
    way and keep their global projections. Weights are saved in float32. The same source gives the
    same bytes.

    A ``poolingformer`` has a second level besides (`ldt.model.pooling.SecondLevel`) in the quarter
    of the layers that the paper recommends. Its projections start as copies of the first level's,
    which gives them the scale of trained ones and makes them, before training, what the ablation
    "weight sharing" is; its cells start as means. Its gate starts at zero, so that the proof holds
    for it too, and training decides how much of it is added.

    The proof runs the source (by transformers) and the written folder (by ldt) on short inputs,
    which the window covers, on inputs where all attention is global, and at the last positions.
    Until it holds, everything is in a folder beside the target, whose name ends in ``.partial``.

    Args:
        source: folder or hub id of a BERT, RoBERTa, XLM-R, CamemBERT, Longformer or ldt model.
        target: folder to write; by default ``<last part of source>-<max_length>`` here, for a
            Poolingformer ``<last part of source>-poolingformer-<max_length>``.
        architecture: a name in `WINDOWS`.
        max_length: longest input of the result, in tokens, special tokens included.
        window: tokens in reach on both sides together, in every layer; None: as `WINDOWS` says,
            and where a Longformer is lengthened those that its layers have.
        positions: how the position table becomes long: ``tile`` repeats it, as in the paper;
            ``interpolate`` stretches it, ``random`` draws the new rows (to compare with).
        second_level: for a Poolingformer: keys of `LdtConfig` that begin with ``pooling`` and their
            values, where they are not the defaults.
        check: file, folder or pattern of text on which source and converted model are scored as
            masked LMs, on the same hidden words.
        overwrite: replace a model that is at ``target``.

    Raises:
        UserError: an option or the target cannot be used.
        ModelError: the source cannot be used, or the proof fails; nothing is at the target then,
            or what was there before.
        ResourceError: the disk is too small.
        ValueError: the keys of the second level do not go together.

    Source: Beltagy et al. 2020 (arXiv:2004.05150), section 5.
    """
    if architecture not in WINDOWS:
        raise UserError(f"--architecture must be {' or '.join(WINDOWS)}, got {architecture}")
    if window is not None and (window < 2 or window % 2):
        raise UserError(f"--window must be even and at least 2, got {window}")
    if positions not in POSITION_TABLES:
        names = ", ".join(POSITION_TABLES)
        raise UserError(f"--positions must be one of {names}, got {positions}")
    if max_length < 1:
        raise UserError(f"--max-length must be at least 1, got {max_length}")
    folder = find_source(source)
    if target is None:
        local = Path(source).expanduser().is_dir()
        name = Path(os.path.abspath(folder)).name if local else Path(source).name
        kind = "" if architecture == "longformer" else f"-{architecture}"
        target = f"{name}{kind}-{max_length}"
    target = Path(target).expanduser()
    place = Path(os.path.abspath(target))
    _check_target(target, place, folder, overwrite)

    found = read_source(folder)
    if max_length < found.length:
        raise UserError(
            f"--max-length {max_length} would cut the {found.length} positions of {source}; "
            f"{found.length} is the least"
        )
    if check and not found.head:
        raise UserError(f"--check needs a masked-LM head; {source} has none")
    tokenizer = load_tokenizer(folder, found.config)
    pooling = {}
    if architecture == "poolingformer":
        layers = upper_middle_layers(found.config.num_hidden_layers)
        pooling = {"pooling_layers": layers, "pooling_gate": True} | (second_level or {})
    windows = [window or WINDOWS[architecture]] * found.config.num_hidden_layers
    if window is None and found.windows and architecture == "longformer":
        windows = found.windows
    config = long_config(found, tokenizer, max_length, windows, pooling)
    weights = long_weights(found, config, positions)
    partial = place.with_name(place.name + ".partial")
    try:
        with _writing(target):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            _write(partial, config, weights, tokenizer)
        report = Report(
            source=str(source),
            target=target,
            kind=found.kind,
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            parameters=sum(tensor.numel() for tensor in weights.values()),
            source_length=found.length,
            max_length=max_length,
            windows=windows,
            second_level=_second_level(config),
            head=found.head_note,
            source_windows=found.windows,
            left_out=found.left_out,
            positions=positions,
            copied=len(found.encoder) + len(found.head) - 1,
            created=len(weights) - len(found.encoder) - len(found.head),
            checks=prove(
                found, _load(found, partial), max_length, min(windows), positions == "tile"
            ),
            scores=[],
        )
        if not report.ok:
            raise ModelError(_failed(report))
        _check_tokenizer(tokenizer, partial, config)
        if check:
            report.scores = _scores(found, partial, tokenizer, check, max_length)
        with _writing(target):
            _move(partial, place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return report


def _scores(source, folder, tokenizer, check, max_length):
    """Bits per token on a text: the source at its own length, the converted model there and at
    its longest."""
    short, pad = source.length, source.config.pad_token_id
    text = MaskedText(texts(check), tokenizer, [short, max_length])
    before = scorer(load(source.folder, LdtForMaskedLM)) if source.windows else _plain(source.model)
    after = scorer(load(folder, LdtForMaskedLM))
    return [
        (f"source at {short} tokens", score(before, text, short, pad=pad)),
        (f"converted at {short}", score(after, text, short, pad=pad)),
        (f"converted at {max_length}", score(after, text, max_length, pad=pad)),
    ]


def _plain(model):
    """The logits at the labels of a model of transformers."""

    def logits(batch):
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        return model(**inputs).logits[batch["labels"] != -100]

    return logits


def _second_level(config):
    """The second level in words."""
    if not config.pooling_layers:
        return ""
    layers = ", ".join(map(str, config.pooling_layers))
    return (
        f"layers {layers} (from 0 on): {config.pooling_window} tokens in cells of "
        f"{config.pooling_size}, one every {config.pooling_stride} ({config.pooling})"
    )


def _load(source, folder):
    """The converted model as it was written, with a pooler only where the source has one."""
    options = {} if source.head else {"add_pooling_layer": source.model.pooler is not None}
    return head_class(source).from_pretrained(folder, dtype=torch.float32, **options).eval()


def _failed(report):
    worst = max(report.checks, key=lambda check: (not check.ok, check.difference))
    return (
        f"{report.source}: the converted model differs from its source by {worst.difference:.1e} "
        f"({worst.name}), the tolerance is {worst.tolerance:.1e}; {_shown(report.target)} is not "
        "written"
    )


def _write(folder, config, weights, tokenizer):
    """The files of a model; nothing in them depends on the time or on a path."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    free = shutil.disk_usage(folder).free
    if free < 1.1 * size:
        raise ResourceError(
            f"{folder.parent}: {size / 2**20:,.0f} MiB are needed, {free / 2**20:,.0f} MiB are free"
        )
    config.save_pretrained(folder)
    weights = {name: tensor.contiguous() for name, tensor in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.model_max_length = config.max_position_embeddings - config.pad_token_id - 1
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    kept = {k: v for k, v in json.loads(file.read_text("utf-8")).items() if k not in _NOT_TOKENIZER}
    text = json.dumps(kept, indent=2, sort_keys=True, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


@quiet()  # transformers warns of a sample longer than a very small model
def _check_tokenizer(tokenizer, folder, config):
    """The saved tokenizer cuts text as the source's does."""
    saved = load_tokenizer(folder, config)
    same = saved.get_vocab() == tokenizer.get_vocab()
    if not same or saved(_SAMPLE).input_ids != tokenizer(_SAMPLE).input_ids:
        raise ModelError(
            f"the {type(tokenizer).__name__} of the source is another one after it is saved and "
            "loaded"
        )


def _check_target(target, place, folder, overwrite):
    """Refuse a target that is in use, before anything is loaded."""
    here = folder.resolve()
    if place.resolve() in (here, *here.parents):
        raise UserError(f"{target} is or holds the source; name another target")
    if place.exists() or place.is_symlink():
        if not overwrite:
            raise UserError(f"{target} exists already; --overwrite replaces it")
        if not place.is_dir() or not (place / "config.json").is_file():
            raise UserError(f"{target} is not a model, which --overwrite would replace")
    parent = place.parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"{target}: {parent} is not a folder that can be written to")


def _move(partial, place):
    """Rename to the target; a model that is there stays until the new one is in its place."""
    if not place.exists():
        partial.rename(place)
        return
    old = place.with_name(place.name + ".old")
    shutil.rmtree(old, ignore_errors=True)  # of a run that was killed here
    place.rename(old)
    try:
        partial.rename(place)
    except OSError:
        old.rename(place)
        raise
    if old.is_symlink():
        old.unlink()
    else:
        shutil.rmtree(old)


@contextmanager
def _writing(target):
    try:
        yield
    except (OSError, SafetensorError) as error:
        full = isinstance(error, SafetensorError) or error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind = ResourceError if full else UserError
        raise kind(f"{target}: cannot be written: {error}") from error
