"""Rows of the embeddings for new special tokens of a task."""

from collections.abc import Sequence

import torch


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
