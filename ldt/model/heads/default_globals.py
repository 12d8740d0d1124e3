"""Global tokens of a head whose caller gives no mask: found by the separators."""

import torch

from ldt.model.packing import real_tokens


def separators(config, input_ids, attention_mask, choices=1):
    """Real tokens and, among them, separators, both [b, n] bool, of ids [b, n].

    Raises:
        ValueError: a row with real tokens has no separator; with ``choices`` the rows are choices.
    """
    if input_ids is None or config.sep_token_id is None:
        lacking = "input_ids" if input_ids is None else "sep_token_id in the config"
        raise ValueError(
            f"without {lacking} there is no telling which tokens are global; "
            "give global_attention_mask"
        )
    real = real_tokens(tuple(input_ids.shape), attention_mask, input_ids.device)
    separator = real & (input_ids == config.sep_token_id)
    without = real.any(1) & ~separator.any(1)
    if not torch.compiler.is_compiling() and without.any():
        row, choice = divmod(int(without.nonzero()[0]), choices)
        where = f"row {row}" if choices == 1 else f"row {row}, choice {choice}"
        raise ValueError(
            f"{where}: no separator (id {config.sep_token_id}) tells which tokens are global; "
            "give global_attention_mask"
        )
    return real, separator


def before_first(config, input_ids, attention_mask):
    """[b, n] bool, the real tokens before the first separator of each row; raises as `separators`
    does."""
    real, separator = separators(config, input_ids, attention_mask)
    return real & ~after_first(separator, 0)


def after_first(separator, distance):
    """[b, n] bool: at least ``distance`` tokens after the first separator of the row."""
    position = torch.arange(separator.shape[1], device=separator.device)
    return position >= separator.int().argmax(1, keepdim=True) + distance
