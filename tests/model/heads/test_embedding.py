"""Vectors and losses of the head of embeddings, against their definitions."""

from itertools import product
from math import exp, log

import pytest
import torch
from longformers import PAD, ldt_model, padding_mask
from torch.nn import functional as F

from ldt.model.heads.embedding import NEGATIVE, POSITIVE, QUERY, similarities

# Example, text and label of each row; text 3 has two chunks, 2 is wrong for one query and right for
# another.
ROWS = [
    *((0, 0, QUERY), (0, 2, POSITIVE), (0, 3, NEGATIVE), (0, 3, NEGATIVE)),
    *((1, 1, QUERY), (1, 4, POSITIVE), (1, 5, POSITIVE), (1, 2, NEGATIVE)),
    *((2, 9, QUERY), (2, 3, POSITIVE), (2, 3, POSITIVE)),
]
SCORES = {2: 0.3, 3: -0.7, 4: 1.5, 5: 0.1}


def embedding(**settings):
    return ldt_model("ForEmbedding", embedding=settings).double()


def batch(rows=ROWS, graded=False):
    examples, texts, labels = map(torch.tensor, zip(*rows, strict=True))
    torch.manual_seed(0)
    ids = torch.randint(3, 40, (len(rows), 12))
    mask = torch.ones_like(ids)
    for row in range(len(rows)):
        mask[row, 5 + row % 7 :] = 0
    more = {"scores": torch.tensor([SCORES.get(text, 0.0) for _, text, _ in rows])}
    return {
        "input_ids": ids.masked_fill(mask == 0, PAD),
        "attention_mask": mask,
        "labels": labels,
        "texts": texts,
        "example_ids": examples,
    } | (more if graded else {})


def vectors_of(model, of):
    with torch.set_grad_enabled(model.training):
        return model(**{name: of[name] for name in ("input_ids", "attention_mask")}).vectors


def alike(vectors, rows=ROWS, each=False):
    """{(example, text): similarity}, word by word."""
    unit = [[x / x.norm() for x in row if x.any()] for row in vectors]
    examples, texts = {e for e, _, _ in rows}, {t for _, t, label in rows if label != QUERY}
    found = {}
    for example, text in product(examples, texts):
        asked = [x for x, row in zip(unit, rows, strict=True) if row[::2] == (example, QUERY)]
        read = [x for x, row in zip(unit, rows, strict=True) if row[1] == text and row[2] != QUERY]
        best = [max(float(q @ d) for row in read for d in row) for row in asked for q in row]
        found[example, text] = sum(best) if each else sum(best) / len(best)
    return found


def right_ones(rows=ROWS):
    return dict.fromkeys((example, text) for example, text, label in rows if label == POSITIVE)


def contrastive(s, rows, temperature):
    right = right_ones(rows)
    losses = []
    for example, text in right:
        wrong = [exp(s[e, t] / temperature) for e, t in s if e == example and (e, t) not in right]
        mine = exp(s[example, text] / temperature)
        losses.append(-log(mine / (mine + sum(wrong))))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.3}, {"normalize": False}, {"size": 5}])
def test_a_query_is_compared_with_all_documents_of_the_batch(settings):
    model = embedding(**settings)
    want = contrastive(alike(vectors_of(model, batch())), ROWS, settings.get("temperature", 0.05))
    assert model(**batch()).loss.item() == pytest.approx(want, rel=1e-9)


def test_so_it_is_sentence_transformers_loss_of_triplets():
    rows = [(n, 3 * n + label, label) for n in range(4) for label in (QUERY, POSITIVE, NEGATIVE)]
    model = embedding()
    vectors = vectors_of(model, batch(rows))[:, 0]
    scores = 20 * vectors[::3] @ torch.cat([vectors[1::3], vectors[2::3]]).T
    want = F.cross_entropy(scores, torch.arange(4))
    torch.testing.assert_close(model(**batch(rows)).loss, want)


def test_each_vector_of_a_query_finds_its_best_where_each_token_has_one():
    model = embedding(vectors="tokens", size=6, temperature=1.0)
    vectors = vectors_of(model, batch())
    assert vectors.shape == (len(ROWS), 12, 6)
    lengths = batch()["attention_mask"].sum(1)
    assert torch.equal(vectors.any(-1).sum(1), lengths)
    want = contrastive(alike(vectors, each=True), ROWS, 1.0)
    assert model(**batch()).loss.item() == pytest.approx(want, rel=1e-9)
    model.settings["skip"] = [*range(10, 20)]
    skipped = (batch()["input_ids"] >= 10) & (batch()["input_ids"] < 20)
    skipped &= (batch()["labels"] != QUERY)[:, None]
    want = contrastive(alike(vectors.masked_fill(skipped[..., None], 0), each=True), ROWS, 1.0)
    assert model(**batch()).loss.item() == pytest.approx(want, rel=1e-9)


def test_a_vector_that_is_not_there_is_no_best_one():
    one, none = torch.tensor([1.0, 0.0]), torch.zeros(2)
    queries = torch.stack([torch.stack([one, none])])
    documents = torch.stack([torch.stack([-one, none])])
    first = torch.tensor([0])
    for each in (False, True):
        assert similarities(queries, documents, first, first, (1, 1), each).tolist() == [[-1.0]]


def test_the_beginnings_of_vectors_are_learnt_as_vectors():
    model = embedding(dimensions=[16, 8, 3])
    vectors = vectors_of(model, batch())
    parts = [contrastive(alike(vectors[..., :size]), ROWS, 0.05) for size in (16, 8, 3)]
    assert model(**batch()).loss.item() == pytest.approx(sum(parts), rel=1e-9)


def test_a_teachers_scores_are_learnt_as_probabilities():
    model = embedding(loss="kl")
    s, total = alike(vectors_of(model, batch())), 0
    for example, own in ((0, (2, 3)), (1, (4, 5, 2)), (2, (3,))):
        wanted = torch.tensor([SCORES[text] for text in own]).softmax(0).double()
        found = torch.tensor([s[example, text] / 0.05 for text in own]).softmax(0)
        pairs = zip(wanted.tolist(), found.tolist(), strict=True)
        divergence = sum(p * log(p / q) for p, q in pairs)
        total += divergence * sum(key[0] == example for key in right_ones())
    assert model(**batch(graded=True)).loss.item() == pytest.approx(total / 4, rel=1e-6)


def test_differences_of_a_teachers_scores_are_learnt():
    model = embedding(loss="margin_mse", temperature=0.5)
    s, total = alike(vectors_of(model, batch())), 0
    for example, right, wrong in ((0, (2,), (3,)), (1, (4, 5), (2,)), (2, (3,), ())):
        for text in right:
            margins = [(s[example, text] - s[example, other]) / 0.5 for other in wrong]
            wanted = [SCORES[text] - SCORES[other] for other in wrong]
            errors = [(a - b) ** 2 for a, b in zip(margins, wanted, strict=True)]
            total += sum(errors) / max(len(errors), 1)
    assert model(**batch(graded=True)).loss.item() == pytest.approx(total / 4, rel=1e-6)


def test_graded_pairs_are_learnt_by_their_order():
    rows = [(n, 2 * n + label, label) for n in range(3) for label in (QUERY, POSITIVE)]
    of = batch(rows) | {"scores": torch.tensor([0.0, 4.0, 0.0, 1.0, 0.0, 4.0])}
    model = embedding(loss="graded")
    s = alike(vectors_of(model, of), rows)
    first, least, last = (s[n, 2 * n + 1] for n in range(3))
    want = log(1 + exp((least - first) / 0.05) + exp((least - last) / 0.05))
    assert model(**of).loss.item() == pytest.approx(want, rel=1e-9)


def test_an_input_without_a_part_in_the_loss_changes_nothing():
    model, whole = embedding(), batch()
    without = batch() | {"labels": whole["labels"].masked_fill(whole["example_ids"] == 2, -100)}
    part = {name: values[:8] for name, values in whole.items()}
    torch.testing.assert_close(model(**without).loss, model(**part).loss)
    none = batch() | {"labels": torch.full((len(ROWS),), -100)}
    assert model(**none).loss.item() == 0


# what is run at a time


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


GROUPS = [[4, 0, 10], [1], [3, 2, 9, 5], [8, 7, 6]]


@pytest.mark.parametrize("settings", [{}, {"vectors": "tokens", "size": 6}, {"dimensions": [4]}])
def test_rows_that_are_run_in_groups_have_the_gradient_of_the_whole(settings):
    model = embedding(**settings).train()  # without dropout
    whole, parted = model(**batch()), model(**batch(), groups=GROUPS)
    torch.testing.assert_close(parted.vectors, whole.vectors, rtol=0, atol=1e-12)
    wanted, found = gradients(model, whole.loss), gradients(model, parted.loss)
    assert max(gradient.abs().max() for gradient in wanted) > 0.01
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_groups_meet_the_same_dropout_when_they_are_run_again():
    model = ldt_model("ForEmbedding", hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    model, of = model.double().train(), batch()
    torch.manual_seed(1)
    found = model(**of, groups=GROUPS)
    torch.rand(3)  # whatever is drawn before the backward pass
    parted = gradients(model, found.loss)
    torch.manual_seed(1)
    # The definition: every graph is kept.
    part = [vectors_of(model, {name: of[name][rows] for name in of}) for rows in GROUPS]
    vectors = torch.cat(part)[torch.tensor(sum(GROUPS, [])).argsort()]
    names = ("labels", "texts")
    loss = model._loss(vectors, *(of[name] for name in names), None, of["example_ids"]) / 4
    torch.testing.assert_close(found.loss, loss)
    torch.testing.assert_close(parted, gradients(model, loss), rtol=1e-9, atol=1e-9)


# pooling


@pytest.mark.parametrize("kind", ["none", "right", "mixed"])
@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "last"])
def test_a_text_is_pooled_from_its_real_tokens(pooling, kind):
    model = embedding(pooling=pooling, normalize=False)
    torch.manual_seed(0)
    ids, mask = torch.randint(3, 40, (4, 12)), padding_mask(12, kind)
    first = torch.zeros_like(ids).scatter(1, mask.argmax(1, keepdim=True), 1)
    states = model.longformer(ids, mask, first if pooling == "cls" else None).last_hidden_state
    found = model(ids, mask).vectors
    for row in range(4):
        real = states[row][mask[row] == 1]
        want = {"mean": real.mean(0), "max": real.amax(0), "cls": real[0], "last": real[-1]}
        torch.testing.assert_close(found[row], want[pooling][None])
    unit = embedding(pooling=pooling)
    unit.load_state_dict(model.state_dict())
    torch.testing.assert_close(unit(ids, mask).vectors, found / found.norm(dim=-1, keepdim=True))


@pytest.mark.parametrize("kind", ["none", "right", "left"])
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_a_span_is_pooled_from_its_tokens_in_the_whole_text(pooling, kind):
    model = embedding(pooling=pooling, normalize=False)
    torch.manual_seed(0)
    ids, mask = torch.randint(3, 40, (4, 12)), padding_mask(12, kind)
    spans = mask.argmax(1)[:, None, None] + torch.tensor([[0, 4], [2, 4], [1, 6]])
    spans[1, 2] = 0
    states = model.longformer(ids, mask).last_hidden_state
    found = model(ids, mask, spans=spans).vectors
    for row, column in product(range(4), range(3)):
        start, end = spans[row, column].tolist()
        part = states[row, start:end]
        if not end:
            want = torch.zeros(16).double()
        else:
            want = part.mean(0) if pooling == "mean" else part.amax(0)
        torch.testing.assert_close(found[row, column], want)
