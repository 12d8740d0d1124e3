"""Summaries: inputs and targets, what is written, what is measured."""

from types import SimpleNamespace

import numpy as np
import pytest
from transformers import AutoTokenizer, GenerationConfig

from ldt.data.options import DataSection
from ldt.errors import DataError, RecipeError
from ldt.io.records import Example
from ldt.recipe import recipe as recipes
from ldt.tasks import Summarization
from ldt.tasks.summarization import shares
from ldt.tasks.writing import Generation

TEXT = "the party of the first part and the other party agree "
CONFIG = SimpleNamespace(max_decoder_position_embeddings=64)


def example(**fields):
    return Example({"text": TEXT, "summary": "the party agree"} | fields, "d", "train.jsonl:17")


@pytest.fixture
def encode(tiny):
    def encode(example, max_length=128, config=CONFIG, task=None, **data):
        section = DataSection(**{"overflow": "truncate"} | data)
        task = task or Summarization()
        options = {"data": section, "max_length": max_length, "config": config}
        (feature,) = task.encode(example, tiny, **options)
        return feature

    return encode


def marked(feature, tiny):
    """The input as text, global tokens between brackets."""
    pairs = zip(feature["input_ids"], feature["global_attention_mask"], strict=True)
    return "".join(f"[{tiny.decode([i])}]" if mark else tiny.decode([i]) for i, mark in pairs)


# the input


def test_a_text_stands_between_s_and_s_whose_first_token_is_global(encode, tiny):
    feature = encode(example(text="the party"))
    assert marked(feature, tiny) == "[<s>]the party</s>"
    assert feature["tokens"] == len(feature["input_ids"])
    assert feature["flags"] == {}
    assert encode(example(text=" \n"))["flags"] == {"empty": True}


def test_a_question_and_the_separators_are_global(encode, tiny):
    asked = example(text=["the party", "the other party"], question=" the end? ")
    feature = encode(asked)
    is_global = np.array(feature["global_attention_mask"], bool)
    ids = np.array(feature["input_ids"])
    question = tiny("the end?", add_special_tokens=False)["input_ids"]
    assert ids[is_global].tolist() == [0, *question, 2, 2]
    assert tiny.decode(ids) == "<s>the end?</s>the party</s>the other party</s>"
    assert not is_global[-1]
    only = Summarization(global_attention=["document", "sep"])
    mask = encode(asked, task=only)["global_attention_mask"]
    assert [not mark for mark in mask] == is_global.tolist()


def test_known_ids_are_those_of_led(shared_data):
    tokenizer = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / "roberta-base")
    task, section = Summarization(), DataSection(overflow="truncate")
    made = example(text="Hello world!", summary="Hello")
    (feature,) = task.encode(made, tokenizer, data=section, max_length=9, config=CONFIG)
    assert feature["input_ids"] == tokenizer("Hello world!")["input_ids"]
    assert feature["labels"].tolist() == tokenizer("Hello")["input_ids"]


@pytest.mark.parametrize(
    ("lengths", "room", "read"),
    [
        ([5, 5], 10, [5, 5]),
        ([9, 9], 10, [5, 5]),
        ([2, 9, 9], 10, [2, 4, 4]),
        ([9, 1, 9], 10, [4, 1, 5]),
        ([9, 0, 3, 4], 10, [3, 0, 3, 4]),
        ([100, 3, 3, 3], 11, [3, 2, 3, 3]),
        ([7], 4, [4]),
        ([2, 3], 99, [2, 3]),
    ],
)
def test_documents_have_the_same_share_and_short_ones_leave_theirs(lengths, room, read):
    found = shares(lengths, room)
    assert sorted(found) == sorted(read)
    assert sum(found) == min(sum(lengths), room)
    assert all(size <= length for size, length in zip(found, lengths, strict=True))
    # No document that is cut has more than one token less than any other has.
    cut = [size for size, length in zip(found, lengths, strict=True) if size < length]
    assert not cut or max(found) <= min(cut) + 1


def test_each_document_is_cut_and_the_answer_says_how_far_it_was_read(encode, tiny):
    long = tiny(TEXT * 3, add_special_tokens=False)["input_ids"]
    short = tiny("the end", add_special_tokens=False)["input_ids"]
    feature = encode(example(text=[TEXT * 3, "the end", TEXT * 3]), max_length=40)
    room = 40 - 4
    share = (room - len(short)) // 2
    first, rest = long[:share], long[: room - len(short) - share]
    assert feature["input_ids"] == [0, *first, 2, *short, 2, *rest, 2]
    assert len(feature["input_ids"]) == 40
    unread = 2 * len(long) + len(short) - room
    read = [len(first), len(short), len(rest)]
    assert feature["flags"] == {"truncated": True, "unread_tokens": unread, "read_tokens": read}
    assert feature["tokens"] == 40 + unread
    with pytest.raises(DataError, match=r"document 'd' has [\d,]+ tokens, 36 fit; data.overflow="):
        encode(example(text=[TEXT * 3, "the end", TEXT * 3]), max_length=40, overflow="error")


def test_a_question_is_cut_on_request(encode, tiny):
    asked = example(question=TEXT * 9)
    with pytest.raises(DataError, match="the special tokens leave 0 .* task.max_q"):
        encode(asked, max_length=64)
    feature = encode(asked, max_length=64, task=Summarization(max_question=3))
    assert feature["flags"]["question_cut"]
    assert feature["input_ids"][4] == tiny.sep_token_id


@pytest.mark.parametrize(
    ("fields", "data", "message"),
    [
        ({"summary": " "}, {}, "train.jsonl:17: the summary is empty"),
        ({"summary": 3}, {}, "field 'summary' is a number, expected text"),
        ({"text": 3}, {}, "field 'text' is 3, expected text or a list of documents"),
        ({"text": []}, {}, "field 'text' is a list, empty, expected text"),
        ({"text": ["a", 1]}, {}, "field 'text': a number in place 2, expected text"),
        ({}, {"fields": {"question": "query"}}, "no field 'query'; it has 'text', 'summary'"),
        ({}, {"fields": {"summary": "sumary"}}, "no field 'sumary'; did you mean 'summary'"),
        (
            {"text": ["the"] * 99},
            {},
            "the special tokens leave 28 tokens .* fewer doc",
        ),
    ],
)
def test_a_line_that_cannot_be_used_is_told(encode, fields, data, message):
    with pytest.raises(DataError, match=message):
        encode(example(**fields), **data)


# the target


def test_a_summary_is_cut_to_the_positions_of_the_decoder_and_counted(encode, tiny):
    words = tiny(TEXT * 3, add_special_tokens=False)["input_ids"]
    nine = SimpleNamespace(max_decoder_position_embeddings=9)
    feature = encode(example(summary=TEXT * 3), config=nine)
    assert feature["labels"].tolist() == [0, *words[:7], 2]
    assert feature["target"] == len(words) + 2
    task = Summarization(max_target_tokens=5)
    short = encode(example(), task=task)
    cut = encode(example(summary=TEXT * 3), task=task)
    assert cut["labels"].tolist() == [0, *words[:3], 2]
    (line,) = task.remarks([short, cut, cut], 0)
    assert line.endswith("2 of 3 cut after 5 tokens")
    with pytest.raises(RecipeError, match="max_target_tokens: 65 tokens, the decoder .* 64 posit"):
        encode(example(), task=Summarization(max_target_tokens=65))
    with pytest.raises(RecipeError, match="a longformer model has no decoder"):
        encode(example(), config=SimpleNamespace(model_type="longformer"))


# the search


def test_the_longest_summary_is_the_95th_percentile_of_the_training_set(encode):
    short, long = encode(example(summary="the")), encode(example(summary=TEXT))
    sizes = [len(each["labels"]) for each in (short, long)]
    changes, lines = Summarization().config_changes([short] * 99 + [long], CONFIG)
    assert changes["generation"]["max_length"] == sizes[0] + 1
    assert lines == [f"generation: num_beams 4, max_length {sizes[0] + 1}"]
    changes, _ = Summarization().config_changes([short] * 18 + [long] * 2, CONFIG)
    assert changes["generation"]["max_length"] == sizes[1] + 1
    own = Summarization(generation=Generation(max_length=8, num_beams=1))
    made = own.config_changes([long] * 9, CONFIG)[0]["generation"]
    assert made["max_length"] == 8
    assert not {"early_stopping", "length_penalty"} & made.keys()
    GenerationConfig(**made).validate(strict=True)


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"max_length": 65}, "task.generation: summaries of 65 tokens, the decoder of the mode"),
        ({"min_length": 65}, "task.generation: summaries of 65 tokens, the decoder"),
    ],
)
def test_a_summary_longer_than_the_decoder_is_refused(encode, generation, message):
    with pytest.raises(RecipeError, match=message):
        Summarization(generation=Generation(**generation)).config_changes(
            [encode(example())], CONFIG
        )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.generation.num_beam=2", ".num_beam=2: unknown key, did you mean 'num_beams'?"),
        ("task.generation.do_sample=true", "unknown key, expected one of num_beams, length_"),
        ("task.generation.num_beams=1", "length_penalty compares beams, num_beams is 1"),
        ("task.generation.min_length=9", "a text of 9 tokens at least and 8 at most"),
        ("data.overflow=chunks", "one input a document: expected truncate or error, got chunks"),
        ("task.global_attention=[title]", "no 'title' in the input of summarization, which has"),
    ],
)
def test_what_is_wrong_in_a_recipe_is_told(tmp_path, override, message):
    path = tmp_path / "r.yaml"
    path.write_text(
        "task:\n  name: summarization\n  generation: {length_penalty: 2.0, max_length: 8}\n"
        "data: {overflow: error}\n"
    )
    recipes.load(path)
    with pytest.raises(RecipeError) as raised:
        recipes.load(path, [override])
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
