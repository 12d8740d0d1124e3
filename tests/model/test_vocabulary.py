import torch
from transformers import AutoTokenizer

from ldt.data.tokenization import add_tokens, tokenize
from ldt.model import LdtForSequenceClassification, load
from ldt.model.loading import draw_embeddings


def test_a_new_token_is_one_token_that_no_text_spells(tokenizer_folder):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    size = len(tokenizer)
    assert add_tokens(tokenizer, ["[ent]", "[/ent]"]) == [size, size + 1]
    assert tokenizer.convert_tokens_to_ids("[/ent]") == size + 1
    assert size not in tokenize(tokenizer, "a [ent] b")
    assert add_tokens(tokenizer, ["[ent]", "[/ent]"]) == []


def test_new_embeddings_are_drawn_like_the_old_ones_which_stay(tiny_longformer):
    model = load(tiny_longformer, LdtForSequenceClassification)
    before = model.get_input_embeddings().weight.detach().clone()
    ids = list(range(len(before), len(before) + 400))
    draw_embeddings(model, [])
    assert len(model.get_input_embeddings().weight) == len(before)
    draw_embeddings(model, ids)
    after = model.get_input_embeddings().weight.detach()
    assert torch.equal(after[: len(before)], before)
    assert model.config.vocab_size == len(after) == ids[-1] + 1
    new = after[len(before) :]
    assert abs(new.mean() - before.mean()) < 5 * before.std() / new.numel() ** 0.5
    assert abs(new.std() / before.std() - 1) < 5 / (2 * new.numel()) ** 0.5
    draw_embeddings(model, [3])  # a row that is there already
    assert len(model.get_input_embeddings().weight) == len(after)
    assert not torch.equal(model.get_input_embeddings().weight[3], before[3])
