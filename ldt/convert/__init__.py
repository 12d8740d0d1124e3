"""Turn a short-input model into a long-input one, and prove that it still computes the same."""

import json
import os
import shutil
from pathlib import Path

from safetensors.torch import save_file

from ldt.convert import rotary
from ldt.convert.encoder import EncoderSource
from ldt.convert.kinds import SEQ2SEQ, source_config
from ldt.convert.lengthen import POSITION_TABLES, long_config, long_weights
from ldt.convert.proof import prove
from ldt.convert.report import ConversionReport, Proved, shown_path
from ldt.convert.seq2seq import Seq2SeqSource
from ldt.convert.source import find_source
from ldt.errors import ModelError, ResourceError, UserError
from ldt.inference.perplexity import MaskedText, score, scorer, texts
from ldt.io.files import check_new_folder, new_folder, writing
from ldt.model import LdtForMaskedLM, load, load_tokenizer, usable_length
from ldt.model.config import upper_middle_layers
from ldt.model.config_file import read_values
from ldt.model.loading import quiet

ARCHITECTURES = ("longformer", "poolingformer")

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
    max_length=None,
    window=None,
    positions="tile",
    second_level=None,
    check=None,
    overwrite=False,
    rope_theta=None,
    rope_scaling=None,
) -> Proved:
    """Write a long-input model made from a short-input one, after a proof that it is the same.

    `ldt.convert.lengthen` says how config and weights become long, `ldt.convert.proof` what is
    compared; of encoders with rotary positions `ldt.convert.rotary` says both. Everything is in a
    temporary folder beside the target until the proof holds. Weights are saved in float32. The same
    source gives the same bytes.

    Args:
        source: folder or hub id of a BERT, RoBERTa, XLM-R, CamemBERT, BART, Longformer, LED or
            ModernBERT.
        target: folder to write; by default ``<last part of source>-<max_length>`` here, for a
            Poolingformer ``<last part of source>-poolingformer-<max_length>``.
        architecture: a name in `ARCHITECTURES`.
        max_length: longest input of the result, in tokens, special tokens included; None: 4,096,
            and 16,384 where the source is a BART or LED; of a ModernBERT its own.
        window: tokens in reach on both sides together, in every layer; None: 512, of a BART 1,024,
            in a Poolingformer 128, and of a Longformer or LED those that its layers have. Of a
            ModernBERT it is that of the full layers; None: they stay full.
        positions: a name in `ldt.convert.lengthen.POSITION_TABLES`.
        second_level: for a Poolingformer: keys of `LdtConfig` that begin with ``pooling`` and their
            values, where they are not the defaults.
        check: file, folder or pattern of text on which source and converted model are scored as
            masked LMs, on the same hidden words.
        overwrite: replace a model that is at ``target``.
        rope_theta, rope_scaling: of a ModernBERT, see `ldt.convert.rotary.read`.

    Raises:
        UserError: an option or the target cannot be used.
        ModelError: the source cannot be used, or the proof fails; nothing is at the target then,
            or what was there before.
        ResourceError: the disk is too small.
        ValueError: the keys of the second level do not go together.

    Source: Beltagy et al. 2020 (arXiv:2004.05150), section 5.
    """
    _check_options(architecture, window, positions, max_length)
    folder = find_source(source)
    kind = read_values(folder).get("model_type")
    if kind in rotary.KINDS:
        _check_rotary(kind, architecture, positions)
        rotation = max_length, window, rope_theta, rope_scaling
        return _convert_rotary(folder, kind, source, target, rotation, check, overwrite)
    if rope_theta is not None or rope_scaling is not None:
        raise UserError(
            f"--rope-theta and --rope-scaling are for rotary positions ({', '.join(rotary.KINDS)})"
        )
    options = architecture, max_length, window, positions, second_level
    return _convert_table(folder, source, target, options, check, overwrite)


def _convert_table(folder, source, target, options, check, overwrite):
    """`convert` of a model with a table of positions; options in the order of its arguments."""
    architecture, max_length, window, positions, second_level = options
    kind, config = source_config(folder)
    family = Seq2SeqSource if kind in SEQ2SEQ else EncoderSource
    max_length = family.longest if max_length is None else max_length
    target = Path(target or _default_name(source, folder, architecture, max_length)).expanduser()
    # Refused before the source is read, which takes time.
    check_new_folder(target, folder, overwrite)
    origin = family.read(folder, kind, config)
    _check_source(origin, source, max_length, check)
    tokenizer = load_tokenizer(folder, origin.config, adopt_padding=kind == "bert")
    windows, pooling = _attention(origin, architecture, window, second_level)
    config = long_config(origin, tokenizer, max_length, windows, pooling)
    weights = long_weights(origin, config, positions)

    def report(model):
        checks = prove(origin, model, max_length, min(windows), positions == "tile")
        return _report(source, target, origin, config, weights, positions, checks)

    return _written(target, origin, config, weights, tokenizer, report, check, max_length)


def _convert_rotary(folder, kind, source, target, options, check, overwrite):
    """`convert` of an encoder with rotary positions; options as `ldt.convert.rotary.read` has."""
    origin = rotary.read(folder, kind, source, *options)
    longest = usable_length(origin.config)
    target = Path(target or _default_name(source, folder, "longformer", longest)).expanduser()
    check_new_folder(target, folder, overwrite)
    if check and not origin.head:
        raise UserError(f"--check needs a masked-LM head; {source} has none")
    tokenizer = load_tokenizer(folder, origin.model.config)

    def report(model):
        return rotary.report(origin, source, target, rotary.prove(origin, model))

    weights = origin.weights()
    return _written(target, origin, origin.config, weights, tokenizer, report, check, longest)


def _written(target, origin, config, weights, tokenizer, report_of, check, longest):
    """Write a converted model, and keep it if its proof holds.

    Args:
        report_of: makes the `Proved` of the model as it was written, so that the proof covers
            saving and loading too.
        check, longest: text to score both models on, if there is any, and the longest input.
    """
    place = Path(os.path.abspath(target))
    with writing(target), new_folder(place) as folder:
        _write(folder, config, weights, tokenizer, origin.generation)
        report = report_of(origin.load(folder))
        _check_proof(report)
        _check_tokenizer(tokenizer, folder, config)
        if check:
            report.scores = _scores(origin, folder, tokenizer, check, longest)
    return report


def _check_rotary(kind, architecture, positions):
    """Refuse options that are of tables of positions."""
    kind = kind.removeprefix("ldt_")
    if architecture != "longformer":
        raise UserError(f"--architecture {architecture}: a {kind} stays one; leave it out")
    if positions != "tile":
        raise UserError(
            f"--positions {positions}: a {kind} has no table of positions; leave it out"
        )


def _check_options(architecture, window, positions, max_length):
    if architecture not in ARCHITECTURES:
        raise UserError(f"--architecture must be {' or '.join(ARCHITECTURES)}, got {architecture}")
    if window is not None and (window < 2 or window % 2):
        raise UserError(f"--window must be even and at least 2, got {window}")
    if positions not in POSITION_TABLES:
        names = ", ".join(POSITION_TABLES)
        raise UserError(f"--positions must be one of {names}, got {positions}")
    if max_length is not None and max_length < 1:
        raise UserError(f"--max-length must be at least 1, got {max_length}")


def _default_name(source, folder, architecture, max_length):
    """Name of the target if none is given: roberta-base-4096."""
    local = Path(source).expanduser().is_dir()
    name = Path(os.path.abspath(folder)).name if local else Path(source).name
    kind = "" if architecture == "longformer" else f"-{architecture}"
    return f"{name}{kind}-{max_length}"


def _check_source(origin, source, max_length, check):
    """Refuse a source that cannot become so long or be checked."""
    if check and origin.kind in SEQ2SEQ:
        raise UserError(
            f"--check scores masked LMs; {source} is a {origin.kind}, which has a decoder"
        )
    if max_length < origin.length:
        raise UserError(
            f"--max-length {max_length} would cut the {origin.length} positions of {source}; "
            f"{origin.length} is the least"
        )
    if check and not origin.head:
        raise UserError(f"--check needs a masked-LM head; {source} has none")


def _attention(origin, architecture, window, second_level):
    """(window of each layer, keys of the second level)."""
    layers = origin.config.num_hidden_layers
    windows = [window or origin.default_windows[architecture]] * layers
    if architecture == "poolingformer":
        pooling = {"pooling_layers": upper_middle_layers(layers), "pooling_gate": True}
        return windows, pooling | (second_level or {})
    if window is None and origin.windows:
        return origin.windows, {}
    return windows, {}


def _report(source, target, origin, config, weights, positions, checks):
    return ConversionReport(
        source=str(source),
        target=target,
        kind=origin.kind,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        parameters=sum(tensor.numel() for tensor in weights.values()),
        source_length=origin.length,
        max_length=usable_length(config),
        windows=config.attention_window,
        second_level=_second_level(config),
        head=origin.head_note,
        further=origin.facts,
        source_windows=origin.windows,
        left_out=origin.left_out,
        positions=positions,
        copied=len(origin.base) + len(origin.head) - 1,
        created=len(weights) - len(origin.base) - len(origin.head),
        checks=checks,
        scores=[],
    )


def _scores(source, folder, tokenizer, check, max_length):
    """Bits per token on a text: the source at its own length, the converted model there and at
    its longest."""
    short, pad = source.length, source.config.pad_token_id
    text = MaskedText(texts(check), tokenizer, [short, max_length])
    ours = isinstance(source.model, LdtForMaskedLM)
    if not ours and not source.windows:
        before = _plain(source.model)
    else:
        before = scorer(source.model if ours else load(source.folder, LdtForMaskedLM))
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


def _check_proof(report):
    """Refuse a model that is not what its source is."""
    if report.ok:
        return
    worst = max(report.checks, key=lambda check: (not check.ok, check.tolerance, check.difference))
    by = f"{worst.difference:.1e} ({worst.name}), the tolerance is {worst.tolerance:.1e}"
    if not worst.tolerance:
        by = f"{worst.difference} tokens ({worst.name})"
    raise ModelError(
        f"{report.source}: the converted model differs from its source by {by}; "
        f"{shown_path(report.target)} is not written"
    )


def _write(folder, config, weights, tokenizer, generation):
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
    if generation:
        generation.to_json_file(folder / "generation_config.json")
    tokenizer.model_max_length = usable_length(config)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    facts = {
        k: v for k, v in json.loads(file.read_text("utf-8")).items() if k not in _NOT_TOKENIZER
    }
    text = json.dumps(facts, indent=2, sort_keys=True, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


@quiet()  # transformers warns of a sample longer than a very small model
def _check_tokenizer(tokenizer, folder, config):
    """Refuse a tokenizer that, saved and loaded, cuts text another way than the source's."""
    saved = load_tokenizer(folder, config)
    same = saved.get_vocab() == tokenizer.get_vocab()
    if not same or saved(_SAMPLE).input_ids != tokenizer(_SAMPLE).input_ids:
        raise ModelError(
            f"the {type(tokenizer).__name__} of the source is another one after it is saved and "
            "loaded"
        )
