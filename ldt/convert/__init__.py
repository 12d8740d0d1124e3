"""Convert a short-input model to a long-input one, with a proof that both compute the same."""

import json
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from ldt.convert import rotary
from ldt.convert.kinds import SEQ2SEQ, source_config
from ldt.convert.seq2seq import Seq2SeqSource
from ldt.convert.source import EncoderSource, long_config, long_weights, prove
from ldt.errors import ModelError, UserError
from ldt.inference.agreement import TOLERANCE, OutputCheck
from ldt.inference.perplexity import MaskedText, Score, score, scorer, texts
from ldt.io.files import check_new_folder, new_folder, require_space, writing
from ldt.model import LdtForMaskedLM, load, load_tokenizer, sentence_transformers, usable_length
from ldt.model.config import upper_middle_layers
from ldt.model.config_file import read_values
from ldt.model.loading import TOKENIZERS, find_folder, quiet
from ldt.model.weights import WEIGHTS

_NOT_TOKENIZER = (  # of tokenizer_config.json: where it came from, and how somebody once called it
    "is_local local_files_only max_length name_or_path pad_to_multiple_of special_tokens_map_file "
    "stride tokenizer_file truncation_strategy"
).split()
_SAMPLE = "Nothing in this agreement (see § 4.2) limits liability for caffè or naïve résumés.\n"


@dataclass
class ConversionReport:
    """Result of a conversion. `lines` or `str` give it as text.

    Attributes:
        source: source as given by the user.
        target: folder of the converted model.
        facts: lines of the report by subject.
        checks: the proof.
        scores: scores on a text before and after; empty if no text was given.
    """

    source: str
    target: Path
    facts: dict[str, str]
    checks: list[OutputCheck]
    scores: list[tuple[str, Score]]

    @property
    def ok(self) -> bool:
        """True if all checks of the proof hold."""
        return all(check.ok for check in self.checks)

    @property
    def difference(self) -> float:
        """Largest absolute difference in any check: of outputs, or of generated tokens the
        number."""
        return max(check.difference for check in self.checks)

    def lines(self) -> list[str]:
        """The report as lines of text; the proof and the next command come last."""
        name = _shown(self.target)
        return [
            f"{self.source} -> {name}",
            *(f"  {what:<18}{fact}" for what, fact in self.facts.items()),
            "proof: source and converted model on random tokens, largest difference",
            *(f"  {check.name:<18}{check}" for check in self.checks),
            *(f"{name}: {row.bits_per_token:.3f} bits per token" for name, row in self.scores),
            f"next: ldt finetune recipe.yaml model.path={shlex.quote(name)}",
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())


@dataclass
class _Plan:
    """Model to write: the source, the folder, the parts of the converted model, the lines of the
    report by subject, and a function that checks the model after it was saved and loaded again."""

    origin: Any
    target: Path
    config: Any
    weights: dict[str, Any]
    tokenizer: Any
    facts: dict[str, str]
    prove: Callable[[Any], list[OutputCheck]]


def convert(
    source: str | Path,
    target: str | Path | None = None,
    *,
    architecture: str = "longformer",
    max_length: int | None = None,
    window: int | None = None,
    positions: str = "tile",
    second_level: dict[str, Any] | None = None,
    check: str | list[str] | None = None,
    overwrite: bool = False,
    rope_theta: float | None = None,
    rope_scaling: str | None = None,
) -> ConversionReport:
    """Write a long-input model made from a short-input one, after proving that they agree.

    `ldt.convert.source` and `ldt.convert.rotary` define how. Files stay in a temporary folder until
    the proof holds. Weights are saved in float32; equal sources give equal bytes.

    Args:
        source: folder or hub id of a BERT, RoBERTa, XLM-R, CamemBERT, BART, Longformer, LED or
            ModernBERT.
        target: folder to write; None: ``SOURCE-<max_length>`` here, or ``SOURCE-poolingformer-…``.
        architecture: ``longformer`` or ``poolingformer``.
        max_length: longest input of the result in tokens, with special tokens; None: 4,096, 16,384
            for BART and LED, the source's own for ModernBERT.
        window: window of every layer in tokens, both sides together; None: 512, 1,024 for BART, 128
            for a Poolingformer, the source's own for Longformer and LED. For ModernBERT that of its
            full layers; None keeps them full.
        positions: ``tile`` repeats the source's position table, ``interpolate`` stretches it,
            ``random`` appends random embeddings.
        second_level: for a Poolingformer, keys of `LdtConfig` with prefix ``pooling`` to set.
        check: text on which both are scored as masked LMs with the same masks; None scores nothing.
        overwrite: True replaces an existing model at ``target``.
        rope_theta: for ModernBERT, RoPE base of its full layers; None keeps the source's.
        rope_scaling: for the same layers ``linear:FACTOR`` or ``yarn:FACTOR``; None keeps theirs.

    Raises:
        UserError: an option or the target cannot be used.
        ModelError: the source cannot be used, or the proof fails; the target is unchanged.
        ResourceError: the disk is too small.
        ValueError: the keys of the second level contradict each other.

    Source: Beltagy et al. 2020 (arXiv:2004.05150), section 5.
    """
    if window is not None and (window < 2 or window % 2):
        raise UserError(f"--window must be even and at least 2, got {window}")
    folder = _source_folder(source)
    kind = read_values(folder).get("model_type")
    where = folder, target, architecture, overwrite
    origin: Any
    if kind in rotary.KINDS:
        origin = rotary.read_source(
            folder, kind, source, max_length, window, rope_theta, rope_scaling
        )
        path = _target(source, *where, usable_length(origin.config))
        plan = _rotary_plan(origin, path, architecture, positions)
    elif rope_theta is not None or rope_scaling is not None:
        raise UserError(
            f"--rope-theta and --rope-scaling are for rotary positions ({', '.join(rotary.KINDS)})"
        )
    else:
        kind, config = source_config(folder)
        family = Seq2SeqSource if kind in SEQ2SEQ else EncoderSource
        max_length = family.longest if max_length is None else max_length
        path = _target(source, *where, max_length)
        origin = family.read(folder, kind, config)
        windows, pooling = _attention(origin, architecture, window, second_level)
        plan = _long_plan(origin, path, max_length, windows, pooling, positions)
    return _written(plan, source, check)


def _rotary_plan(origin, target, architecture, positions) -> _Plan:
    if architecture != "longformer" or positions != "tile":
        raise UserError(
            f"--architecture {architecture} --positions {positions}: a ModernBERT stays one and "
            "has no table of positions; leave both out"
        )
    tokenizer = load_tokenizer(origin.folder, origin.model.config)
    weights, facts = origin.weights(), origin.facts()
    weights |= sentence_transformers.projection(origin.folder)

    def checks(model):
        return rotary.prove(origin, model)

    return _Plan(origin, target, origin.config, weights, tokenizer, facts, checks)


def _long_plan(origin, target, max_length, windows, pooling, positions) -> _Plan:
    if max_length < origin.length:
        raise UserError(
            f"--max-length {max_length} would cut the {origin.length} positions of "
            f"{origin.folder}; {origin.length} is the least"
        )
    tokenizer = load_tokenizer(origin.folder, origin.config, adopt_padding=origin.kind == "bert")
    config = long_config(origin, tokenizer, max_length, windows, pooling)
    weights = long_weights(origin, config, positions)
    parameters = sum(tensor.numel() for tensor in weights.values())
    sizes = ", ".join(map(str, sorted(set(config.attention_window))))
    before = ", ".join(map(str, sorted(set(origin.windows))))
    facts = {
        "model": f"{origin.kind}, {config.num_hidden_layers} layers of width "
        f"{config.hidden_size}, {parameters:,} parameters",
        "positions": f"{origin.length} -> {usable_length(config)} ({positions})",
        "window": f"{sizes} tokens, both sides together" + f" (source: {before})" * bool(before),
        **({"masked-LM head": origin.head_note} if origin.head_note else {}),
        **origin.facts,
    }
    if config.pooling_layers:
        layers = ", ".join(map(str, config.pooling_layers))
        facts["second level"] = (
            f"layers {layers} (from 0 on): {config.pooling_window} tokens in cells of "
            f"{config.pooling_size}, one every {config.pooling_stride} ({config.pooling})"
        )
    if origin.left_out:
        facts["not converted"] = ", ".join(origin.left_out)

    def checks(model):
        return prove(origin, model, max_length, min(windows), positions == "tile")

    return _Plan(origin, target, config, weights, tokenizer, facts, checks)


def _written(plan: _Plan, source, check) -> ConversionReport:
    if check and (plan.origin.kind in SEQ2SEQ or not plan.origin.head):
        raise UserError(f"--check needs a masked-LM head; {source} has none")
    with writing(plan.target), new_folder(Path(os.path.abspath(plan.target))) as folder:
        _write(folder, plan.config, plan.weights, plan.tokenizer, plan.origin.generation)
        checks = plan.prove(plan.origin.load(folder))
        report = ConversionReport(str(source), plan.target, plan.facts, checks, [])
        if not report.ok:
            _refuse(report)
        _check_tokenizer(plan.tokenizer, folder, plan.config)
        if check:
            length = usable_length(plan.config)
            report.scores = _scores(plan.origin, folder, plan.tokenizer, check, length)
    return report


def _source_folder(name):
    try:
        folder = find_folder(name)
    except ModelError as error:  # its advice is to convert something, as is being done
        raise ModelError(str(error).partition("; ldt convert")[0]) from error
    needed = {"config": ("config.json",), "weights": WEIGHTS, "tokenizer": TOKENIZERS}
    for what, names in needed.items():
        if not any((folder / name).is_file() for name in names):
            raise ModelError(
                f"{folder}: no {what} ({' or '.join(names)}); a source has config, weights and "
                "tokenizer in one folder"
            )
    return folder


def _target(source, folder, target, architecture, overwrite, max_length):
    """Folder to write, by default such as roberta-base-4096; checked before weights are read."""
    local = Path(source).expanduser().is_dir()
    name = Path(os.path.abspath(folder)).name if local else Path(source).name
    kind = "" if architecture == "longformer" else f"-{architecture}"
    path = Path(target or f"{name}{kind}-{max_length}").expanduser()
    check_new_folder(path, folder, overwrite)
    return path


def _attention(origin, architecture, window, second_level):
    """Windows of the layers, and keys of the second level."""
    layers = origin.config.num_hidden_layers
    windows = [window or origin.default_windows[architecture]] * layers
    if architecture == "poolingformer":
        pooling = {"pooling_layers": upper_middle_layers(layers), "pooling_gate": True}
        return windows, pooling | (second_level or {})
    if window is None and origin.windows:
        return origin.windows, {}
    return windows, {}


def _scores(source, folder, tokenizer, check, max_length):
    """Bits per token on a text: source at its length, converted model at the same and at
    its own."""
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

    def logits(batch):
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        return model(**inputs).logits[batch["labels"] != -100]

    return logits


def _refuse(report):
    worst = max(report.checks, key=lambda check: (not check.ok, check.scale, check.difference))
    by = f"{worst.difference:.1e} ({worst.name}), the tolerance is {TOLERANCE * worst.scale:.1e}"
    if not worst.scale:
        by = f"{worst.difference} tokens ({worst.name})"
    raise ModelError(
        f"{report.source}: the converted model differs from its source by {by}; "
        f"{_shown(report.target)} is not written"
    )


def _shown(path):
    """./name for a bare name, which could be mistaken for a hub id."""
    return f"./{path}" if len(path.parts) == 1 and not path.is_absolute() else str(path)


def _write(folder, config, weights, tokenizer, generation):
    """Write the files of a model; nothing in them depends on time or path."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    require_space(folder.parent, round(1.1 * size), "the model")
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
    saved = load_tokenizer(folder, config)
    same = saved.get_vocab() == tokenizer.get_vocab()
    if not same or saved(_SAMPLE).input_ids != tokenizer(_SAMPLE).input_ids:
        raise ModelError(
            f"the {type(tokenizer).__name__} of the source is another one after it is saved and "
            "loaded"
        )
