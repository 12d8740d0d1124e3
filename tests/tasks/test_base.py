import logging
import random
from typing import ClassVar

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ldt.data import tokenization
from ldt.data.features import Segment, fit, join
from ldt.data.tokenization import add_tokens, special_id, tokenize
from ldt.errors import DataError, ModelError, RecipeError
from ldt.io.records import Example, read
from ldt.recipe.recipe import DataSection
from ldt.tasks import TASKS
from ldt.tasks.base import Task, TaskInputs

EXAMPLE = Example({}, "d", "train.jsonl:17")


def whole(tokenizer, text):
    """The ids that the tokenizer gives for the whole text at once."""
    options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    return tokenizer(text, **options)["input_ids"]


# join


def test_join_lays_segments_end_to_end_and_marks_the_roles_that_are_global():
    segments = [
        Segment("cls", [0]),
        Segment("question", [5, 6]),
        Segment("sep", [2]),
        Segment("document", [7, 8, 9], token_type=1),
        Segment("question", [4]),
        Segment("empty", []),
    ]
    assert join(segments, ["cls", "question", "empty"], token_types=True) == {
        "input_ids": [0, 5, 6, 2, 7, 8, 9, 4],
        "global_attention_mask": [1, 1, 1, 0, 0, 0, 0, 1],
        "token_type_ids": [0, 0, 0, 0, 1, 1, 1, 0],
    }
    assert join(iter(segments), []) == {
        "input_ids": [0, 5, 6, 2, 7, 8, 9, 4],
        "global_attention_mask": [0] * 8,
    }


def test_a_global_role_that_no_segment_has_is_an_error():
    with pytest.raises(ValueError, match="no segment has the role 'title'"):
        join([Segment("cls", [0])], ["cls", "title"])


# tokenize


@pytest.mark.parametrize("piece", [24, 100])
def test_pieces_give_the_ids_of_the_whole_text_whatever_is_in_it(real, monkeypatch, piece):
    monkeypatch.setattr(tokenization, "PIECE", piece)
    parts = ["a", "b", "the", "'s", "'", " ", " ", " ", "  ", "\n", "\t", "\n\n", "。", "漢字", "é"]
    parts += [
        "e\u0301",
        "\u0301",
        "\u200b",
        "\u00a0",
        "\u3000",
        "\x00",
        "\x1c",
        "\u2028",
        "1",
        "23",
    ]
    parts += ["!", "?!", "</s>", "[SEP]", "ﬁ", "İ", "\ufeff", "\u0085", "\U0001f600"]
    generator = random.Random(piece)
    cut = 0
    for _ in range(500):
        text = "".join(generator.choice(parts) for _ in range(80))
        pieces = list(tokenization._pieces(text))
        assert "".join(pieces) == text
        cut += len(pieces) > 1
        assert tokenize(real, text) == whole(real, text)
    assert cut > 400


def test_pieces_give_the_ids_of_whole_contracts(real, shared_data):
    found = sorted(
        (item.fields["text"] for item in read(shared_data / "cuad" / "cuad.dev.jsonl.gz")), key=len
    )
    for text in [*found[::12], found[-1]]:
        assert tokenize(real, text) == whole(real, text)
    assert len(list(tokenization._pieces(found[-1]))) > 10


def test_pieces_are_bounded_even_without_spaces():
    pieces = list(tokenization._pieces("x" * 1_000_000))
    assert max(map(len, pieces)) == tokenization.LONGEST_WORD
    assert sum(map(len, pieces)) == 1_000_000
    word = "x" * 100_000  # a word that is longer than a piece is still whole
    assert list(tokenization._pieces(f"{word} {word}")) == [word, " " + word]
    assert max(map(len, tokenization._pieces("word " * 10_000))) <= tokenization.PIECE


def test_no_warning_tells_that_a_text_is_longer_than_the_model(
    tokenizer_folder, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder, model_max_length=128)
    tokenize(tokenizer, "word " * 200)
    assert caplog.records == []


def test_special_tokens_spelt_out_in_the_text_are_text(real):
    text = "a </s> b <s><pad><mask> [SEP] [CLS][MASK] [PAD] <unk>"
    assert set(whole(real, text)) == set(tokenize(real, text))
    assert not set(tokenize(real, text)) & set(real.all_special_ids)


def test_special_tokens_of_a_task_spelt_out_in_the_text_are_text(shared_data):
    roberta = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / "roberta-base")
    (ent,) = add_tokens(roberta, ["[ent]"])
    assert ent not in tokenize(roberta, "a [ent] b")
    assert roberta.decode(tokenize(roberta, "a [ent] b")) == "a [ent] b"


def test_a_vocabulary_that_holds_special_tokens_as_words_gives_unknown_for_them():
    letters = [(letter, -3.0) for letter in "ab</>s▁"]
    model = models.Unigram([("<s>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *letters], 2)
    inner = Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, **special)
    assert 1 in whole(tokenizer, "a</s>b")  # which is why
    tokenization = tokenizer.convert_ids_to_tokens(tokenize(tokenizer, "a</s>b"))
    assert tokenization == ["▁", "a", "<unk>", "b"]


def test_bos_and_eos_stand_in_for_cls_and_sep(tiny):
    assert special_id(tiny, "cls") == tiny.cls_token_id
    plain = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", eos_token="</s>")
    assert (special_id(tokenizer, "cls"), special_id(tokenizer, "sep")) == (0, 1)
    with pytest.raises(ModelError, match="has no mask token"):
        special_id(tokenizer, "mask")


# fit


@pytest.mark.parametrize(
    ("length", "stride", "parts"),
    [
        (0, 0, [(0, 0)]),
        (10, 0, [(0, 10)]),
        (11, 0, [(0, 10), (1, 11)]),  # the last one is full and ends with the document
        (20, 0, [(0, 10), (10, 20)]),
        (20, 4, [(0, 10), (6, 16), (10, 20)]),
        (22, 4, [(0, 10), (6, 16), (12, 22)]),
        (13, 9, [(0, 10), (1, 11), (2, 12), (3, 13)]),
    ],
)
def test_windows_cover_the_document_and_the_last_ends_with_it(length, stride, parts):
    assert fit(length, 10, EXAMPLE, DataSection(stride=stride)) == (parts, {})


def test_more_windows_than_allowed_are_flagged():
    data = DataSection(max_chunks=2)
    flags = {"truncated": True, "unread_tokens": 10}
    assert fit(30, 10, EXAMPLE, data) == ([(0, 10), (10, 20)], flags)
    assert fit(20, 10, EXAMPLE, data) == ([(0, 10), (10, 20)], {})


def test_overflow_truncates_with_a_flag_or_stops_with_place_and_lengths():
    assert fit(11, 10, EXAMPLE, DataSection(overflow="truncate")) == (
        [(0, 10)],
        {"truncated": True, "unread_tokens": 1},
    )
    strict = DataSection(overflow="error")
    assert fit(10, 10, EXAMPLE, strict) == ([(0, 10)], {})
    what = "^train.jsonl:17: document 'd' has 4,100 tokens, 4,094 fit; data.overflow=chunks reads"
    with pytest.raises(DataError, match=what) as caught:
        fit(4100, 4094, EXAMPLE, strict)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(("room", "stride"), [(10, 10), (0, 0), (-1, 0)])
def test_a_stride_without_room_is_the_recipes_fault(room, stride):
    with pytest.raises(RecipeError, match="it must be smaller"):
        fit(20, room, EXAMPLE, DataSection(stride=stride))


# tasks


@pytest.mark.parametrize("task", TASKS.values())
def test_every_task_knows_its_name_and_its_global_roles(task):
    assert TASKS[task().name] is task
    if "global_attention" in task.model_fields:  # causal models have no global tokens
        assert set(task().global_attention) <= set(task.inputs.roles)


def test_a_role_that_the_task_does_not_have_is_an_error_of_the_recipe():
    class Pair(Task):
        inputs: ClassVar = TaskInputs(roles=("cls", "question"))
        head = learn = encode = gold = decode = measure = lambda self: None

    Pair(name="pair", global_attention=["question"])
    with pytest.raises(
        ValueError, match="no 'document' in the input of pair, which has cls, quest"
    ):
        Pair(name="pair", global_attention=["cls", "document"])
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        Pair(name="pair", global_attention=[], labells=[])
