"""Config and weights of a long model, made of those of a short one.

A ``longformer`` is a plain one, so transformers' LongformerModel loads it too. Its position table
repeats the source's own in blocks of the source's own length; its global projections start as
copies of the local ones. Sources that are long already are lengthened in the same way and keep
their global projections.

A ``poolingformer`` has a second level besides (`ldt.model.pooling.SecondLevel`) in the quarter of
the layers that the paper recommends. Its projections start as copies of the first level's, which
gives them the scale of trained ones and makes them, before training, what the ablation "weight
sharing" is; its cells start as means. Its gate starts at zero, so that the converted model equals
its source, and training decides how much of the second level is added.
"""

import torch
from torch.nn import functional as F

from ldt.model import usable_length
from ldt.model.pooling import SecondLevel

_LOCAL = ("query", "key", "value")
_SPECIAL = ("bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id")


def long_config(source, tokenizer, max_length, windows, pooling):
    """The config of the converted model; special ids that the source lacks are the tokenizer's.

    Args:
        source: `ldt.convert.source.Source`.
        windows: of the layers.
        pooling: keys of the second level that are not the defaults.
    """
    special = {}
    for name in _SPECIAL:
        value = getattr(source.config, name, None)
        special[name] = getattr(tokenizer, name, None) if value is None else value
    config = source.target_config(
        **{field: getattr(source.config, field) for field in source.fields},
        **special,
        **pooling,
        **source.lengths(max_length),
        attention_window=windows,
        architectures=[source.target_class.__name__],
        dtype="float32",
    )
    config.check()
    return config


def long_weights(source, config, positions="tile"):
    """{name: tensor} of the converted model, under the names of the class that it is saved as.

    Args:
        source: `ldt.convert.source.Source`.
        config: of the converted model.
        positions: a name in `POSITION_TABLES`.
    """
    prefix = source.prefix if source.head else ""
    weights = dict(source.head) | {prefix + name: tensor for name, tensor in source.base.items()}
    make, table = POSITION_TABLES[positions], source.base[source.positions]
    weights[prefix + source.positions] = make(
        table, source.first, source.leading, usable_length(config)
    )
    for layer in range(config.num_hidden_layers):
        stem = source.attention.format(layer)
        for part in (f"{name}{{}}.{kind}" for name in _LOCAL for kind in ("weight", "bias")):
            twin = prefix + stem + part.format("_global")
            weights.setdefault(twin, source.base[stem + part.format("")].clone())
        if layer not in config.pooling_layers:
            continue
        for name, start in SecondLevel(config).state_dict().items():
            weights[f"{prefix}{stem}pooled.{name}"] = source.base.get(stem + name, start).clone()
    return weights


def long_positions(table, first, leading, max_length):
    """Repeat the rows of a position table that texts use, up to a length.

    Args:
        table: [rows, width].
        first: row of the first token of a text.
        leading: rows before that of the first token in the new table; the source's own, zeros
            where it has fewer, and without the last of them where it has more.

    Returns:
        [leading + max_length, width]
    """
    rows = first + torch.arange(max_length) % (len(table) - first)
    return torch.cat([_leading(table, first, leading), table[rows]])


def interpolated_positions(table, first, leading, max_length):
    """Stretch the rows of a position table that texts use over a length, linearly.

    Arguments and result are those of `long_positions`. The first and the last row are the
    source's; every other one lies between two of it.
    """
    used = table[first:].T[None]
    rows = F.interpolate(used, size=max_length, mode="linear", align_corners=True)[0].T
    return torch.cat([_leading(table, first, leading), rows])


def random_positions(table, first, leading, max_length):
    """The source's rows, and behind them random ones of the same mean and deviation.

    Arguments and result are those of `long_positions`. It is what the paper compares with
    (table 5); the same source gives the same rows.
    """
    used = table[first:]
    generator = torch.Generator().manual_seed(0)
    new = torch.randn(max_length - len(used), table.shape[1], generator=generator)
    return torch.cat([_leading(table, first, leading), used, used.mean() + used.std() * new])


def _leading(table, first, leading):
    """The rows before that of the first token."""
    start = table.new_zeros(leading, table.shape[1])
    start[:first] = table[: min(first, leading)]
    return start


POSITION_TABLES = {
    "tile": long_positions,
    "interpolate": interpolated_positions,
    "random": random_positions,
}
