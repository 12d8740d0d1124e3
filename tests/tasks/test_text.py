import numpy as np
import pytest
from transformers import AutoTokenizer, PretrainedConfig

from ldt.data.sentences import Words
from ldt.data.tokenization import tokenize_with_offsets
from ldt.errors import DataError
from ldt.io.records import Example
from ldt.recipe.recipe import DataSection
from ldt.tasks import TokenClassification
from ldt.tasks.text import mentions, read_entities, read_sentences


def read(words):
    return [words.text[start:end] for start, end in words.places]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The EU's  U.S.\n", ["The", "EU", "'", "s", "U", ".", "S", "."]),
        ("x_1, 3.5%", ["x_1", ",", "3", ".", "5", "%"]),
        ("nai\u0308ve cafe\u0301s", ["nai\u0308ve", "cafe\u0301s"]),  # marks apart from letters
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("שָׁלוֹם!", ["שָׁלוֹם", "!"]),
        ("東京 tower", ["東", "京", "tower"]),
        ("ที่นี่", ["ที่", "นี่"]),
        ("a👩‍👧b", ["a", "👩‍👧", "b"]),
        ("\ufeffacme\u200f, \u2068fee\u2069", ["acme", ",", "fee"]),
        (
            "'\u200facme' می\u200cخواهم\u200c co\xadop",
            ["'", "acme", "'", "می\u200cخواهم", "co\xadop"],
        ),
        ("acme\u200bfee\x00pays 中\u2060acme", ["acme", "fee", "pays", "中", "acme"]),
        ("\u200f \u200b\x02\ufeff", []),
        (" \n\u3000", []),
        ("", []),
    ],
)
def test_words_of_raw_text(text, words):
    assert read(Words.raw(text)) == words


def test_given_words_stand_in_a_text_with_spaces():
    words = Words.pretokenized([["New York", "is"], [], ["", "big"]], True)
    assert words.text == "New York is  big"
    assert read(words) == ["New York", "is", "", "big"]
    assert (words.sizes, words.nested) == ([2, 0, 2], True)
    assert read(Words.pretokenized([[]], False)) == []


def test_words_are_found_at_the_tokens_where_they_begin():
    text = "ab cd ef"
    offsets = np.array([[0, 1], [1, 2], [2, 2], [3, 5], [6, 8]])  # one token is white space alone
    located = Words.raw(text).located(offsets)
    assert located.tolist() == [[0, 0, 0, 2], [1, 3, 3, 5], [2, 4, 6, 8]]


def test_two_raw_words_in_one_token_are_one_word():
    words = Words.raw("a ). b")
    offsets = np.array([[0, 1], [2, 4], [5, 6]])  # ")." is one token
    assert words.located(offsets).tolist() == [[0, 0, 0, 1], [1, 1, 2, 4], [2, 2, 5, 6]]


def test_a_given_word_without_a_token_of_its_own_is_left_out():
    words = Words.pretokenized([["a", "\u200b", "b", "c"]], False)
    offsets = np.array([[0, 1], [4, 7]])  # the tokenizer dropped one and joined two
    assert words.located(offsets).tolist() == [[0, 0, 0, 1], [2, 1, 4, 5]]


@pytest.mark.parametrize("name", ["roberta-base", "bert-base-uncased"])
def test_the_places_of_words_give_back_the_text_with_real_tokenizers(shared_data, name):
    tokenizer = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / name)
    text = "At 3.5%, the “EU's” naïve 東京 plan — שלום 👩‍👧 — failed (twice). "
    words = Words.raw(text)
    ids, offsets = tokenize_with_offsets(tokenizer, text)
    located = words.located(offsets)
    assert "".join(text[a:b] for *_, a, b in located) == "".join(text.split())
    for _, token, start, _ in located:
        assert offsets[token][0] == start
    assert len(set(located[:, 1])) == len(located)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("a b", "'a b', expected a list of text, or a list of sentences"),
        ([1, "a"], "a list of 2, expected"),
        ([["a"], "b"], "a list of 2, expected"),
        ([["a"], [None]], "a list of 1, expected"),
        (None, "null, expected"),
    ],
)
def test_what_is_no_list_of_words_is_told(value, what):
    with pytest.raises(DataError) as error:
        read_sentences(Example({"tokens": value}, 1, "f:1"), "tokens")
    assert str(error.value).startswith(f"f:1: field 'tokens': {what}")


def entities(*values, text="In New York ."):
    return read_entities(Example({"entities": list(values)}, 1, "f:1"), "entities", text)


def entity(start, end, label="LOC", **more):
    return {"start": start, "end": end, "label": label} | more


def test_entities_are_trimmed_and_ordered():
    assert entities(entity(12, 13, "X"), entity(2, 12, text=" New York ")) == [
        (3, 11, "LOC"),
        (12, 13, "X"),
    ]
    assert entities() == []


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (entity(3, 99), "{'start': 3, 'end': 99, 'label': 'LOC'}: there stands"),
        (entity(-2, 2), "{'start': -2, 'end': 2, 'label': 'LOC'}: there stands"),
        (entity(5, 5), "{'start': 5, 'end': 5, 'label': 'LOC'}: there stands ''"),
        (entity(3, 6, text="new"), "{'start': 3, 'end': 6, 'label': 'LOC', 'text': 'new'}: th"),
        (entity("3", 6), "{'start': '3'"),
        (entity(3, 6, ""), "{'start': 3"),
        ("New", "New, expected {start, end, label}"),
    ],
)
def test_an_entity_that_cannot_be_is_told(value, what):
    with pytest.raises(DataError) as error:
        entities(value)
    assert str(error.value).startswith(f"f:1: field 'entities': {what}")


def test_entities_that_overlap_are_told():
    with pytest.raises(DataError, match="LOC from 3 to 11 and ORG from 7 to 11 overlap; a word"):
        entities(entity(3, 11), entity(7, 11, "ORG"))
    with pytest.raises(DataError, match="'entities' is text, expected a list of entities"):
        read_entities(Example({"entities": "x"}, 1, "f:1"), "entities", "")


MARKED = [
    "pays \u200facme\u200f, fee",
    "\ufeffacme pays",
    "(\u2068acme\u2069) pays",
    "pays acme\u200b fee",
    "pays \x02acme\x03",
]


@pytest.mark.parametrize("text", MARKED)
@pytest.mark.parametrize("name", ["roberta-base", "bert-base-uncased"])
def test_marks_beside_an_entity_are_no_part_of_it(name, text, shared_data):
    """Learnt and answered alike, wherever the annotator's pointer stood."""
    tokenizer = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / name)
    task, data, place = TokenClassification(), DataSection(), text.index("acme")
    start, end = place, place + 4
    wide = [start - (start > 0 and not text[start - 1].isprintable()), end + 1]
    for a, b in ((start, end), wide):
        entities = [{"start": a, "end": b, "label": "ORG"}]
        item = Example({"text": text, "entities": entities}, "d", "dev.jsonl:3")
        config = PretrainedConfig(**task.learn([item], data))
        (feature,) = task.encode(item, tokenizer, data=data, max_length=64, config=config)
        assert feature["astray"] == 0
        logits = np.eye(3)[np.maximum(feature["labels"], 0)]
        answer = task.decode([{"logits": logits}], config, item, [feature])
        (found,) = answer["entities"]
        assert (found["start"], found["end"], found["text"]) == (start, end, "acme")


def test_a_text_of_marks_alone_is_empty_and_has_no_word(tokenizer_folder):
    item = Example({"text": "\u200f\ufeff\u200b"}, "d", "dev.jsonl:3")
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    (feature,) = TokenClassification().encode(item, tokenizer, data=DataSection(), max_length=64)
    assert feature["flags"] == {"empty": True}
    assert len(feature["words"]) == 0


# mentions


def found(text, *names):
    places = mentions(text, names)
    assert places == sorted(set(places))
    return [text[start:end] for start, end in places]


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        (
            "Foo-Bar, foo_bar; FOO\r\nbar and foobar",
            ["foo bar"],
            ["Foo-Bar", "foo_bar", "FOO\r\nbar"],
        ),
        ("York, Yorkshire, New York's, (York)", ["york"], ["York"] * 3),
        ("the “York” of ‘York’ and «York» — York…", ["york"], ["York"] * 4),
        ("O'Brien, O’Brien, O´Brien", ["o brien"], ["O'Brien", "O’Brien", "O´Brien"]),
        ("The Lord of the Rings; lord, rings", ["lord of rings"], ["Lord of the Rings"]),
        ("by The Beatles", ["The Beatles"], ["Beatles"]),
        ("New York City", ["york", "york city"], ["York", "York City"]),
        ("Cafe\u0301 or Café", ["café"], ["Cafe\u0301", "Café"]),
        ("🎉York🎉 ok", ["york", "🎉"], ["🎉", "York", "🎉"]),
        ("at 1,000.5 or 1000", ["1 000 5"], ["1,000.5"]),
        ("北京是中国的首都。", ["中国"], ["中国"]),
        ("هو في القاهرة، مصر", ["القاهرة"], ["القاهرة"]),
        ("नई दिल्ली में", ["दिल्ली"], ["दिल्ली"]),
        ("İstanbul", ["İstanbul"], ["İstanbul"]),
        ("aa a the an b", ["the a", "...", "", "c"], []),
        ("", ["a b"], []),
    ],
)
def test_names_are_found_word_by_word(text, names, expected):
    assert found(text, *names) == expected
