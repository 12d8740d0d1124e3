"""A model of ldt on padded batches in plain operators, for export; see `ldt.attention.padded`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ldt.attention import padded
from ldt.model.config import layer_dilations
from ldt.model.encoders.longformer import LdtModel
from ldt.model.encoders.modernbert import LdtModernBertModel, PredictionHead
from ldt.model.encoders.rotation import frequencies, tables, turned
from ldt.model.heads.base import ClassificationHead
from ldt.model.heads.classification import (
    LdtForSequenceClassification,
    LdtForTokenClassification,
)
from ldt.model.heads.questions import LdtForQuestionAnswering
from ldt.model.heads.ranking import LdtForCandidateRanking, LdtForMultipleChoice
from ldt.model.pooling import GATE_SCALE


class PaddedModel(nn.Module):
    """The weights of a head, run in operators that ONNX and OpenVINO have; for inference.

    Gives what the head does, with padding anywhere in a row; rows without a real token are of no
    meaning. Memory grows linearly with the length.

    Args:
        model: an ldt head, in float32, which `refused` does not refuse.
        globals_: the tokens with global attention: ``none``; ``first``, the first real token of
            each row; ``question``, all before the first separator; ``given``, by a mask.
    """

    def __init__(self, model: Any, globals_: str):
        super().__init__()
        self.model = model
        self.find = {
            "none": _no_globals,
            "first": _first,
            "question": _before_separator,
            "given": _given,
        }[globals_]
        self.head = _head_of(model)
        # Of the last layer only the first token is read, which is the only global one.
        reads_first = model.config.classifier_pooling == "cls" and self.head is _documents
        reads_first |= self.head is _choices
        self.short = globals_ == "first" and reads_first and type(model.base_model) is LdtModel

    def forward(
        self,
        input_ids,
        attention_mask,
        global_attention_mask=None,
        token_type_ids=None,
        positions=None,
    ):
        """A dict of the logits, by the names that the head's output has for them.

        Args:
            input_ids, attention_mask, global_attention_mask, token_type_ids: [b, n] int64;
                the third only where the global tokens are ``given``.
            positions: [b, candidates] int64, of a candidate ranking.
        """
        encoder, keep = self.model.base_model, attention_mask != 0
        far = self.find(self.model.config, input_ids, keep, global_attention_mask)
        encode = ENCODERS[type(encoder)]
        x, keep = encode(encoder, input_ids, keep, far, token_type_ids, self.short)
        return self.head(self.model, x, keep, positions)


def refused(model: Any) -> str | None:
    """Part of a model that `PaddedModel` lacks, in words; None where it has all of it."""
    config = model.config
    if type(model.base_model) not in ENCODERS:
        return f"the encoder {type(model.base_model).__name__}"
    if _head_of(model) is None:
        return f"the head {type(model).__name__}"
    if getattr(config, "causal", False):
        return "attention to the left alone"
    if hasattr(config, "attention_dilation") and any(map(_dilated, layer_dilations(config))):
        return "dilated attention"
    if getattr(config, "clip_global_distances", False):
        return "clipped distances"
    return None


def _dilated(dilations):
    return max(dilations) > 1


def _no_globals(config, ids, keep, given):
    return None


def _first(config, ids, keep, given):
    return padded.one_a_row(keep.int().argmax(1), keep)


def _before_separator(config, ids, keep, given):
    separator = keep & (ids == config.sep_token_id)
    end = separator.int().argmax(1, keepdim=True)
    return padded.any_number(keep & (torch.arange(ids.shape[1], device=ids.device) < end))


def _given(config, ids, keep, given):
    return padded.any_number(keep & (given != 0))


def _longformer(encoder, ids, keep, far, types, short):
    """(x [b, n, d], keep) of the last layer; ``short``: of its global tokens alone."""
    x = _embedded(encoder, ids, types)
    layers = encoder.encoder.layer
    sizes = [layer.attention.self.pattern["window"] for layer in layers]
    windows = {size: padded.Window(keep, far, size) for size in set(sizes)}
    whole = len(layers) - short
    for layer, size in list(zip(layers, sizes, strict=True))[:whole]:
        x = _layer(layer, x, windows[size])
    if short:
        x, keep = _layer_of_globals(layers[-1], x, windows[sizes[-1]]), far.present
    return x, keep


def _embedded(encoder, ids, types):
    parts, pad = encoder.embeddings, encoder.config.pad_token_id
    counted = (ids != pad).to(torch.int64)
    x = parts.word_embeddings(ids) + parts.position_embeddings(counted.cumsum(1) * counted + pad)
    if types is None:
        types = torch.zeros_like(ids)
    return parts.LayerNorm(x + parts.token_type_embeddings(types))


def _layer(layer, x, window):
    return _after_attention(layer, _attention(layer.attention.self, x, window), x)


def _layer_of_globals(layer, x, window):
    """[b, g, d], of the global tokens alone."""
    far = window.far
    asking = x.gather(1, far.positions[:, :, None].expand(-1, -1, x.shape[2]))
    return _after_attention(layer, _global_rows(layer.attention.self, x, window), asking)


def _after_attention(layer, out, x):
    x = _residual(layer.attention.output, out.transpose(1, 2).flatten(2), x)
    wide = layer.intermediate.activation(_linear(layer.intermediate.dense, x))
    return _residual(layer.output, wide, x)


def _attention(level, x, window):
    """[b, heads, n, dim], both kinds of attention, and the second level."""
    q, k, v = (_split(level, project, x) for project in (level.query, level.key, level.value))
    out, keep, far = window.attention(q, k, v), window.keep, window.far
    if far is not None:
        out = padded.fill_global_rows(out, _global_rows(level, x, window), far)
    second = level.pooled
    if second is None:
        return out
    part = second if hasattr(second, "query") else level
    read = out.transpose(1, 2).flatten(2) if second.reads_first_level else x
    q, k, v = (_split(level, project, read) for project in (part.query, part.key, part.value))
    more = padded.pooled_attention(q, k, v, second.weight, keep, far, **second.pattern)
    if second.gate is not None:
        more = more * (GATE_SCALE * second.gate)[:, None, None]
    return out + more


def _global_rows(level, x, window):
    """[b, heads, g, dim]"""
    far = window.far
    asking = x.gather(1, far.positions[:, :, None].expand(-1, -1, x.shape[2]))
    key, value = ((m.weight, m.bias) for m in (level.key_global, level.value_global))
    attend = padded.folded_global_attention if far.single else padded.global_attention
    return attend(_split(level, level.query_global, asking), x, key, value, window.keep)


def _split(level, project, x):
    return _linear(project, x).unflatten(2, (level.heads, -1)).transpose(1, 2)


def _residual(part, x, before):
    return part.LayerNorm(_linear(part.dense, x) + before)


def _modernbert(encoder, ids, keep, far, types=None, short=False):
    """(x [b, n, d], keep) of the last layer.

    Memory grows linearly with the length but in full layers without a window, whose scores are
    [b, heads, n, n].

    Args:
        encoder: `ldt.model.LdtModernBertModel`, without clipped distances.
        ids: [b, n] int64.
        keep: [b, n] bool, real tokens.
        far: `ldt.attention.padded.Globals`, None where no token is global.
        types, short: change nothing.
    """
    config = encoder.config
    x = encoder.embeddings.norm(encoder.embeddings.tok_embeddings(ids))
    first = keep.int().argmax(1, keepdim=True)
    place = torch.arange(ids.shape[1], device=ids.device) - first
    windows, angles = {}, {}
    for kind in set(config.layer_types):
        layer = encoder.layers[config.layer_types.index(kind)]
        seen = far if config.global_layers in ("all", kind.removesuffix("_attention")) else None
        size = layer.attn.window
        windows[kind] = None if size is None else padded.Window(keep, seen, size)
        angles[kind] = _angles(place, config, kind, x.dtype)
    for layer, kind in zip(encoder.layers, config.layer_types, strict=True):
        out = _rotary_attention(layer.attn, layer.attn_norm(x), keep, windows[kind], *angles[kind])
        x = x + _linear(layer.attn.Wo, out.transpose(1, 2).flatten(2))
        hot, gate = _linear(layer.mlp.Wi, layer.mlp_norm(x)).chunk(2, -1)
        x = x + _linear(layer.mlp.Wo, layer.mlp.act(hot) * gate)
    return encoder.final_norm(x), keep


def _angles(place, config, kind, dtype):
    """(cos, sin), [b, 1, n, dim / 2] each, of places [b, n]."""
    angles = tables(place.flatten(), *frequencies(config, kind), dtype)
    return tuple(x.unflatten(0, (-1, place.shape[1])).transpose(1, 2) for x in angles)


def _rotary_attention(level, x, keep, window, cos, sin):
    """[b, heads, n, dim]"""
    heads = level.config.num_attention_heads
    parts = _linear(level.Wqkv, x).unflatten(2, (3, heads, -1))
    q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
    q, k = turned(q, cos, sin), turned(k, cos, sin)
    if window is None:
        return padded.projected_global_attention(q, k, v, keep)
    out = window.attention(q, k, v)
    if window.far is None:
        return out
    at = window.far.positions[:, None, :, None].expand(-1, heads, -1, q.shape[3])
    rows = padded.projected_global_attention(q.gather(2, at), k, v, keep)
    return padded.fill_global_rows(out, rows, window.far)


def _linear(module, x):
    """A linear layer without the module itself, which chooses among libraries."""
    return F.linear(x, module.weight, module.bias)


def _of_first(x, keep):
    """[b, d], the first real token of each row of x [b, n, d]."""
    at = keep.int().argmax(1)[:, None, None].expand(-1, 1, x.shape[2])
    return x.gather(1, at).squeeze(1)


def _read(model, x, keep):
    """[b, d], what ``config.classifier_pooling`` reads of each row."""
    pooling, real = model.config.classifier_pooling, keep[:, :, None]
    if pooling == "cls":
        return _of_first(x, keep)
    if pooling == "mean":
        return torch.where(real, x, 0.0).sum(1) / keep.sum(1, keepdim=True).clamp(min=1)
    return torch.where(real, x, torch.finfo(x.dtype).min).amax(1)


def _answer(model, x):
    """[..., outputs], as `ldt.model.heads.base.Head.answer` gives them."""
    for name in model._answer_names:
        layer = getattr(model, name)
        if isinstance(layer, ClassificationHead):
            x = _linear(layer.out_proj, torch.tanh(_linear(layer.dense, x)))
        elif isinstance(layer, PredictionHead):
            x = layer.norm(layer.act(_linear(layer.dense, x)))
        elif not isinstance(layer, nn.Dropout):
            x = _linear(layer, x)
    return x


def _documents(model, x, keep, positions):
    return {"logits": _answer(model, _read(model, x, keep))}


def _tokens(model, x, keep, positions):
    return {"logits": torch.where(keep[:, :, None], _answer(model, x), 0.0)}


def _spans(model, x, keep, positions):
    logits, least = _answer(model, x), torch.finfo(x.dtype).min
    sides = ("start_logits", "end_logits")
    return {name: torch.where(keep, logits[:, :, i], least) for i, name in enumerate(sides)}


def _choices(model, x, keep, positions):
    encoder = model.base_model
    if isinstance(encoder, LdtModel):
        first = torch.tanh(_linear(encoder.pooler.dense, _of_first(x, keep)))
        return {"logits": _answer(model, first)}
    return {"logits": _answer(model, _read(model, x, keep))}


def _candidates(model, x, keep, positions):
    logits = torch.where(keep, _linear(model.classifier, x).squeeze(-1), 0.0)
    logits = logits.gather(1, positions.clamp(min=0))
    return {"logits": torch.where(positions >= 0, logits, torch.finfo(x.dtype).min)}


ENCODERS: dict[type, Callable] = {LdtModel: _longformer, LdtModernBertModel: _modernbert}
HEADS: dict[type, Callable] = {
    LdtForSequenceClassification: _documents,
    LdtForTokenClassification: _tokens,
    LdtForQuestionAnswering: _spans,
    LdtForMultipleChoice: _choices,
    LdtForCandidateRanking: _candidates,
}


def _head_of(model):
    """The function of `HEADS` of a model; None where there is none."""
    heads = (head for kind, head in HEADS.items() if isinstance(model, kind))
    return next(heads, None)


def has_head(head: type) -> bool:
    """True of a class of heads that `PaddedModel` has."""
    return issubclass(head, tuple(HEADS))
