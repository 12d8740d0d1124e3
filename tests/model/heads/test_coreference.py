"""Coreference heads, held against the published forward pass with full matrices."""

import json

import pytest
import torch
import transformers
from torch.nn import functional as F
from transformers import AutoTokenizer

from ldt.convert import convert
from ldt.model import LdtConfig, LdtForCoreference, load
from ldt.model.heads import coreference

WORDS, WIDTH, SHARE, SIZE = 61, 7, 0.4, 12
BODY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}
BODY |= {"intermediate_size": 32, "attention_window": 8, "max_position_embeddings": 90}
BODY |= {"type_vocab_size": 1, "pad_token_id": 1, "hidden_dropout_prob": 0.0}
BODY |= {"attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-5}
PUBLISHED = {"max_span_length": WIDTH, "top_lambda": SHARE, "ffnn_size": SIZE, "dropout_prob": 0.0}
FORMS = ("s2s", "e2e", "s2e", "e2s")
MASK = -10_000.0


def published_weights(scorer, draw):
    """{name: tensor} of a head under its published names."""
    shapes = {"mention_start_classifier": (1, SIZE), "mention_end_classifier": (1, SIZE)}
    shapes["mention_s2e_classifier"] = SIZE, SIZE
    dense = {"start_mention_mlp": SIZE, "end_mention_mlp": SIZE}
    if scorer == "s2e":
        dense |= {"start_coref_mlp": SIZE, "end_coref_mlp": SIZE}
        shapes |= {f"antecedent_{form}_classifier": (SIZE, SIZE) for form in FORMS}
    else:
        dense |= {"coref_start_all_mlps": 7 * SIZE, "coref_end_all_mlps": 7 * SIZE}
    weights = {}
    for name, size in dense.items():
        weights[f"{name}.dense.weight"] = draw(size, 16)
        weights |= {f"{name}.{rest}": draw(size) for rest in ("dense.bias", "layer_norm.bias")}
        weights[f"{name}.layer_norm.weight"] = 1 + draw(size)
    for name, (rows, columns) in shapes.items():
        weights |= {f"{name}.weight": draw(rows, columns), f"{name}.bias": draw(rows)}
    if scorer == "lingmess":
        for form in FORMS:
            weights[f"antecedent_{form}_all_weights"] = draw(7, SIZE, SIZE)
            weights[f"antecedent_{form}_all_biases"] = draw(7, SIZE)
    return weights


def category(one, other):
    """The category of a pair of spans as lists of (group, content word), by its definition."""
    groups = [
        span[0][0] if len({word for _, word in span}) == 1 and span[0][1] >= 0 else -1
        for span in (one, other)
    ]
    if min(groups) >= 0:
        return 0 if groups[0] == groups[1] else 1
    if max(groups) >= 0:
        return 2
    mine, theirs = ({word for _, word in span} - {-1} for span in (one, other))
    if mine == theirs:
        return 3
    return 4 if mine <= theirs or theirs <= mine else 5


def by_definition(weights, scorer, h, words, clusters):
    """(spans, logits [k, k + 1], loss) of states h [n, d], one token a word."""

    def linear(name, x):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def layer(name, x):
        x = F.gelu(linear(f"{name}.dense", x))
        scale, shift = (weights[f"{name}.layer_norm.{key}"] for key in ("weight", "bias"))
        return F.layer_norm(x, x.shape[-1:], scale, shift, 1e-5)

    n = len(h)
    start, end = layer("start_mention_mlp", h), layer("end_mention_mlp", h)
    mentions = linear("mention_s2e_classifier", start) @ end.T
    mentions = mentions + linear("mention_start_classifier", start)
    mentions = mentions + linear("mention_end_classifier", end).T
    one = torch.ones(n, n, dtype=torch.bool)
    mentions = mentions.masked_fill(~(one.triu() & one.tril(WIDTH - 1)), MASK)
    k = int(n * SHARE)
    best = mentions.flatten().topk(k).indices.sort().values
    first, last = best // n, best % n
    both = mentions[first, last]
    both = both[:, None] + both
    spans = list(zip(first.tolist(), last.tolist(), strict=True))
    before = torch.ones(k, k, dtype=torch.bool).tril(-1)
    of = {mention: number for number, cluster in enumerate(clusters) for mention in cluster}
    right = torch.tensor([[a in of and of.get(a) == of.get(b) for b in spans] for a in spans])
    if scorer == "s2e":
        s, e = layer("start_coref_mlp", h)[first], layer("end_coref_mlp", h)[last]
        sides = {"s": s, "e": e}
        pairs = sum(
            linear(f"antecedent_{form}_classifier", sides[form[0]]) @ sides[form[2]].T
            for form in FORMS
        )
        logits, golds, masks = [pairs + both], [right], [before]
    else:
        sides = {}
        for side, states in (("s", h[first]), ("e", h[last])):
            name = {"s": "coref_start_all_mlps", "e": "coref_end_all_mlps"}[side]
            sides[side] = layer(name, states).view(k, 7, SIZE).transpose(0, 1)
        experts = 0
        for form in FORMS:
            a, b = sides[form[0]], sides[form[2]]
            w, bias = (weights[f"antecedent_{form}_all_{each}"] for each in ("weights", "biases"))
            experts = experts + torch.einsum("nkf,nfg,nlg->nkl", a, w, b)
            experts = experts + torch.einsum("nlf,nf->nl", b, bias)[:, None]
        tokens = [words[a : b + 1, 4:].tolist() for a, b in spans]
        kinds = torch.tensor([[category(a, b) for b in tokens] for a in tokens])
        own = torch.stack([*(kinds == kind for kind in range(6)), one[:k, :k]])
        logits = [(experts * own).sum(0) + both, *(experts + both)]
        golds, masks = [right, *(right & own)], [before, *(before & own)]
    loss = 0
    for number, (scores, gold, mask) in enumerate(zip(logits, golds, masks, strict=True)):
        scores = F.pad(scores.masked_fill(~mask, MASK), (0, 1))
        gold = F.pad(gold & mask, (0, 1))
        gold[:, -1] = ~gold.any(1)
        losses = scores.logsumexp(1) - scores.masked_fill(~gold, MASK).logsumexp(1)
        loss, logits[number] = loss + losses.mean(), scores
    return spans, logits[0], loss


def saved(tmp_path, scorer):
    """A model folder whose head has its published names and config, and what was drawn for it."""
    torch.manual_seed(0)
    config = LdtConfig(**BODY, coref_head=PUBLISHED)
    encoder = LdtForCoreference(config).base_model.double()
    head = published_weights(scorer, lambda *shape: 0.4 * torch.randn(*shape, dtype=torch.float64))
    body = {f"longformer.{name}": x for name, x in encoder.state_dict().items()}
    torch.save(head | body, tmp_path / "pytorch_model.bin")
    values = config.to_dict() | {"architectures": ["Published"], "coref_head": PUBLISHED}
    (tmp_path / "config.json").write_text(json.dumps(values))
    return head


def document():
    """ids [1, n], words [1, n, 6] of a token each, and clusters of spans."""
    ids = torch.randint(3, 50, (1, WORDS))
    number = torch.arange(WORDS)
    word = torch.randint(-1, 9, (WORDS,))
    group = torch.where((word >= 0) & (word < 4), word // 2, -1)
    words = torch.stack([number, number, number, number * 0, group, word], 1)[None]
    return ids, words


@pytest.mark.parametrize("rows", [512, 8])
@pytest.mark.parametrize("scorer", ["s2e", "lingmess"])
def test_equal_to_full_matrices(tmp_path, scorer, rows, monkeypatch):
    monkeypatch.setattr(coreference, "ROWS", rows)
    weights = saved(tmp_path, scorer)
    model = load(tmp_path, LdtForCoreference, dtype=torch.float64).train()
    assert not model.new_weights
    ids, words = document()
    states = model.base_model(ids).last_hidden_state[0].detach()
    for weight in weights.values():
        weight.requires_grad_()
    spans, logits, _ = by_definition(weights, scorer, states, words[0], [])
    clusters = [spans[::3], spans[1::6], [(0, 0), (WORDS - 1, WORDS - 1)]]
    _, _, loss = by_definition(weights, scorer, states, words[0], clusters)
    rows = [(*span, number) for number, cluster in enumerate(clusters) for span in cluster]
    output = model(ids, words=words, labels=torch.tensor(rows)[None])
    table = output.logits[0]
    assert [tuple(row) for row in table[:, :2].int().tolist()] == spans
    best = logits.max(1)
    antecedents = torch.where(best.indices == len(spans), -1, best.indices)
    assert table[:, 2].int().tolist() == antecedents.tolist()
    linked = antecedents >= 0
    assert linked.sum() > 3
    torch.testing.assert_close(table[linked, 3], best.values[linked], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(output.loss, loss, rtol=1e-9, atol=1e-9)
    output.loss.backward()
    loss.backward()
    grads = {name: weight.grad for name, weight in model.named_parameters()}
    for name, weight in weights.items():
        torch.testing.assert_close(grads[name], weight.grad, rtol=1e-9, atol=1e-9, msg=name)


def test_fcoref_on_a_short_roberta_becomes_long_with_its_head(tmp_path, tokenizer_folder):
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    sizes = {"max_position_embeddings": 66, "vocab_size": len(tokenizer)}
    drop = ("attention_window",)
    config = {name: value for name, value in (BODY | sizes).items() if name not in drop}
    body = transformers.RobertaModel(transformers.RobertaConfig(**config)).eval()
    head = published_weights("s2e", lambda *shape: 0.4 * torch.randn(*shape))
    names = {f"roberta.{name}": weight for name, weight in body.state_dict().items()}
    source, target = tmp_path / "f-coref", tmp_path / "long"
    tokenizer.save_pretrained(source)
    torch.save(head | names, source / "pytorch_model.bin")
    values = body.config.to_dict() | {"architectures": ["FCorefModel"], "coref_head": PUBLISHED}
    (source / "config.json").write_text(json.dumps(values))
    report = convert(str(source), target, max_length=160, window=128)
    assert report.facts["coreference"] == "its head is kept"
    assert report.facts["not converted"] == "pooler"
    model = load(target, LdtForCoreference).eval()
    assert not model.new_weights
    ids, words = document()
    with torch.no_grad():
        states = body(ids).last_hidden_state[0]
        spans, logits, _ = by_definition(head, "s2e", states, words[0], [])
        (table,) = model(ids, words=words).logits
        assert [tuple(row) for row in table[:, :2].int().tolist()] == spans
        best = logits.max(1)
        linked = best.indices < len(spans)
        assert table[linked, 2].tolist() == best.indices[linked].tolist()
        torch.testing.assert_close(table[linked, 3], best.values[linked], rtol=1e-4, atol=1e-4)
