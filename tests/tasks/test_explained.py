"""`Task.reading` and `Task.places`: the tokens of the features are those of the text."""

import numpy as np
import pytest
from transformers import AutoTokenizer

from ldt.data.options import DataSection
from ldt.data.sentences import UNITS
from ldt.data.tokenization import add_tokens
from ldt.io.records import Example
from ldt.tasks import TASKS
from ldt.tasks.choosing import WikiHop, joined, offsets_in

TEXT = (
    "The first party , 😀 ends . The other\r\ncafe\u0301 ( party ) agrees.\r\n\r\n"
    "The end of it. And this."
)
FIELDS = {
    "classification": {"text": TEXT},
    "multiple_choice": {"context": TEXT, "question": "the party", "choices": ["first", "the"]},
    "squad": {"context": TEXT, "question": "the party", "answers": []},
    "token_classification": {"text": TEXT, "entities": []},
    "wikihop": {"query": "q", "candidates": ["a", "the party"], "supports": [TEXT, "", TEXT]},
}


TEXTS = {"wikihop": 2}  # of the supports


@pytest.fixture(scope="module")
def tiny(tokenizer_folder):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    add_tokens(tokenizer, WikiHop.inputs.markers)
    return tokenizer


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", FIELDS)
def test_each_token_of_a_chunk_is_where_the_reading_has_it(tiny, name, unit):
    task = TASKS[name]()
    example, data = Example(FIELDS[name], 1, "x.jsonl:1"), DataSection(stride=3)
    features = task.encode(example, tiny, data=data, max_length=40)
    reading = task.reading(example, tiny, data, unit)
    assert len(reading.passages) == {"sentence": 4, "paragraph": 2}[unit] * TEXTS.get(name, 1)
    assert reading.text == task.parts(example, data)[0]
    assert all(reading.text[a:b] == reading.text[a:b].strip() for a, b in reading.passages)
    assert len(features) > 1
    seen = np.zeros(len(reading.offsets), bool)
    for feature in features:
        first, start, end = feature["read"]
        seen[start:end] = True
        for place, token in enumerate(feature["input_ids"][first : first + end - start], start):
            a, b = reading.offsets[place]
            spelt = tiny.decode([token]).strip()
            if a < b and reading.text[a:b].isascii():
                assert reading.text[a:b] == spelt
            elif a == b:
                assert spelt in ("", "</s>")
    assert seen.all()
    owners = reading.owners()
    for owner, (a, b) in zip(owners, reading.offsets, strict=True):
        if a < b:
            assert reading.passages[owner][0] <= a < b <= reading.passages[owner][1]


def test_tokens_of_joined_text_are_found_in_the_text_as_it_is(tiny):
    text = "  the party ,  ends .\u00a0( the end )"
    offsets = offsets_in(text, tiny)
    words = ["".join(text[a:b].split()) for a, b in offsets if a < b]
    assert "".join(words) == "".join(joined(text).split())


def test_entities_of_given_words_stand_at_their_characters():
    task = TASKS["token_classification"]()
    fields = {"tokens": [["The", "party"], ["It", "ends"]], "tags": [["O", "O"], ["O", "O"]]}
    example = Example(fields, 1, "x.jsonl:1")
    answer = {"entities": [{"start": 3, "end": 4, "label": "X", "text": "ends", "score": 0.5}]}
    assert task.places(answer, example, DataSection()) == [(len("The party It "), 0.5)]


def test_sentences_of_given_words_are_the_passages(tiny):
    task = TASKS["token_classification"]()
    fields = {"tokens": [["The", "party"], [], ["It", "ends"]], "tags": [["O"] * 2, [], ["O"] * 2]}
    reading = task.reading(Example(fields, 1, "x.jsonl:1"), tiny, DataSection())
    assert [reading.text[a:b] for a, b in reading.passages] == ["The party", "It ends"]
    reading = task.reading(Example(fields, 1, "x.jsonl:1"), tiny, DataSection(), "paragraph")
    assert [reading.text[a:b] for a, b in reading.passages] == ["The party It ends"]


def test_an_answer_of_nothing_stands_nowhere():
    places = TASKS["squad"]().places
    assert places({"answer": "", "start": 3, "end": 5, "score": 1.0}, None, None) == []
    assert places({"answer": "x", "start": 3, "end": 4, "score": 1.0}, None, None) == [(3, 1.0)]
