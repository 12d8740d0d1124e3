"""Generated tokens are those of transformers' LED, and a document is kept once for all of them."""

import pytest
import torch
from leds import START, TABLE, alone, documents, first_tokens, pair
from longformers import PAD, VOCABULARY
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from ldt.model.seq2seq.decoder import SharedCache

WAYS = {
    "greedy": {},
    "3 beams": {"num_beams": 3},
    "4 beams": {"num_beams": 4, "early_stopping": True, "length_penalty": 2.0},
    "several": {"num_beams": 4, "num_return_sequences": 3},
    "ban": {"no_repeat_ngram_size": 2, "num_beams": 3},
    "ban of the source": {"encoder_no_repeat_ngram_size": 2, "num_beams": 3},
    "bad words": {"bad_words_ids": [[5], [7, 8]]},
    "penalty": {"repetition_penalty": 1.7, "num_beams": 2},
    "shortest": {"min_length": 9, "num_beams": 2, "length_penalty": 0.5},
    "forced": {"forced_bos_token_id": 0, "forced_eos_token_id": 2, "num_beams": 2},
    "sampled": {"do_sample": True, "top_k": 12, "temperature": 0.8, "num_return_sequences": 3},
    "sampled beams": {"do_sample": True, "num_beams": 3},
    "without a cache": {"use_cache": False, "num_beams": 3},
    "prefix": {"decoder_input_ids": torch.tensor([[START, 0, 9]] * 4), "num_beams": 3},
    "start is added": {"decoder_input_ids": torch.tensor([[6, 9]] * 4)},
}


def write(model, inputs, **way):
    torch.manual_seed(0)
    return model.generate(**inputs, **{"max_length": 16} | way)


@pytest.mark.parametrize("way", WAYS)
def test_tokens_equal_those_of_transformers(way, tmp_path, exact_peer):
    theirs, ours = pair(tmp_path)
    inputs = documents(21, "right")
    expected = write(theirs, first_tokens(inputs), **WAYS[way])
    assert torch.equal(write(ours, inputs, **WAYS[way]), expected)
    assert len(expected.unique(dim=0)) > 1  # documents matter


def test_scores_of_beams_equal_those_of_transformers(tmp_path, exact_peer):
    theirs, ours = pair(tmp_path)
    inputs = first_tokens(documents(21, "right"))
    way = {"num_beams": 3, "output_scores": True, "return_dict_in_generate": True}
    found, expected = write(ours, inputs, **way), write(theirs, inputs, **way)
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, rtol=0, atol=1e-9)
    assert torch.equal(found.sequences, expected.sequences)


def test_the_encoders_output_can_be_given(tmp_path):
    _, ours = pair(tmp_path)
    inputs = documents(21, "mixed")
    expected = write(ours, inputs, num_beams=3)
    encoded = ours.get_encoder()(**inputs)
    mask = {"attention_mask": inputs["attention_mask"]}
    assert torch.equal(write(ours, mask, encoder_outputs=encoded, num_beams=3), expected)
    # without the mask padding is read
    other = BaseModelOutput(encoded.last_hidden_state + 1)
    assert not torch.equal(write(ours, {}, encoder_outputs=other, num_beams=3), expected)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_document_gives_the_same_alone_as_in_a_padded_batch(beams, tmp_path):
    _, ours = pair(tmp_path)
    inputs = documents(33, "mixed")
    found = write(ours, inputs, num_beams=beams)
    for row in range(4):
        one = write(ours, alone(inputs, row), num_beams=beams)[0]
        assert torch.equal(found[row][: len(one)], one)
        assert (found[row][len(one) :] == PAD).all()


@pytest.mark.parametrize("way", [{}, {"use_cache": False}, {"num_beams": 3}], ids=str)
def test_a_padded_prefix_gives_what_it_gives_alone(way, tmp_path, exact_peer):
    theirs, ours = pair(tmp_path)
    inputs = first_tokens(documents(21))
    prefixes = [[START, 0, 9, 6], [START, 0], [START], [START, 0, 30]]
    ids = torch.tensor([[PAD] * (4 - len(prefix)) + prefix for prefix in prefixes])
    way = way | {"max_length": None, "max_new_tokens": 6, "eos_token_id": VOCABULARY + 1}
    way |= {"output_logits": True, "return_dict_in_generate": True}
    given = {"decoder_input_ids": ids, "decoder_attention_mask": (ids != PAD).long()}
    found = write(ours, inputs, **given, **way)
    beams = way.get("num_beams", 1)
    for row, prefix in enumerate(prefixes):
        one = {key: x[row : row + 1] for key, x in inputs.items()}
        expected = write(theirs, one, decoder_input_ids=torch.tensor([prefix]), **way)
        assert torch.equal(found.sequences[row, 4 - len(prefix) :], expected.sequences[0])
        for a, b in zip(found.logits, expected.logits, strict=True):
            torch.testing.assert_close(a[row * beams : (row + 1) * beams], b, rtol=0, atol=1e-9)


def test_beams_share_the_keys_and_values_of_a_document(tmp_path, monkeypatch):
    _, ours = pair(tmp_path)
    kept = []
    reorder = SharedCache.reorder_cache

    def noted(self, beams):
        reorder(self, beams)
        (_, keys, values), *rest = self.memory[0]
        assert not rest  # no padding: one group
        kept.append((keys.data_ptr(), values.data_ptr(), tuple(keys.shape)))

    monkeypatch.setattr(SharedCache, "reorder_cache", noted)
    write(ours, documents(21), num_beams=4)
    assert len(kept) > 5
    assert set(kept) == {kept[0]}
    assert kept[0][2] == (4, 4, 21, 4)  # documents, heads, tokens, dim: no beams


def test_steps_with_a_cache_give_the_logits_of_one_pass(tmp_path):
    _, ours = pair(tmp_path)
    inputs = documents(33, "mixed")
    ids = torch.randint(3, VOCABULARY, (4, 9))
    whole = ours(**inputs, decoder_input_ids=ids)
    assert isinstance(whole.past_key_values, SharedCache)
    cache, parts = None, []
    for part in ids.split([3, 1, 4, 1], dim=1):
        out = ours(**inputs, decoder_input_ids=part, past_key_values=cache)
        cache = out.past_key_values
        parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole.logits, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ({"max_length": TABLE + 1}, "max_length 25 .*position table holds, 24 tokens"),
        ({"max_length": None, "max_new_tokens": TABLE}, "max_length 25"),
        ({"cache_implementation": "static"}, "cache_implementation 'static' is not offered"),
        (
            {"past_key_values": EncoderDecoderCache(DynamicCache(), DynamicCache())},
            "got a EncoderDecoderCache",
        ),
        ({"output_attentions": True, "return_dict_in_generate": True}, "no output_attentions"),
    ],
)
def test_what_cannot_be_generated_is_an_error_that_says_so(way, message, tmp_path):
    _, ours = pair(tmp_path)
    with pytest.raises(ValueError, match=message):
        write(ours, documents(21), **way)


def test_the_longest_output_fills_the_table(tmp_path):
    _, ours = pair(tmp_path)
    found = write(ours, documents(21), max_length=TABLE, eos_token_id=VOCABULARY + 1)
    assert found.shape == (4, TABLE)


def test_prompt_lookup_gives_the_tokens_of_greedy_search(tmp_path):
    _, ours = pair(tmp_path)
    inputs = alone(documents(21), 0)
    expected = write(ours, inputs)
    assert torch.equal(write(ours, inputs, prompt_lookup_num_tokens=3), expected)
