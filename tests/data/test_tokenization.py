import string

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer, XLMRobertaTokenizer

from ldt.data import tokenization
from ldt.data.tokenization import add_tokens, tokenize, tokenize_with_offsets

MARKERS = ("[E1]", "[/E1]", "[X]")


@pytest.fixture(params=["roberta-base", "bert-base-uncased", "xlm-roberta"])
def tokenizer(request, shared_data):
    """One with markers of its user: two by the name of extra tokens, one added as a special one."""
    if request.param == "xlm-roberta":
        pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0)]
        signs = string.ascii_letters + string.digits + string.punctuation
        made = XLMRobertaTokenizer(vocab=[*pieces, *((c, -6.0) for c in signs), ("<mask>", 0.0)])
    else:
        made = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / request.param)
    made.add_special_tokens({"additional_special_tokens": ["[E1]", "[/E1]"]})
    made.add_tokens(["[X]"], special_tokens=True)
    return made


def test_tokens_that_a_user_added_are_read_in_a_text_as_transformers_reads_them(tokenizer):
    text = "the [E1] Acme [/E1], [X]pays"
    ids, offsets = tokenize_with_offsets(tokenizer, text)
    assert ids == tokenize(tokenizer, text) == tokenizer(text, add_special_tokens=False).input_ids
    for marker in MARKERS:
        start, end = offsets[ids.index(tokenizer.convert_tokens_to_ids(marker))]
        assert text[start:end] == marker


def test_special_tokens_of_a_model_or_a_task_stay_text(tokenizer, tmp_path):
    add_tokens(tokenizer, ["[SPAN]"])
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    own = ["[SPAN]", *(getattr(loaded, f"{role}_token") for role in ("cls", "sep", "pad", "mask"))]
    for each in (tokenizer, loaded):
        ids = tokenize(each, f"[X] {' '.join(own)} {' '.join(MARKERS)}")
        assert not {*each.convert_tokens_to_ids(own)} & {*ids}
        assert {*each.convert_tokens_to_ids(list(MARKERS))} < {*ids}


def test_a_long_text_is_cut_neither_inside_of_an_added_token_nor_behind_it(tokenizer, monkeypatch):
    tokenizer.add_tokens([AddedToken("[a b]", rstrip=True, special=True)], special_tokens=True)
    text = "[a b] pays [E1] the, [a b] fee " * 40
    whole = tokenize(tokenizer, text)
    for size in (31, 57, 100):
        monkeypatch.setattr(tokenization, "PIECE", size)
        assert tokenize(tokenizer, text) == whole
