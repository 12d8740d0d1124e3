import json
import logging
import math

import numpy as np
import pytest
from transformers import AutoTokenizer, PretrainedConfig

from ldt.benchmarks.formats import read
from ldt.data.features import Collator, reordered
from ldt.data.tokenization import add_tokens
from ldt.errors import DataError
from ldt.io.records import Example
from ldt.model import load
from ldt.model.loading import draw_embeddings
from ldt.recipe.recipe import DataSection
from ldt.tasks import WikiHop
from ldt.tasks.base import path_of, score_all
from ldt.tasks.choosing import joined

CONFIG = PretrainedConfig(decisions={})
approx = pytest.approx
A = 15  # tokens of question and candidates in the example below


def question(**fields):
    known = {
        "query": "the end",
        "candidates": ["party", "agree", "first"],
        "supports": ["the party of the first part", "this agree"],
        "answer": "agree",
    }
    return Example(known | fields, "q", "train.jsonl:17")


@pytest.fixture(scope="module")
def tiny(tokenizer_folder):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    add_tokens(tokenizer, WikiHop.inputs.markers)
    return tokenizer


@pytest.fixture
def encode(tiny):
    def encode(example, max_length=128, config=CONFIG, task=None, **data):
        task = task or WikiHop()
        section = DataSection(**data)
        return task.encode(example, tiny, data=section, max_length=max_length, config=config)

    return encode


def spelt(tokenizer, ids):
    return tokenizer.decode(ids, clean_up_tokenization_spaces=False)


# encoding


def test_question_and_candidates_stand_in_front_and_are_global(tiny, encode):
    (feature,) = encode(question())
    assert spelt(tiny, feature["input_ids"]) == (
        "<s>[question] the end[/question][ent] party[/ent][ent] agree[/ent][ent] first[/ent]"
        "</s> the party of the first part</s></s> this agree</s>"
    )
    head = feature["input_ids"].index(tiny.sep_token_id)
    mask = feature["global_attention_mask"]
    assert mask == [1] * head + [0] * (len(mask) - head)
    ent = tiny.convert_tokens_to_ids("[ent]")
    assert [feature["input_ids"][place] for place in feature["positions"]] == [ent] * 3
    assert feature["input_ids"].count(ent) == 3
    assert (feature["labels"], feature["tokens"]) == (1, len(mask))


GOLDEN = {  # first item of dev: tokens, [ent]s, label, first ids
    "roberta-base": (
        2576,
        [11, 15, 23, 27, 33, 38],
        [0, 50265, 247, 5278, 29, 11689, 12140, 611, 1694, 1023, 50266, 50267, 28410, 6374, 50268],
        "[ent] german empire[/ent]",
    ),
    "bert-base-uncased": (
        2484,
        [8, 11, 16, 19, 23, 27],
        [101, 30522, 2406, 22434, 21909, 11624, 27204, 30523, 30524, 5118, 30525, 30524, 11068],
        "[ent] german empire [/ent]",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_original_items_have_known_ids(shared_data, name):
    tokenizer = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / name)
    add_tokens(tokenizer, WikiHop.inputs.markers)
    data = DataSection(format="wikihop")
    first, *_ = read(str(shared_data / "wikihop" / "dev.json"), data)
    features = WikiHop().encode(first, tokenizer, data=data, max_length=4096, config=CONFIG)
    tokens, positions, ids, answer = GOLDEN[name]
    (feature,) = features
    assert (feature["tokens"], len(feature["positions"])) == (tokens, 18)
    assert feature["positions"][:6] == positions
    assert feature["input_ids"][: len(ids)] == ids
    assert feature["labels"] == 4
    start, end = feature["positions"][4:6]
    assert tokenizer.decode(feature["input_ids"][start:end]) == answer
    head = feature["input_ids"].index(tokenizer.sep_token_id or tokenizer.eos_token_id)
    assert sum(feature["global_attention_mask"]) == head
    support = tokenizer.decode(feature["input_ids"][head + 1 : head + 6])
    assert support.strip().lower() == "the north german confederation was"


def test_spaces_of_tokenized_text_are_closed_as_by_the_authors():
    text = "The  Games ( 2004 ) , held 's end ! Really ? Yes .\n( ok )"
    assert joined(text) == "The Games (2004), held's end! Really? Yes. (ok)"


def test_long_supports_are_read_in_parts_with_the_question_in_front(encode):
    (whole,) = encode(question())
    parts = encode(question(), max_length=A + 4, stride=1)
    assert len(parts) > 3
    read_again = []
    for part in parts:
        assert part["input_ids"][:A] == whole["input_ids"][:A]
        assert part["positions"] == whole["positions"]
        assert sum(part["global_attention_mask"][:A]) == sum(part["global_attention_mask"]) == A
        assert (len(part["input_ids"]), part["tokens"]) == (A + 4, whole["tokens"])
        read_again.append(part["input_ids"][A:])
    supports = whole["input_ids"][A:]
    starts = [*range(0, len(supports) - 4, 3), len(supports) - 4]
    assert read_again == [supports[start : start + 4] for start in starts]
    (cut,) = encode(question(), max_length=A + 4, overflow="truncate")
    assert cut["flags"] == {"truncated": True, "unread_tokens": len(supports) - 4}


def test_a_candidate_that_stands_twice_is_scored_once(encode):
    found = question(candidates=["party", "agree", "party", "first", "agree"], answer="first")
    (feature,) = encode(found)
    assert feature["candidates"] == ["party", "agree", "first"]
    assert (len(feature["positions"]), feature["labels"]) == (3, 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"query": 3}, "train.jsonl:17: field 'query' is a number, expected text"),
        ({"candidates": []}, "train.jsonl:17: field 'candidates': a list, empty, expect"),
        ({"candidates": ["a", " "]}, "train.jsonl:17: field 'candidates': a list of 2, expect"),
        ({"candidates": "a"}, "field 'candidates' is text, expected a list of texts"),
        ({"candidates": ["a", None]}, "field 'candidates': null in place 2, expected text"),
        ({"supports": [["a"]]}, "field 'supports': a list in place 1, expected text"),
    ],
)
def test_what_cannot_be_read_is_a_data_error(encode, fields, message):
    with pytest.raises(DataError) as caught:
        encode(question(**fields), config=None)
    assert message in str(caught.value)


def test_ten_thousand_candidates_need_a_longer_input(encode):
    many = question(candidates=[f"party {number}" for number in range(10_000)])
    with pytest.raises(DataError) as caught:
        encode(many, max_length=4096, config=None)
    said = "train.jsonl:17: what is asked leaves 0 tokens of an input for the supports"
    assert str(caught.value).startswith(said)
    many.fields["candidates"] = many.fields["candidates"][:2_000]
    (feature,) = encode(many, max_length=40_000, config=None)
    assert len(set(feature["positions"])) == 2_000
    with pytest.raises(DataError, match="leaves 4 tokens .* chunks share 4"):
        encode(question(), max_length=A + 4, stride=4)


def test_questions_without_supports_are_flagged_and_one_candidate_is_enough(encode):
    for supports in ([], ["", " "]):
        (feature,) = encode(question(supports=supports, candidates=["agree"]), config=None)
        assert feature["flags"] == {"empty": True}
        assert "labels" not in feature
    said = [{"logits": np.array([-3.0])}]
    answer = WikiHop().decode(said, CONFIG, question(), [feature])
    assert answer == {"answer": "agree", "score": 1.0, "empty": True}


# training and evaluation sets


def test_training_sees_candidates_and_supports_in_a_new_order_with_the_label_moved(encode):
    data = DataSection(text="docs.all", fields={"candidates": "names"})
    lists = [path_of(WikiHop(), name, data) for name in WikiHop.inputs.shuffled]
    names = [f"party {number}" for number in range(6)]
    fields = {"query": "x", "names": names, "docs": {"all": list("abcdef")}, "answer": "party 4"}
    example = Example(fields, "q", "t:1")
    seen = set()
    for seed in range(5):
        found = reordered(example, np.random.default_rng(seed), lists)
        (feature,) = encode(found, text="docs.all", fields={"candidates": "names"})
        assert feature["candidates"][feature["labels"]] == "party 4"
        assert sorted(feature["candidates"]) == names
        assert sorted(found.fields["docs.all"]) == list("abcdef")
        seen.add((*feature["candidates"], *found.fields["docs.all"]))
    assert len(seen) == 5
    assert example.fields["names"] == names


def test_an_answer_outside_of_the_candidates_ends_a_training_before_it_begins():
    task, data = WikiHop(merge="sum"), DataSection(train="train.json")
    assert task.learn([question()], data) == {"window_merge": "sum", "decisions": {}}
    with pytest.raises(DataError) as caught:
        task.learn([question(), question(answer="Agree")], data)
    assert str(caught.value) == (
        "train.jsonl:17: the answer 'Agree' is none of 'party', 'agree', 'first'; training needs "
        "it among them"
    )


def test_an_answer_outside_of_the_candidates_counts_as_wrong_in_evaluation(encode, caplog):
    task, data = WikiHop(), DataSection(eval="dev.json")
    strange = question(answer="Agree")
    with caplog.at_level(logging.WARNING, "ldt"):
        task.check([question(), strange], data, CONFIG)
    assert "dev.json: the answers of 1 of 2 questions are none of the cand" in caplog.text
    (feature,) = encode(strange)
    assert feature["labels"] == -100
    answer = task.decode([{"logits": np.array([0.0, 9.0, 0.0])}], CONFIG, strange, [feature])
    metrics, _ = score_all(task, [answer], [task.gold(strange, data, CONFIG)], CONFIG)
    assert metrics == {"accuracy": 0}


# answers


LEAST = np.finfo(np.float32).min
PARTS = [{"logits": np.array([2.0, 0.0, 1.0, LEAST])}, {"logits": np.array([0.0, 1.0, 4.0, LEAST])}]


@pytest.mark.parametrize(("merge", "merged"), [("mean", [1, 0.5, 2.5]), ("sum", [2, 1, 5])])
def test_the_scores_of_the_parts_are_merged_before_the_softmax(encode, merge, merged):
    features = encode(question(), max_length=A + 8)
    assert len(features) == len(PARTS)
    task = WikiHop(merge=merge, n_best=2)
    answer = task.decode(PARTS, CONFIG, question(), features)
    chances = [math.exp(score) / sum(map(math.exp, merged)) for score in merged]
    assert answer == {
        "answer": "first",
        "score": approx(chances[2]),
        "n_best": [
            {"answer": "first", "score": approx(chances[2])},
            {"answer": "party", "score": approx(chances[0])},
        ],
    }
    assert json.loads(json.dumps(answer)) == answer
    assert "n_best" not in WikiHop(merge=merge).decode(PARTS, CONFIG, question(), features)


def test_accuracy_has_a_row_for_each_group_of_candidates():
    golds = [{"answer": "a", "candidates": number} for number in (2, 4, 12, 80, 5000)]
    answers = [{"answer": answer} for answer in "abaab"]
    metrics, rows = score_all(WikiHop(), answers, golds, CONFIG)
    assert metrics == {"accuracy": 60}
    assert rows == [
        {"candidates": "up to 9", "questions": 2, "accuracy": 50},
        {"candidates": "10 to 19", "questions": 1, "accuracy": 100},
        {"candidates": "80 and more", "questions": 2, "accuracy": 50},
    ]


def test_parts_and_the_whole_are_one_where_all_fits(tiny, tiny_longformer, encode):
    task = WikiHop()
    model = load(tiny_longformer, task.head(), hidden_dropout_prob=0.0)
    draw_embeddings(model, tiny.convert_tokens_to_ids(list(task.inputs.markers)))
    model.eval()
    collate = Collator(tiny.pad_token_id, task.head(), task.inputs.extras)
    once = collate([encode(question())])  # as in training
    alone = collate(encode(question()))  # as in predicting
    assert once["example_ids"].tolist() == [0]
    assert model(**once).loss.item() == model(**alone).loss.item()
    several = encode(question(), max_length=A + 12)
    batch = collate([several, encode(question(candidates=["agree", "part"]))])
    out = model(**batch)
    logits = out.logits.detach().numpy()
    assert batch["positions"][-1].tolist()[2:] == [-100]
    golds = [1, 0]
    merged = [logits[: len(several)].mean(0), logits[-1][:2]]
    losses = [
        math.log(np.exp(scores).sum()) - scores[gold]
        for scores, gold in zip(merged, golds, strict=True)
    ]
    assert out.loss.item() == approx(sum(losses) / 2, rel=1e-5)
