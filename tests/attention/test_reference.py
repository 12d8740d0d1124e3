"""The definition against loops that a reader can check by eye, and dropout's statistics."""

import math

import torch

from ldt.attention import Layout, band_probabilities, global_probabilities, reference
from ldt.attention.dropout import dropout_mask

LENGTHS, HEADS, DIM = (9, 1, 14), 2, 4
TOTAL = sum(LENGTHS)


def layout():
    generator = torch.Generator().manual_seed(3)
    keep = torch.rand(TOTAL, generator=generator) > 0.15
    is_global = (torch.rand(TOTAL, generator=generator) < 0.15) & keep
    return Layout(torch.tensor([0, *LENGTHS]).cumsum(0), keep, is_global)


def attend(q, keys, k, v, h):
    scores = [float(q[h] @ k[j, h]) / math.sqrt(DIM) for j in keys]
    weights = [math.exp(s) for s in scores]
    return sum(w / sum(weights) * v[j, h] for w, j in zip(weights, keys, strict=True))


def own(docs, i):
    d = int(docs.document_of[i])
    return [
        j
        for j in range(docs.cu_seqlens_host[d], docs.cu_seqlens_host[d + 1])
        if docs.key_padding_mask[j]
    ]


def test_the_band_is_what_the_docstring_says():
    docs, window = layout(), 6
    q, k, v = torch.randn(3, TOTAL, HEADS, DIM, dtype=torch.float64)
    out = reference.sliding_window_attention(q, k, v, docs, window=window)
    for i in range(TOTAL):
        for h in range(HEADS):
            expected = torch.zeros(DIM, dtype=torch.float64)
            if docs.key_padding_mask[i] and not docs.is_global[i]:
                keys = [j for j in own(docs, i) if abs(i - j) <= 3 or docs.is_global[j]]
                expected = attend(q[i], keys, k, v, h)
            torch.testing.assert_close(out[i, h], expected)


def test_a_global_token_sees_its_document_through_the_global_projections():
    docs, width = layout(), HEADS * DIM
    x = torch.randn(TOTAL, width, dtype=torch.float64)
    q = torch.randn(len(docs.global_index), HEADS, DIM, dtype=torch.float64)
    key, value = (
        (torch.randn(width, width).double(), torch.randn(width).double()) for _ in range(2)
    )
    k, v = ((x @ w.T + b).view(TOTAL, HEADS, DIM) for w, b in (key, value))
    out = reference.global_attention(q, x, key, value, docs)
    assert len(q) > 2
    for g, i in enumerate(docs.global_index.tolist()):
        for h in range(HEADS):
            torch.testing.assert_close(out[g, h], attend(q[g], own(docs, i), k, v, h))


def test_probabilities_give_the_output_back():
    docs, window = layout(), 6
    q, k, v = torch.randn(3, TOTAL, HEADS, DIM, dtype=torch.float64)
    probs = band_probabilities(q, k, docs, window=window)
    front = probs.shape[-1] - window - 1
    out = torch.zeros_like(q)
    for i in range(TOTAL):
        d = int(docs.document_of[i])
        globals_ = docs.global_index[docs.cu_globals_host[d] : docs.cu_globals_host[d + 1]]
        for column, j in enumerate(globals_):
            out[i] += probs[i, :, column, None] * v[j]
        for offset in range(-window // 2, window // 2 + 1):
            if 0 <= i + offset < TOTAL:
                out[i] += probs[i, :, front + offset + window // 2, None] * v[i + offset]
    torch.testing.assert_close(
        out, reference.sliding_window_attention(q, k, v, docs, window=window)
    )
    counted = docs.key_padding_mask & ~docs.is_global
    torch.testing.assert_close(probs.sum(-1), counted.double()[:, None].expand(-1, HEADS))


def test_global_probabilities_give_the_output_back():
    docs, width = layout(), HEADS * DIM
    x = torch.randn(TOTAL, width, dtype=torch.float64)
    q = torch.randn(len(docs.global_index), HEADS, DIM, dtype=torch.float64)
    key, value = (
        (torch.randn(width, width).double(), torch.randn(width).double()) for _ in range(2)
    )
    probs = global_probabilities(q, x, key, docs)
    v = (x @ value[0].T + value[1]).view(TOTAL, HEADS, DIM)
    out = torch.zeros_like(q)
    for g, i in enumerate(docs.global_index.tolist()):
        begin = docs.cu_seqlens_host[int(docs.document_of[i])]
        for j in range(min(probs.shape[-1], TOTAL - begin)):
            out[g] += probs[g, :, j, None] * v[begin + j]
    torch.testing.assert_close(out, reference.global_attention(q, x, key, value, docs))


def test_dropout_takes_its_share_of_every_row_column_and_head():
    docs = Layout(torch.tensor([0, 1000]))
    index = torch.arange(1000)
    kept = dropout_mask(docs, 4, index, index, 0.1, 3).double()
    noise = math.sqrt(0.1 * 0.9)
    assert abs(kept.mean() - 0.9) < 5 * noise / 2000
    for dims in ((0, 1), (0, 2)):
        assert (kept.mean(dims) - 0.9).abs().max() < 5 * noise / math.sqrt(4000)
    assert (kept.mean((1, 2)) - 0.9).abs().max() < 5 * noise / 1000
    for matrix in (kept[0], kept[0].T, kept.flatten(1)):
        correlation = torch.corrcoef(matrix).fill_diagonal_(0)
        assert correlation.abs().max() < 6 / math.sqrt(matrix.shape[1])


def test_dropout_does_not_depend_on_what_else_is_in_the_batch():
    alone = Layout(torch.tensor([0, 50]))
    together = Layout(torch.tensor([0, 50, 90]))
    index = torch.arange(50)
    first = dropout_mask(alone, 2, index, index, 0.3, 9)
    assert torch.equal(first, dropout_mask(together, 2, index, index, 0.3, 9))
    assert not torch.equal(first, dropout_mask(alone, 2, index, index, 0.3, 10))


def test_biases_add_to_the_scores_of_global_tokens():
    is_global = torch.tensor([0, 1, 0, 0, 0, 0, 0, 1, 0]).bool()
    docs = Layout(torch.tensor([0, 4, 9]), None, is_global)
    q, k, v = torch.randn(3, 9, HEADS, DIM, dtype=torch.float64)
    columns, rows = (torch.randn(n, HEADS, m, dtype=torch.float64) for n, m in ((9, 1), (2, 5)))
    out = reference.sliding_window_attention(q, k, v, docs, window=2, bias=columns)
    asked = reference.projected_global_attention(q[[1, 7]], k, v, docs, bias=rows)
    for i in range(9):
        begin, end, mark = (0, 4, 1) if i < 4 else (4, 9, 7)
        near = {j for j in (i - 1, i, i + 1, mark) if begin <= j < end}
        for h in range(HEADS):
            scores = {j: float(q[i, h] @ k[j, h]) for j in near}
            scores[mark] += float(columns[i, h, 0])
            if i == mark:
                number = is_global[:i].sum()
                scores = {
                    j: float(q[i, h] @ k[j, h] + rows[number, h, j - begin])
                    for j in range(begin, end)
                }
            shares = {j: math.exp(score / math.sqrt(DIM)) for j, score in scores.items()}
            expected = sum(s / sum(shares.values()) * v[j, h] for j, s in shares.items())
            found = asked[number, h] if i == mark else out[i, h]
            torch.testing.assert_close(found, expected)


def test_relative_positions_add_what_the_distance_says_to_a_score():
    docs, window, gaps = Layout(torch.tensor([0, 9, 14])), 4, (1, 2)
    q, k, v, far = torch.randn(4, 14, HEADS, DIM, dtype=torch.float64)
    for causal, places in ((False, range(-2, 3)), (True, range(-2, 1))):
        table = torch.randn(HEADS, len(places), DIM, dtype=torch.float64)
        arguments = {"window": window, "dilation": gaps, "causal": causal}
        out = reference.sliding_window_attention(q, k, v, docs, relative=(far, table), **arguments)
        for i in range(14):
            for h in range(HEADS):
                begin, end = (0, 9) if i < 9 else (9, 14)
                keys = [i + m * gaps[h] for m in places]
                scores = {
                    j: float(q[i, h] @ k[j, h] + far[i, h] @ table[h, place]) / math.sqrt(DIM)
                    for place, j in enumerate(keys)
                    if begin <= j < end
                }
                total = sum(map(math.exp, scores.values()))
                expected = sum(math.exp(s) / total * v[j, h] for j, s in scores.items())
                torch.testing.assert_close(out[i, h], expected)
