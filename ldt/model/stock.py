"""What transformers' own Longformer computes as well, so that a folder can be one of theirs."""

# Heads that transformers has, and the segments that get global attention there without a mask, as
# `config.global_attention` names them. In a question's input transformers wants three separators,
# and where a choice's text comes first makes the choice global: no input of a task of ldt.
_GLOBALS: dict[str, tuple[list[str] | None, ...]] = {
    "Model": (None, []),
    "ForMaskedLM": (None, []),
    "ForMultipleChoice": (None,),
    "ForQuestionAnswering": (None,),
    "ForSequenceClassification": (None, ["cls"]),
    "ForTokenClassification": (None, []),
}
HEADS = tuple(_GLOBALS)
THEIRS = {f"Ldt{head}": f"Longformer{head}" for head in HEADS}
OURS = {theirs: ours for ours, theirs in THEIRS.items()}


def is_stock(config):
    """True where transformers' Longformer gives the same answers to an input without a mask of
    global tokens, with padding on the right, if any.

    Args:
        config: LdtConfig; without ``architectures`` it is of an encoder alone.
    """
    windows = set(_numbers(config.attention_window))
    heads = [name.removeprefix("Ldt") for name in config.architectures or ["LdtModel"]]
    return (
        set(_numbers(config.attention_dilation)) == {1}
        and not config.causal
        and not config.pooling_layers
        and config.classifier_pooling == "cls"
        # transformers pads an input to the largest window, and parts it by each layer's.
        and min(windows) > 2
        and all(max(windows) % window == 0 for window in windows)
        and all(config.global_attention in _GLOBALS.get(head, ()) for head in heads)
    )


def _numbers(value):
    return [n for each in value for n in _numbers(each)] if isinstance(value, list) else [value]
