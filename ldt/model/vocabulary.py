"""New special tokens for a task, in tokenizer and model."""

from collections.abc import Sequence

import torch
from transformers import AddedToken


def add_tokens(tokenizer, tokens: Sequence[str]) -> list[int]:
    """Add special tokens, which no text spells by accident; return the ids of those that are new.

    Args:
        tokenizer: is changed.
        tokens: those that it has already are left as they are.
    """
    known = tokenizer.get_vocab()
    new = [token for token in tokens if token not in known]
    tokenizer.add_tokens([AddedToken(token, special=True) for token in new], special_tokens=True)
    return tokenizer.convert_tokens_to_ids(new) if new else []


@torch.no_grad()
def draw_embeddings(model, ids: Sequence[int]) -> None:
    """Give new tokens rows of the word embeddings, drawn from a normal distribution with mean and
    standard deviation of all numbers that were there.

    So did the authors for WikiHop (allenai/longformer, scripts/wikihop.py).

    Args:
        model: gets a larger vocabulary where the ids ask for it.
        ids: of the tokens.
    """
    if not ids:
        return
    old = model.get_input_embeddings().weight
    mean, deviation = old.mean().item(), old.std().item()
    if max(ids) >= len(old):
        model.resize_token_embeddings(max(ids) + 1, mean_resizing=False)
    weight = model.get_input_embeddings().weight
    weight[torch.tensor(ids)] = torch.randn(len(ids), weight.shape[1]) * deviation + mean
