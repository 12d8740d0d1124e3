"""Make encoders with rotary positions long: longer inputs, windows for full-attention layers, new
RoPE parameters.

Weights are unchanged, since there is no position table. Full attention becomes a window plus the
task's global tokens, so time and memory grow linearly with length. The result equals the source for
documents up to half the window, and at any length if all tokens are global. Layers with a window
keep it and their RoPE parameters.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from ldt.convert.source import PROVED_LENGTH, compared, random_rows
from ldt.errors import ModelError, UserError
from ldt.inference.agreement import OutputCheck
from ldt.model import LdtForMaskedLM, LdtModernBertModel, load, usable_length
from ldt.model.base import LdtPreTrainedModel
from ldt.model.loading import quiet, read_config
from ldt.model.weights import read_weights

KINDS = {  # model_type -> how transformers' classes of it begin
    "modernbert": "ModernBert",
    "ldt_modernbert": "ModernBert",  # converted before, or otherwise with what only ldt computes
}
SCALINGS = ("linear", "yarn")
_FULL = "full_attention"


@dataclass
class RotarySource:
    """Source model and the config of the result.

    Attributes:
        folder: folder of its files.
        kind: its model_type.
        model: ldt's model, with the masked-LM head if the file has one.
        config: config of the converted model.
    """

    folder: Path
    kind: str
    model: transformers.PreTrainedModel
    config: transformers.PreTrainedConfig

    generation = None

    @property
    def head(self) -> bool:
        """True if there is a masked-LM head."""
        return isinstance(self.model, LdtForMaskedLM)

    @property
    def length(self) -> int:
        """Longest input of the source in tokens."""
        return usable_length(self.model.config)

    def weights(self) -> dict[str, torch.Tensor]:
        """Weights of the source by name; those that are tied are there once."""
        weights = self.model.state_dict()
        if self.head and self.model.config.tie_word_embeddings:
            for name in self.model._tied_weights_keys:
                weights.pop(name)
        return weights

    def load(self, folder: Path) -> transformers.PreTrainedModel:
        """Load the converted model from a folder, in the class of the source."""
        return load(folder, type(self.model))

    def facts(self) -> dict[str, str]:
        """Lines of the conversion's report by subject, such as "longest input": "8,192 -> 32,768
        tokens"."""
        config, weights = self.config, self.weights()
        parameters = sum(tensor.numel() for tensor in weights.values())
        full = config.layer_types.count(_FULL)
        window = "none, they see the whole document"
        if config.full_attention_window:
            window = f"{config.full_attention_window:,} tokens, both sides together"
        local = config.local_attention // 2 * 2
        angles = config.rope_parameters[_FULL]
        theta, rope_type = angles["rope_theta"], angles["rope_type"]
        scaled = "" if rope_type == "default" else f", {rope_type} scaling by {angles['factor']:g}"
        return {
            "model": f"{self.kind.removeprefix('ldt_')}, {config.num_hidden_layers} layers of "
            f"width {config.hidden_size}, {parameters:,} parameters",
            "longest input": f"{self.length:,} -> {config.max_position_embeddings:,} tokens",
            "full layers": f"{full}, window: {window}",
            "local layers": f"{len(config.layer_types) - full}, window: {local} tokens, as before",
            "angles": f"theta {theta:,g}{scaled} in full layers; local ones as before",
            "masked-LM head": "kept" if self.head else "none in the source",
            "weights": f"{len(weights)} tensors copied",
        }


def read_source(
    folder: Path,
    kind: str,
    source: str | Path,
    max_length: int | None,
    window: int | None,
    rope_theta: float | None,
    rope_scaling: str | None,
) -> RotarySource:
    """Read the `RotarySource` in a folder.

    Args:
        folder: folder of the model.
        kind: its model_type, of `KINDS`.
        source: its name, for messages.
        max_length: longest input of the converted model in tokens; None keeps the source's.
        window: window of the full-attention layers in tokens, both sides together; None keeps them
            full.
        rope_theta: RoPE base of the full-attention layers; None keeps the source's.
        rope_scaling: ``NAME:FACTOR`` for the same layers, NAME in `SCALINGS`; None keeps the
            source's.

    Raises:
        ModelError: config or weights cannot be used.
        UserError: the length is below the source's, or an option does not fit it.
    """
    config = read_config(folder)
    length = usable_length(config)
    max_length = length if max_length is None else max_length
    if max_length < length:
        raise UserError(
            f"--max-length {max_length} would cut the {length} tokens of {source}; "
            f"{length} is the least"
        )
    head = "decoder.bias" in read_weights(folder, mapped=True)
    model = load(folder, LdtForMaskedLM if head else LdtModernBertModel)
    if head and model.new_weights:
        raise ModelError(f"{folder}: weights are missing: {', '.join(model.new_weights)}")
    angles = {kind: dict(values) for kind, values in config.rope_parameters.items()}
    if rope_theta is not None:
        angles[_FULL]["rope_theta"] = rope_theta
    if rope_scaling is not None:
        name, factor = _scaling(rope_scaling)
        angles[_FULL] |= {"rope_type": name, "factor": factor}
        if name == "yarn":
            angles[_FULL]["original_max_position_embeddings"] = length
    config.rope_parameters = angles
    config.max_position_embeddings = max_length
    if window is not None:
        config.full_attention_window = window
    config.architectures = [type(model).__name__]
    config.dtype = "float32"
    try:
        config.check()
    except ValueError as error:
        raise UserError(f"{source}: {error}") from error
    return RotarySource(folder, kind, model, config)


@quiet()
@torch.no_grad()
def prove(source: RotarySource, model: transformers.PreTrainedModel) -> list[OutputCheck]:
    """Compare a converted model with its source on random tokens, by transformers where it can run
    the source.

    The source runs with the RoPE parameters of the converted model; their effect cannot be proved.
    ModelError if the source's outputs are not finite.
    """
    config = source.config
    windows = {source.model.config.full_attention_window, config.full_attention_window}
    longest = min(source.length, PROVED_LENGTH)
    last = config.max_position_embeddings - longest
    if len(windows) == 1:
        cases = [("full layers" if windows == {None} else "windows", longest, 0, False)]
    else:
        short = min(min(windows - {None}) // 2 + 1, longest)
        cases = [("window", short, 0, False)]
        if config.global_layers != "none":
            cases.append(("global attention", longest, 0, True))
    cases.append(("last positions", cases[0][1], last, False))
    theirs = _of_transformers(source) if source.model.config.is_plain else _of_ldt(source)
    return [_compare(name, source, theirs, model, *case) for name, *case in cases]


def _of_ldt(source):
    config = type(source.config).from_dict(_turned(source, source.model.config.to_dict()))
    model = type(source.model)(config)
    model.load_state_dict(source.model.state_dict())
    return model.float().eval()


def _turned(source, values):
    return values | {
        "rope_parameters": source.config.rope_parameters,
        "max_position_embeddings": source.config.max_position_embeddings,
    }


def _of_transformers(source):
    values = _turned(source, source.model.config.to_diff_dict())
    beginning = KINDS[source.kind]
    config = getattr(transformers, f"{beginning}Config").from_dict(values)
    config._attn_implementation = "sdpa"
    cls = getattr(transformers, beginning + ("ForMaskedLM" if source.head else "Model"))
    model = cls(config)
    model.load_state_dict(source.weights(), strict=False)
    model.tie_weights()
    return model.float().eval()


def _compare(name, source, theirs, model, length, offset, everywhere):
    inputs, real, _ = random_rows(source, length)
    inputs["position_ids"] = offset + torch.arange(length)[None]
    outputs = []
    for each in (theirs, model):
        ours = isinstance(each, LdtPreTrainedModel)
        more = {"global_attention_mask": real.long() * everywhere} if ours else {}
        states = each.base_model(**inputs, **more).last_hidden_state[real]
        outputs.append([states])
        if source.head:
            outputs[-1].append(each.decoder(each.head(states[:64])))
    return compared(name, length, *outputs, source.folder)


def _scaling(text):
    name, _, factor = text.partition(":")
    try:
        number = float(factor)
    except ValueError:
        number = 0.0
    if name not in SCALINGS or not 1 <= number < float("inf"):
        raise UserError(
            f"--rope-scaling must be {' or '.join(f'{each}:FACTOR' for each in SCALINGS)} with a "
            f"factor of 1 or more, got {text}"
        )
    return name, number
