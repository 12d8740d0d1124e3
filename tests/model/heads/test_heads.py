import pytest
import torch
from longformers import PAD, SEP, gradients, ldt_config, ldt_model, longformer
from torch.nn import functional as F

from ldt.model import LdtForQuestionAnswering, LdtForSequenceClassification


def rows(*texts, length=12):
    """Ids and mask of rows written as letters: s separator, _ padding, other letters words."""
    ids = {"s": SEP, "_": PAD}
    text = [row.ljust(length, "_") for row in texts]
    found = torch.tensor([[ids.get(c, 3 + ord(c) % 32) for c in row] for row in text])
    return found, torch.tensor([[int(c != "_") for c in row] for row in text])


def global_tokens(model, *args, **kwargs):
    """Positions with global attention in what the encoder is given, a list a row."""
    seen = []

    def look(module, args):
        seen.append(args[2])

    handle = model.longformer.register_forward_pre_hook(look)
    model(*args, **kwargs)
    handle.remove()
    return [row.nonzero().squeeze(1).tolist() for row in seen[0]]


def test_classification_looks_from_the_first_real_token_of_each_row():
    model = ldt_model("ForSequenceClassification")
    ids, mask = rows("cabs", "__cabs", "_c_abs", "")
    assert global_tokens(model, ids, mask) == [[0], [2], [1], [0]]
    assert global_tokens(model, ids) == [[0]] * 4
    embeds = model.get_input_embeddings()(ids)
    assert global_tokens(model, None, mask, inputs_embeds=embeds)[:3] == [[0], [2], [1]]


def test_questions_look_from_all_real_tokens_before_the_first_separator():
    model = ldt_model("ForQuestionAnswering")
    ids, mask = rows("cabsdefs", "cabssdefs", "cas", "__cabsdsss", "c_absd", "")
    expected = [[0, 1, 2], [0, 1, 2], [0, 1], [2, 3, 4], [0, 2, 3], []]
    assert global_tokens(model, ids, mask) == expected


def test_choices_look_from_all_real_tokens_from_the_second_after_the_separator():
    model = ldt_model("ForMultipleChoice")
    ids, mask = rows("cabssdefs", "cabsdefs", "__cabssds", "cass_ds", "cabs", "")
    expected = [[5, 6, 7, 8], [5, 6, 7], [7, 8], [5, 6], [], []]
    shape = (3, 2, 12)
    assert global_tokens(model, ids.view(shape), attention_mask=mask.view(shape)) == expected


def test_the_rules_equal_those_of_transformers_where_it_has_an_answer():
    ids, mask = rows("cabssdefs", "cssabcdefs")
    theirs, seen = longformer("ForQuestionAnswering"), []
    theirs.longformer.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["global_attention_mask"]), with_kwargs=True
    )
    theirs(ids, attention_mask=mask)
    found = global_tokens(ldt_model("ForQuestionAnswering"), ids, mask)
    assert found == [row.nonzero().squeeze(1).tolist() for row in seen[0]]


def test_a_separator_under_padding_does_not_count():
    ids, mask = rows("sasbsdef")
    mask[0, [0, 2]] = 0
    assert global_tokens(ldt_model("ForQuestionAnswering"), ids, mask) == [[1, 3]]


@pytest.mark.parametrize("head", ["ForQuestionAnswering", "ForMultipleChoice"])
def test_without_separators_or_ids_the_global_tokens_must_be_given(head):
    model = ldt_model(head)
    ids, mask = rows("cabs", "cabd", "cabs", "cabs")
    where = "row 1: no separator"
    if head == "ForMultipleChoice":
        ids, mask = ids.view(2, 2, 12), mask.view(2, 2, 12)
        where = "row 0, choice 1: no separator"
    with pytest.raises(ValueError, match=where):
        model(ids, attention_mask=mask)
    embeds = model.get_input_embeddings()(ids)
    with pytest.raises(ValueError, match="without input_ids .*; give global_attention_mask"):
        model(inputs_embeds=embeds, attention_mask=mask)
    model(inputs_embeds=embeds, attention_mask=mask, global_attention_mask=torch.zeros_like(ids))
    model.config.sep_token_id = None
    with pytest.raises(ValueError, match="without sep_token_id in the config"):
        model(ids, attention_mask=mask)


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForMultipleChoice"])
def test_neither_ids_nor_embeddings_is_a_clear_error(head):
    with pytest.raises(ValueError, match="give either input_ids or inputs_embeds"):
        ldt_model(head)(attention_mask=torch.ones(2, 3))


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForMultipleChoice", "Model"])
def test_under_left_padding_the_answer_depends_on_the_text(head):
    model, theirs = ldt_model(head), longformer(head)
    name = "pooler_output" if head == "Model" else "logits"
    found = []
    for text in ("____cabssds", "____cxyssqs"):
        ids, mask = rows(text, text)
        if head == "ForMultipleChoice":
            ids, mask = ids[None], mask[None]
        found.append([m(ids, attention_mask=mask)[name] for m in (model, theirs)])
    (ours, peer), (other, same) = found
    assert not torch.allclose(ours, other, atol=1e-3)
    assert torch.allclose(peer, same, atol=1e-6), "transformers has changed, and so may ldt's text"


def test_the_kind_of_problem_is_guessed_from_each_batch_and_not_kept():
    model = ldt_model("ForSequenceClassification")
    ids, mask = rows("cabs", "dabs")
    logits = model(ids, mask).logits
    for labels, expected in (
        (torch.tensor([2, 1]), F.cross_entropy),
        (torch.tensor([2, 1], dtype=torch.int32), lambda x, y: F.cross_entropy(x, y.long())),
        (torch.tensor([[2], [1]]), lambda x, y: F.cross_entropy(x, y.flatten())),
        (torch.tensor([[0.0, 1, 1], [1, 0, 0]]), F.binary_cross_entropy_with_logits),
        (
            torch.tensor([[0, 1, 1], [1, 0, 0]]),
            lambda x, y: F.binary_cross_entropy_with_logits(x, y.float()),
        ),
    ):
        assert torch.allclose(model(ids, mask, labels=labels).loss, expected(logits, labels))
        assert model.config.problem_type is None
    with pytest.raises(ValueError, match="must be the same"):  # neither classes nor a row of labels
        model(ids, mask, labels=torch.tensor([0.5, 1.0]))


@pytest.mark.parametrize("labels", [torch.tensor([1, 3]), torch.tensor([[1.0], [3.0]])])
def test_one_label_is_regression(labels):
    model = ldt_model("ForSequenceClassification", num_labels=1)
    ids, mask = rows("cabs", "dabs")
    out = model(ids, mask, labels=labels)
    expected = F.mse_loss(out.logits.flatten(), torch.tensor([1.0, 3.0]))
    assert torch.allclose(out.loss, expected)


def test_padding_does_not_compete_in_the_span_softmax():
    model = ldt_model("ForQuestionAnswering")
    ids, mask = rows("cabsdefs", length=8)
    gold = {"start_positions": torch.tensor([4]), "end_positions": torch.tensor([6])}
    expected = model(ids, mask, **gold).loss
    ids, mask = rows("cabsdefs", length=27)
    out = model(ids, mask, **gold)
    assert torch.allclose(out.loss, expected)
    assert (out.start_logits[0, 8:] == torch.finfo(torch.float32).min).all()


def test_positions_outside_of_the_real_tokens_are_ignored():
    model = ldt_model("ForQuestionAnswering")
    ids, mask = rows("cabsdefs", "cabsdefs", "cabsdefs", "cabsdefs")
    one = model(
        ids[:1], mask[:1], start_positions=torch.tensor([4]), end_positions=torch.tensor([6])
    )
    start, end = torch.tensor([4, 99, -1, 9]), torch.tensor([[6], [12], [-100], [11]])
    out = model(ids, mask, start_positions=start, end_positions=end)
    assert torch.allclose(out.loss, one.loss)
    none = torch.tensor([99] * 4)
    assert model(ids, mask, start_positions=none, end_positions=none).loss == 0
    assert model(ids, mask, start_positions=start).loss is None


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForTokenClassification"])
def test_labels_at_padding_do_not_count(head):
    model = ldt_model(head).train()
    ids, mask = rows("cabs", "_d_ebs")
    labels = ids % 3
    expected = model(ids, mask, labels=labels.masked_fill(mask == 0, -100)).loss
    assert torch.equal(model(ids, mask, labels=labels).loss, expected)
    none = model(ids, mask, labels=torch.full_like(ids, -100)).loss
    none.backward()
    assert none == 0
    assert not any(gradient.any() for gradient in gradients(model).values())


def test_logits_at_padding_are_zero():
    ids, mask = rows("cabs", "_d_ebs")
    for head in ("ForMaskedLM", "ForTokenClassification"):
        logits = ldt_model(head)(ids, mask).logits
        assert not logits[mask == 0].any()
        assert logits[mask == 1].any(-1).all()


def test_the_lm_head_is_tied_to_the_embeddings():
    model = ldt_model("ForMaskedLM")
    assert model.lm_head.decoder.weight is model.longformer.embeddings.word_embeddings.weight
    assert model.lm_head.decoder.bias is model.lm_head.bias


def test_question_answering_has_two_labels_and_leaves_the_config_alone():
    config = ldt_config(num_labels=5)
    model = LdtForQuestionAnswering(config)
    assert (config.num_labels, model.config.num_labels) == (5, 2)
    assert model.qa_outputs.out_features == 2


def test_an_unknown_argument_is_an_error():
    with pytest.raises(TypeError):
        LdtForSequenceClassification(ldt_config())(torch.ones(1, 2).long(), num_items=3)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_classification_can_read_all_real_tokens(pooling):
    model = ldt_model("ForSequenceClassification", classifier_pooling=pooling).double()
    ids, mask = rows("cabsdefg", "__cabs", "_c_abs", "")
    x = model.longformer(ids, mask, global_attention_mask=(ids == ids[0, 0]) * mask)
    expected = []
    for row, keep in zip(x.last_hidden_state, mask.bool(), strict=True):
        real = row[keep]
        if not len(real):
            expected.append(torch.zeros_like(row[0]))
        else:
            expected.append(real.mean(0) if pooling == "mean" else real.amax(0))
    logits = model(ids, mask, global_attention_mask=(ids == ids[0, 0]) * mask).logits
    torch.testing.assert_close(logits, model.classifier(torch.stack(expected)))
    logits.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
