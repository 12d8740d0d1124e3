"""The base of questions: input, markers, chunks that part few passages, best spans."""

import random

import numpy as np
import pytest
from span_pins import said
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedTokenizerFast

from ldt.benchmarks import squad
from ldt.data.features import apart
from ldt.data.sentences import bare
from ldt.data.tokenization import tokenize, tokenize_with_offsets
from ldt.errors import DataError
from ldt.io.records import Example
from ldt.recipe.recipe import DataSection
from ldt.tasks import Squad
from ldt.tasks.questions import mark
from ldt.tasks.text import aligned

LANGUAGES = ("en", "de", "zh", "ar", "hi")


def xquad(shared_data, language):
    file = str(shared_data / f"xquad/xquad.{language}.json.gz")
    return list(squad.read(file, DataSection()))


@pytest.fixture(scope="module")
def sentencepiece(shared_data):
    """A Unigram tokenizer of five languages, as XLM-R's is one."""
    texts = [
        example.fields["context"]
        for language in LANGUAGES
        for example in xquad(shared_data, language)[::40]
    ]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=2500, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    names = dict(zip(("bos", "pad", "eos", "unk"), special, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token="<s>",
        sep_token="</s>",
        **{f"{name}_token": token for name, token in names.items()},
    )


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", ["roberta-base", "bert-base-uncased", "sentencepiece"])
def test_answers_in_five_languages_are_cut_whole_from_the_raw_text(
    name, language, shared_data, request
):
    if name == "sentencepiece":
        tokenizer = request.getfixturevalue(name)
    else:
        tokenizer = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / name)
    inexact = 0
    examples = xquad(shared_data, language)[::20]
    for example in examples:
        (feature,) = Squad().encode(
            example, tokenizer, data=DataSection(), max_length=9999, config=True
        )
        golds = {answer["text"] for answer in example.fields["answers"]}
        for text in said(feature):  # a token may hold a little more than the answer
            assert any(gold.strip() in text for gold in golds), example.id
            inexact += text not in golds
    assert inexact <= (2 if name == "sentencepiece" else 0), "of 28"


def test_a_gold_span_begins_and_ends_at_the_tokens_that_hold_its_characters():
    #                  " ab  cd" and an emoji of three tokens
    offsets = np.array([[1, 2], [2, 3], [4, 4], [5, 7], [7, 8], [7, 8], [7, 8]], np.int32)
    spans = [(1, 3), (2, 6), (0, 3), (3, 5), (2, 5), (7, 8), (6, 8), (1, 3), (8, 9), (3, 4)]
    assert aligned(offsets, spans) == [(0, 1), (1, 3), (1, 1), (4, 6), (3, 6)]
    assert aligned(offsets[:0], spans) == []


def test_an_alignment_covers_its_span_and_no_other_token(tokenizer_folder):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    text = "the party\r\n of  🎉first\u200d part, שלום and the (other) naïve 中文 party  "
    ids, offsets = tokenize_with_offsets(tokenizer, text)
    assert tokenize(tokenizer, text) == ids
    rng = random.Random(0)
    for _ in range(200):
        start = rng.randrange(len(text))
        end = rng.randrange(start + 1, len(text) + 1)
        inner = bare(text[start:end])
        placed = aligned(offsets, [(start, end)])
        if not inner:
            assert placed == []
            continue
        ((first, last),) = placed
        assert inner in text[offsets[first, 0] : offsets[last, 1]]
        assert offsets[first, 1] > start
        assert offsets[last, 0] < end


# decoding


TEXT = "zero one two three four five six seven eight nine"
WORDS = [(i, i + len(w)) for w in TEXT.split() for i in [TEXT.index(w)]]


def window(begin, end, start, stop, **more):
    """A feature of the words from ``begin`` to ``end``, and outputs with logits at these words."""
    size = end - begin + 4
    output = {name: np.full(size + 3, -100.0, np.float32) for name in Squad.answers.outputs}
    for name, places in zip(Squad.answers.outputs, (start, stop), strict=True):
        output[name][:size] = 0
        for place, logit in places.items():
            output[name][place - begin + 3 if place >= begin else place] = logit
    offsets = np.array(WORDS[begin:end], np.int32).reshape(-1, 2)
    return {"offsets": offsets, "first": 3, "flags": {}, "context": TEXT} | more, output


def best(*windows, **fields):
    task = Squad(**fields)
    features, outputs = zip(*windows, strict=True)
    found = task.best_spans(outputs, features)
    assert all(each.logit == each.start_logit + each.end_logit for each in found)
    return [(each.logit, TEXT[slice(*each.span)]) for each in found]


def test_the_best_span_is_in_the_document_in_order_and_not_too_long():
    one = window(0, 10, {4: 5, 6: 3}, {2: 4.5, 5: 4.5, 8: 6, 6: 2.5})
    assert best(one) == [(11, "four five six seven eight")]
    assert best(one, n_best=3)[1:] == [(9.5, "four five"), (9, "six seven eight")]
    assert best(one, max_answer=3)[0] == (9.5, "four five")
    assert best(one, max_answer=1) == [(6, "eight")]  # 3 + 2.5 at six is less
    question = window(2, 6, {0: 50, 1: 50, 4: 1}, {0: 50, 1: 50, 4: 1})
    assert best(question) == [(2, "four")]


def test_a_pair_is_found_where_no_best_start_stands_before_a_best_end():
    start, end = dict.fromkeys(range(5, 10), 9), dict.fromkeys(range(5), 9)
    assert best(window(0, 10, start, end), n_candidates=5, max_answer=1)[0][0] == 9


def test_the_best_span_of_all_windows_counts_once():
    windows = [
        window(0, 6, {4: 2, 1: 1}, {4: 2, 1: 1}),
        window(4, 10, {4: 3, 8: 2}, {4: 3, 8: 1}),
    ]
    for order in (windows, windows[::-1]):
        found = best(*order, n_best=2)
        assert found[0] == (6, "four")
        assert [text for _, text in found].count("four") == 1


def test_pairs_of_tokens_that_are_one_piece_of_text_count_once_among_the_n_best():
    # An emoji of four tokens, two words, and a letter with its mark in a token of its own.
    text = "🎉 one two e\u0301"
    places = [(0, 1)] * 4 + [(2, 5), (6, 9), (10, 11), (11, 12)]
    feature = {"offsets": np.array(places, np.int32), "first": 3, "context": text}
    logits = np.array([[0, 0, 0, 9, 8.5, 8, 7, 1, 2, 4, end] for end in (-9, 5)], np.float32)
    output = dict(zip(Squad.answers.outputs, logits, strict=True))

    def found(number):
        spans = Squad(max_answer=4, n_best=number).best_spans([output], [feature])
        return [(each.logit, text[slice(*each.span)]) for each in spans]

    # The ten pairs of the emoji are above all that have a word.
    assert found(5) == [
        (18, "🎉"),
        (11, "🎉 one two e\u0301"),
        (10, "🎉 one two"),
        (9.5, "🎉 one"),
        (9, "e\u0301"),
    ]
    assert found(1) == [(18, "🎉")]
    rest = ["two e\u0301", "one two e\u0301", "two", "one two", "one", "\u0301"]
    assert [text for _, text in found(99)][5:] == rest


def test_a_document_without_a_word_has_no_span():
    feature, output = window(0, 0, {}, {})
    task = Squad(n_best=2)
    assert task.best_spans([output], [feature]) == []
    empty = {"answer": "", "score": None, "start": None, "end": None, "n_best": []}
    assert task.answer_of([], TEXT) == empty


# input


def encode(tiny, context, question="what", max_length=32, **fields):
    example = Example({"context": context, "question": question}, "d", "dev.jsonl:3")
    task = Squad(**fields)
    return task.encode(example, tiny, data=DataSection(stride=4), max_length=max_length)


def test_the_input_is_the_question_and_the_document_parted_by_one_separator(tiny):
    (feature,) = encode(tiny, "the party agree", question=" of the ")
    asked, read = tokenize(tiny, " of the"), tokenize(tiny, " the party agree")
    cls, sep = tiny.cls_token_id, tiny.sep_token_id
    assert feature["input_ids"] == [cls, *asked, sep, *read, sep]
    assert feature["global_attention_mask"] == [1] * (1 + len(asked)) + [0] * (len(read) + 2)
    assert feature["first"] == len(asked) + 2
    assert (feature["tokens"], feature["flags"]) == (len(feature["input_ids"]), {})
    assert "token_type_ids" not in feature
    assert "start_positions" not in feature
    pieces = ["the party agree"[a:b] for a, b in feature["offsets"]]
    assert "".join(pieces) == "thepartyagree"


def test_a_question_is_cut_or_refused_never_the_reason_for_an_empty_document(tiny):
    (feature,) = encode(tiny, "the party", question="the " * 40, max_question=5)
    assert feature["flags"] == {"question_cut": True}
    assert feature["first"] == 7
    with pytest.raises(DataError) as caught:
        encode(tiny, "the party", question="the " * 40)
    said = "dev.jsonl:3: what is asked leaves 0 tokens of an input for the context, chunks share 4"
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("name", ["roberta-base", "bert-base-uncased"])
@pytest.mark.parametrize("words", ["acme", "acme\u200f", "\u200eacme\u200f"])
def test_marks_at_the_edges_of_an_answer_are_no_part_of_it(name, words, shared_data):
    tokenizer = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / name)
    context = "\ufeffthe party \u200eacme\u200f, pays"
    answers = [{"text": words, "answer_start": context.index(words)}]
    fields = {"question": "who?", "context": context, "answers": answers}
    item = Example(fields, "d", "dev.jsonl:1")
    (feature,) = Squad().encode(
        item, tokenizer, data=DataSection(), max_length=64, config=PretrainedConfig()
    )
    sides = {
        f"{side}_logits": np.eye(1, 64, feature[f"{side}_positions"][0])[0]
        for side in ("start", "end")
    }
    config = PretrainedConfig(no_answer_threshold=None)
    answer = Squad().decode([sides], config, item, [feature])
    place = context.index("acme")
    assert (answer["answer"], answer["start"], answer["end"]) == ("acme", place, place + 4)
    assert Squad().gold(item, DataSection(), config) == {"answers": ["acme"]}


# passages


PLACES = np.array([[3 * n, 3 * n + 2] for n in range(5)], np.int32)


def marked(*passages):
    return mark(range(10, 15), PLACES, passages, range(100, 100 + len(passages)))


def test_a_marker_stands_in_front_of_the_first_token_of_its_passage():
    found = marked((3, 8), (8, 14))
    assert found.ids == (10, 100, 11, 12, 101, 13, 14)
    assert found.places.tolist() == [1, 4]
    assert found.numbers.tolist() == [0, 1]
    assert found.offsets[[1, 4]].tolist() == [[3, 3], [8, 8]]
    assert found.offsets[[0, 2, 3, 5, 6]].tolist() == PLACES.tolist()


def test_of_passages_that_begin_together_the_outer_one_is_first():
    found = marked((3, 5), (3, 11), (6, 8))
    assert found.ids == (10, 101, 100, 11, 102, 12, 13, 14)
    assert found.numbers.tolist() == [1, 0, 2]


def test_a_passage_without_a_token_has_no_marker():
    found = marked((5, 6), (6, 8), (14, 14))
    assert found.ids == (10, 11, 101, 12, 13, 14)
    assert found.numbers.tolist() == [1]


def test_a_cut_parts_the_passages_that_it_is_inside_of():
    #             10 101 100 11 102 12 13 14
    found = marked((3, 5), (3, 11), (6, 8))
    assert found.parted.tolist() == [0, 0, 1, 2, 1, 2, 1, 0, 0]


def test_without_passages_the_document_is_as_it_was():
    found = mark(range(10, 15), PLACES, [], [])
    assert found.ids == (10, 11, 12, 13, 14)
    assert found.parted.tolist() == [0] * 6
    empty = mark([], np.empty((0, 2), np.int32), [(0, 3)], [7])
    assert empty.ids == ()


def nested(rng, start, end, depth):
    """Passages of tokens from ``start`` to before ``end``, some with others in them."""
    while start < end and depth:
        size = int(rng.integers(1, max(2, (end - start) * 2 // 3)))
        yield start, start + size
        yield from nested(rng, start, start + size, depth - 1 if rng.random() < 0.5 else 0)
        start += size + int(rng.integers(0, 4))


@pytest.mark.parametrize("seed", range(40))
def test_chunks_hold_every_passage_that_fits_and_every_token(seed):
    rng = np.random.default_rng(seed)
    length, room = int(rng.integers(20, 120)), int(rng.integers(8, 40))
    stride = int(rng.integers(0, room))
    parts = list(nested(rng, 0, length, 3))
    parted = np.array([sum(a < cut < b for a, b in parts) for cut in range(length + 1)])
    chunks = apart(parted, room, stride)
    assert (chunks[0][0], chunks[-1][1]) == (0, length)
    assert all(0 < b - a <= room for a, b in chunks)
    for (_, before), (start, end) in zip(chunks, chunks[1:], strict=False):
        assert before - stride <= start <= before < end
    for a, b in parts:
        if b - a <= room:
            assert any(start <= a and b <= end for start, end in chunks), (a, b, chunks)


def test_chunks_are_as_long_as_passages_let_them_be_and_share_whole_passages():
    parts = [(0, 4), (4, 9), (9, 12), (12, 20)]
    parted = np.array([sum(a < cut < b for a, b in parts) for cut in range(21)])
    assert apart(parted, 12, 0) == [(0, 12), (12, 20)]
    assert apart(parted, 12, 5) == [(0, 12), (9, 20)]
    assert apart(parted, 10, 5) == [(0, 9), (4, 12), (12, 20)]  # to share more would part the last


def test_a_passage_that_is_too_long_is_parted_between_those_inside():
    parts = [(2, 18), (2, 9), (9, 18)]
    parted = np.array([sum(a < cut < b for a, b in parts) for cut in range(21)])
    assert apart(parted, 10, 0) == [(0, 2), (2, 9), (9, 19), (19, 20)]
