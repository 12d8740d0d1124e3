import pytest
import torch
from live_tensors import LiveTensors
from longformers import PAD, SEP, gradients, ldt_model

LEAST = torch.finfo(torch.float64).min
IDS = torch.tensor(
    [
        [0, 7, 8, 9, 10, SEP, 11, 12, SEP],
        [0, 7, 8, 9, 10, SEP, 13, SEP, PAD],
        [0, 17, 18, SEP, 19, 20, 21, SEP, PAD],
        [0, 27, 28, 29, SEP, 30, SEP, PAD, PAD],
    ]
)
MASK = (IDS != PAD).long()
POSITIONS = torch.tensor([[2, 3, 4], [2, 3, 4], [1, 2, -100], [3, -100, -100]])
DOCUMENTS = torch.tensor([0, 0, 1, 2])
BATCH = {"input_ids": IDS, "attention_mask": MASK, "positions": POSITIONS}


def ranking(**changes):
    return ldt_model("ForCandidateRanking", **changes).double()


def grads(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: gradient.clone() for name, gradient in gradients(model).items()}


def assert_same_grads(found, wanted):
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-9, atol=1e-12, msg=name)


# candidates inside the input


def test_a_candidate_is_scored_at_its_token_by_a_layer_without_bias():
    model = ranking()
    mask = torch.zeros_like(IDS)
    mask[:, :4] = MASK[:, :4]
    found = model(**BATCH, global_attention_mask=mask).logits
    x = model.longformer(IDS, MASK, mask).last_hidden_state
    assert [name for name, _ in model.named_parameters() if "classifier" in name] == [
        "classifier.weight"
    ]
    for row, places in enumerate(POSITIONS.tolist()):
        for column, place in enumerate(places):
            want = LEAST
            if place >= 0:
                want = (x[row, place] @ model.classifier.weight[0]).item()
            assert found[row, column].item() == pytest.approx(want, rel=1e-12)


def test_question_and_candidates_are_global_where_nothing_is_said():
    model = ranking()
    mask = torch.zeros_like(IDS)
    for row, size in enumerate((5, 5, 3, 4)):
        mask[row, :size] = 1
    with torch.no_grad():
        default, said = model(**BATCH).logits, model(**BATCH, global_attention_mask=mask).logits
        none = model(**BATCH, global_attention_mask=torch.zeros_like(IDS)).logits
    assert torch.equal(default, said)
    assert not torch.allclose(default[0], none[0], atol=1e-4)


@pytest.mark.parametrize("merge", ["mean", "sum"])
def test_the_loss_is_that_of_the_merged_scores_by_hand_with_gradients(merge):
    model = ranking(window_merge=merge)
    labels = torch.tensor([2, 2, 0, 0])
    out = model(**BATCH, example_ids=DOCUMENTS, labels=labels)
    found = grads(model, out.loss)
    rows = [
        model(**{key: value[[row]] for key, value in BATCH.items()}).logits[0] for row in range(4)
    ]
    first = rows[0] + rows[1] if merge == "sum" else (rows[0] + rows[1]) / 2
    # -log of the softmax at the label, written out
    losses = [
        torch.log(first.exp().sum()) - first[2],
        torch.log(rows[2][:2].exp().sum()) - rows[2][0],
        0 * rows[3][0],  # one candidate is always right
    ]
    want = sum(losses) / 3
    assert out.loss.item() == pytest.approx(want.item(), rel=1e-12)
    assert_same_grads(found, grads(model, want))


def test_a_question_without_a_right_candidate_has_no_part_in_the_loss():
    model = ranking()
    with_it = model(**BATCH, example_ids=DOCUMENTS, labels=torch.tensor([1, 1, -100, 0]))
    keep = [0, 1, 3]
    rest = {key: value[keep] for key, value in BATCH.items()}
    without = model(**rest, example_ids=torch.tensor([0, 0, 1]), labels=torch.tensor([1, 1, 0]))
    assert with_it.loss.item() == pytest.approx(without.loss.item(), rel=1e-12)
    none = model(**BATCH, example_ids=DOCUMENTS, labels=torch.full((4,), -100))
    assert none.loss == 0
    assert not any(grad.any() for grad in grads(model, none.loss).values())


def test_one_row_a_question_is_what_no_documents_means():
    model = ranking()
    labels = torch.tensor([0, 1, 1, 0])
    own = model(**BATCH, example_ids=torch.arange(4), labels=labels)
    assert torch.equal(own.loss, model(**BATCH, labels=labels).loss)


def test_rows_one_by_one_give_the_same_as_all_at_once():
    model = ranking()
    labels = torch.tensor([2, 2, 0, 0])
    training = model(**BATCH, example_ids=DOCUMENTS, labels=labels)
    with torch.no_grad():
        at_once = model(**BATCH, example_ids=DOCUMENTS, labels=labels)
    torch.testing.assert_close(training.logits, at_once.logits)
    torch.testing.assert_close(training.loss, at_once.loss)


def test_positions_are_checked():
    model = ranking()
    with pytest.raises(ValueError, match="give positions"):
        model(IDS, MASK)
    with pytest.raises(ValueError, match="positions must be below the input's length 9, got 9"):
        model(IDS, MASK, positions=torch.full((4, 1), 9))


def peak(model, rows, **batch):
    """Bytes that a training step on so many rows of one document holds at most."""
    batch = {key: value.repeat(rows, *[1] * (value.dim() - 1)) for key, value in batch.items()}
    batch["example_ids"] = torch.zeros(rows, dtype=torch.long)
    model.zero_grad()
    model(**batch).loss.backward()  # gradients are there from now on
    with LiveTensors() as live:
        model(**batch).loss.backward()
    return live.peak


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows_of_a_question():
    model = ldt_model("ForCandidateRanking").train()
    row = {
        "input_ids": torch.randint(3, 40, (1, 64)),
        "global_attention_mask": (torch.arange(64) < 9).long()[None],
        "positions": torch.tensor([[2, 4, 6]]),
        "labels": torch.tensor([1]),
    }
    one, four, sixteen = (peak(model, rows, **row) for rows in (1, 4, 16))
    assert max(four, sixteen) < 1.25 * one
    choice = ldt_model("ForMultipleChoice").train()
    del row["positions"]
    row["choices"] = torch.tensor([1])
    one, four, sixteen = (peak(choice, rows, **row) for rows in (1, 4, 16))
    assert max(four, sixteen) < 1.25 * one


# choices with an input each


def choices(number, seed=0):
    """[2, number, 12] inputs with a separator in each, and which tokens are global."""
    torch.manual_seed(seed)
    ids = torch.randint(3, 40, (2, number, 12))
    ids[..., 5] = SEP
    mask = torch.ones_like(ids)
    mask[0, 0, 9:] = 0
    return ids, mask, (torch.arange(12) < 5).long().expand(ids.shape)


def flat(batch):
    return [part.flatten(0, 1) for part in batch]


def test_packed_choices_give_the_logits_and_the_loss_of_those_in_a_block():
    model = ldt_model("ForMultipleChoice").double()
    ids, mask, marked = choices(3)
    labels = torch.tensor([2, 0])
    names = "input_ids", "attention_mask", "global_attention_mask"
    block = model(**dict(zip(names, (ids, mask, marked), strict=True)), labels=labels)
    packed = dict(zip(names, flat((ids, mask, marked)), strict=True))
    where = {
        "choices": torch.arange(3).repeat(2),
        "example_ids": torch.arange(2).repeat_interleave(3),
    }
    out = model(**packed, **where, labels=labels.repeat_interleave(3))
    assert out.logits.shape == (6, 1)
    torch.testing.assert_close(out.logits.view(2, 3), block.logits)
    assert out.loss.item() == pytest.approx(block.loss.item(), rel=1e-12)
    assert_same_grads(grads(model, out.loss), grads(model, block.loss))
    torch.testing.assert_close(model(**packed).logits, out.logits)  # as predicting runs them


def test_packed_questions_may_differ_in_their_choices_and_windows():
    model = ldt_model("ForMultipleChoice").double()
    ids, mask, marked = flat(choices(4))  # 8 rows: 2 choices with 2 windows, 3, and 1
    inputs = {"input_ids": ids, "attention_mask": mask, "global_attention_mask": marked}
    where = {
        "choices": torch.tensor([0, 0, 1, 1, 0, 1, 2, 0]),
        "example_ids": torch.tensor([0, 0, 0, 0, 1, 1, 1, 2]),
    }
    out = model(**inputs, **where, labels=torch.tensor([1, 1, 1, 1, 2, 2, 2, -100]))
    logit = model(**inputs).logits.squeeze(1)
    first = torch.stack([(logit[0] + logit[1]) / 2, (logit[2] + logit[3]) / 2])
    want = (torch.logsumexp(first, 0) - first[1] + torch.logsumexp(logit[4:7], 0) - logit[6]) / 2
    assert out.loss.item() == pytest.approx(want.item(), rel=1e-12)
    assert_same_grads(grads(model, out.loss), grads(model, want))


def test_packed_choices_with_labels_need_to_say_whose_they_are():
    model = ldt_model("ForMultipleChoice")
    ids, mask, _ = flat(choices(2))
    with pytest.raises(ValueError, match="packed choices need choices and example_ids"):
        model(ids, attention_mask=mask, labels=torch.zeros(4, dtype=torch.long))


# documents of a query


# Chunks of documents of two queries: 2 of document 0, 1 of 2, 1 of 3; then one of each of two.
RANKED = {
    "documents": torch.tensor([0, 0, 2, 3, 0, 1]),
    "example_ids": torch.tensor([4, 4, 4, 4, 9, 9]),
}
RELEVANT = torch.tensor([0, 0, 2.0, 1.0, 0, 1.0])


def reranker(loss="listwise", best_chunks=1, **changes):
    facts = {"loss": loss, "best_chunks": best_chunks}
    return ldt_model("ForSequenceClassification", num_labels=1, ranking=facts, **changes).double()


def chunks():
    """6 inputs of 12 tokens with a separator."""
    torch.manual_seed(0)
    ids = torch.randint(3, 40, (6, 12))
    ids[:, 4] = SEP
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize("best_chunks", [1, 2, 5])
@pytest.mark.parametrize("loss", ["listwise", "pointwise"])
@pytest.mark.parametrize("taught", [False, True])
def test_the_loss_of_a_ranking_is_that_written_out_with_gradients(loss, best_chunks, taught):
    model, teacher = reranker(loss, best_chunks), torch.tensor([1.0, 1.0, 0.5, -2, 3, 0])
    more = {"teacher": teacher} if taught else {}
    out = model(**chunks(), **RANKED, labels=RELEVANT, **more)
    found = grads(model, out.loss)
    logit = model(**chunks()).logits[:, 0]
    several = torch.maximum(logit[0], logit[1]) if best_chunks == 1 else (logit[0] + logit[1]) / 2
    wanted = 0
    for scores, labels, theirs in (
        ([several, logit[2], logit[3]], [0, 2, 1], teacher[[0, 2, 3]].double()),
        ([logit[4], logit[5]], [0, 1], teacher[4:].double()),
    ):
        scores = torch.stack(scores)
        shares = scores.exp() / scores.exp().sum()
        if loss == "listwise":
            weights = torch.tensor(labels).double() / sum(labels)
            wanted = wanted - (weights * shares.log()).sum()
        else:
            chance = 1 / (1 + (-scores).exp())
            right = torch.tensor(labels)
            each = right * chance.log() + (1 - right) * (1 - chance).log()
            wanted = wanted - each.mean()
        if taught:
            wanted = wanted - (theirs.exp() / theirs.exp().sum() * shares.log()).sum()
    assert out.loss.item() == pytest.approx(wanted.item() / 2, rel=1e-9)
    assert_same_grads(found, grads(model, wanted / 2))


def test_queries_without_a_relevant_document_count_where_they_have_a_loss():
    batch = chunks() | RANKED | {"labels": RELEVANT * torch.tensor([1, 1, 1, 1, 0, 0])}
    model = reranker()
    assert model.loss_items(**batch) == 1
    assert reranker("pointwise").loss_items(**batch) == 2
    assert model.loss_items(**batch, teacher=RELEVANT) == 2
    first = {name: value[:4] for name, value in batch.items()}
    assert model(**batch).loss.item() == pytest.approx(model(**first).loss.item(), rel=1e-9)


def test_the_query_is_global_where_the_config_says_so():
    model = reranker(global_attention=["cls", "query"])
    batch = chunks()
    mask = (torch.arange(12) < 4).long().expand(6, 12)
    with torch.no_grad():
        alone, given = model(**batch).logits, model(**batch, global_attention_mask=mask).logits
        model.config.global_attention = ["cls"]
        first = model(**batch).logits
    assert torch.equal(alone, given)
    assert not torch.allclose(first, given, atol=1e-4)


def test_memory_does_not_grow_with_the_documents_of_a_query():
    model = reranker(max_position_embeddings=66, pad_token_id=1).float().train()
    row = {
        "input_ids": torch.randint(3, 40, (1, 64)),
        "attention_mask": torch.ones(1, 64, dtype=torch.long),
        "labels": torch.tensor([1.0]),
        "documents": torch.tensor([0]),
    }
    one, four, sixteen = (peak(model, rows, **row) for rows in (1, 4, 16))
    assert max(four, sixteen) < 1.25 * one
