"""Masks: what is chosen, what is shown in its place, whole words; and the figures."""

import math

import numpy as np
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.decoders import Metaspace, WordPiece
from transformers import PreTrainedTokenizerFast

from ldt.data.masking import Masker, word_joins
from ldt.errors import RecipeError
from ldt.tasks.language_models import MaskedLM, masked_lm_metrics


def made(vocabulary, decoder):
    """A tokenizer of whole entries with that decoder."""
    known = {text: number for number, text in enumerate(["[UNK]", "[MASK]", *vocabulary])}
    inner = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Whitespace(), decoder
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="[UNK]", mask_token="[MASK]", cls_token="[UNK]"
    )


def test_a_mask_hides_four_fifths_and_replaces_a_tenth_of_the_chosen(tokenizer):
    ids = np.full(100_000, 50, np.uint16)
    shown, labels = Masker(tokenizer)(ids, np.random.default_rng(0))
    chosen = labels != -100
    assert (labels[chosen] == 50).all()
    assert (shown[~chosen] == 50).all()
    assert chosen.mean() == pytest.approx(0.15, abs=0.005)
    hidden = shown[chosen] == tokenizer.mask_token_id
    kept = shown[chosen] == 50
    assert hidden.mean() == pytest.approx(0.8, abs=0.01)
    assert kept.mean() == pytest.approx(0.1, abs=0.01)
    random = shown[chosen][~hidden & ~kept]
    assert len(np.unique(random)) > 200
    assert not np.isin(random, tokenizer.all_special_ids).any()


def test_special_tokens_are_never_chosen(tokenizer):
    ids = np.array([*tokenizer.all_special_ids, 40] * 500)
    _, labels = Masker(tokenizer, 0.9)(ids, np.random.default_rng(0))
    assert set(labels.tolist()) == {-100, 40}


def test_the_same_generator_draws_the_same_mask(tokenizer):
    mask, ids = Masker(tokenizer), np.arange(5, 290)
    first, same, other = (mask(ids, np.random.default_rng((1, 2, n)))[0] for n in (3, 3, 4))
    assert (first == same).all()
    assert (first != other).any()


def words_chosen(masker, words):
    """For each word, a list of token ids: whether all or none of it was chosen."""
    ids = np.array([token for word in words for token in word])
    _, labels = masker(ids, np.random.default_rng(0))
    chosen = np.split(labels != -100, np.cumsum([len(word) for word in words])[:-1])
    return [bool(part.all()) for part in chosen if part.all() or not part.any()]


def test_whole_words_of_byte_level_bpe_go_together(tokenizer):
    text = " agreement naïve (party) 人類" * 60
    ids = tokenizer(text, add_special_tokens=False).input_ids
    letters = tokenizer.convert_ids_to_tokens(ids)
    opens, closes = word_joins(tokenizer)
    joined = [bool(opens[b] and closes[a]) for a, b in zip(ids, ids[1:], strict=False)]
    words, word = [], [ids[0]]
    for token, more in zip(ids[1:], joined, strict=True):
        words, word = (words, [*word, token]) if more else ([*words, word], [token])
    words.append(word)
    said = [tokenizer.decode(word) for word in words]
    assert said[:6] == [" agreement", " naïve", " ", "(", "party", ")"], letters[:20]
    found = words_chosen(Masker(tokenizer, 0.5, whole_words=True), words)
    assert len(found) == len(words)
    assert 0.4 < np.mean(found) < 0.6
    assert len(words_chosen(Masker(tokenizer, 0.5), words)) < len(words)


def test_wordpiece_and_sentencepiece_mark_their_words():
    opens, closes = word_joins(made(["re", "##turn", "."], WordPiece()))
    assert opens.tolist() == [False, False, False, True, False]
    assert closes.tolist() == [False, False, True, True, True]
    opens, closes = word_joins(made(["▁re", "turn", ".", "▁"], Metaspace()))
    assert opens.tolist() == [False, False, False, True, False, False]
    assert closes.tolist() == [False, False, True, True, False, True]


def test_a_tokenizer_without_marks_has_no_whole_words():
    with pytest.raises(RecipeError, match="marks no words"):
        Masker(made(["a"], None), whole_words=True)


def test_figures_are_nats_bits_bits_a_byte_and_perplexity():
    found = masked_lm_metrics(nats=6 * math.log(2), masked=3, tokens=100, size=400)
    assert found == {
        "loss": pytest.approx(2 * math.log(2)),
        "bits_per_token": pytest.approx(2.0),
        "bits_per_byte": pytest.approx(0.5),
        "perplexity": pytest.approx(4.0),
    }
    assert masked_lm_metrics(1e9, 1, 1, 1)["perplexity"] < math.inf


@pytest.mark.parametrize("keys", [{"trainable": "positions"}, {"source_length": 512}])
def test_training_positions_only_needs_to_know_which_are_new(keys):
    with pytest.raises(ValidationError, match="go together"):
        MaskedLM(**keys)
