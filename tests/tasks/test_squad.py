import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from span_pins import crc, said
from transformers import AutoTokenizer

from ldt.benchmarks import squad as layout
from ldt.errors import DataError
from ldt.io.records import Example
from ldt.recipe.recipe import DataSection
from ldt.tasks import Squad
from ldt.tasks.base import score_all, settings_of
from ldt.training.labelled import DocumentEncoder, encode_sets

ALWAYS = SimpleNamespace(no_answer_threshold=None, decisions={})
MAYBE = SimpleNamespace(no_answer_threshold=0.5, decisions={})


def example(answers, context="In York, not in York.", **fields):
    fields = {"question": "where?", "context": context, "answers": answers} | fields
    return Example(fields, "d", "dev.json: d")


def encode(tiny, item, config=ALWAYS, max_length=64, **data):
    data = DataSection(stride=4, **data)
    return Squad().encode(item, tiny, data=data, max_length=max_length, config=config)


# encodings


@pytest.mark.parametrize(
    ("name", "start", "pins", "global_tokens", "spans"),
    [
        (
            "roberta-base",
            [0, 6834, 194, 50, 247, 18, 488, 37138, 5, 1355, 116, 2, 32674, 158, 4, 134],
            {0: (2511069384, 2645329389), 8: (2852933980, 1404221293), 9: (1087536040, 1065647452)},
            11,
            {8: (2819, 2854), 9: (286, 321)},
        ),
        (
            "bert-base-uncased",
            [101, 2029, 2110, 2030, 2406, 1005, 1055, 2375, 21208, 2015, 1996, 3206, 1029, 102],
            {0: (1849411420, 769691454), 8: (2082567808, 3452279917), 9: (2893052656, 1158627039)},
            13,
            {8: (2157, 2194), 9: (298, 335)},
        ),
    ],
)
def test_the_encoding_of_a_contract_is_pinned(shared_data, name, start, pins, global_tokens, spans):
    """CUAD in the layout of SQuAD 2.0: ids, offsets, global positions, gold spans, no answers."""
    file = str(shared_data / "cuad/cuad_qa.dev.squad2.json.gz")
    item = next(layout.read(file, DataSection()))
    tokenizer = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / name)
    how = {"data": DataSection(stride=256), "max_length": 4096, "config": MAYBE}
    features = Squad().encode(item, tokenizer, **how)
    assert len(features) == 10
    assert features[0]["input_ids"][: len(start)] == start
    for number, feature in enumerate(features):
        if number in pins:
            assert (crc(feature["input_ids"]), crc(feature["offsets"])) == pins[number]
        ones = [place for place, marked in enumerate(feature["global_attention_mask"]) if marked]
        assert ones == list(range(global_tokens))
        first, last = spans.get(number, (0, 0))  # the first token where there is no answer
        assert (feature["start_positions"], feature["end_positions"]) == ([first], [last])
        if number in spans:
            assert said(feature) == [item.fields["answers"][0]["text"]]


def test_all_answers_that_a_window_has_are_right_and_else_its_first_token(tiny):
    text = "York " + "the party of the first part and " * 12 + "York."
    answers = [
        {"text": "York", "answer_start": text.rindex("York")},
        {"text": "York", "answer_start": 0},
    ]
    features = encode(tiny, example(answers, text), max_length=48)
    assert len(features) > 2
    assert [said(feature) for feature in features] == [
        ["York"],
        *[[]] * (len(features) - 2),
        ["York"],
    ]
    assert features[1]["start_positions"] == features[1]["end_positions"] == [0]
    (whole,) = encode(tiny, example(answers, text), max_length=128)
    assert said(whole) == ["York", "York"]
    (none,) = encode(tiny, example([]))
    assert none["start_positions"] == [0]
    assert Squad().remarks(features, 0) == [f"2 of {len(features)} inputs have an answer"]


def test_as_many_chunks_without_an_answer_as_with_one_are_trained_on_in_expectation():
    features = [{"start_positions": [number % 5]} for number in range(100)]
    assert Squad().subsample(features, 3) == (None, [])
    task = Squad(null_chunks="balanced")
    kept, (line,) = task.subsample(features, 3)
    answered = [number for number in range(100) if number % 5]
    drawn = [number for number in kept if number % 5 == 0]
    assert kept == sorted([*answered, *drawn])
    assert len(drawn) == 20  # 80 have one: all of the 20 stay
    assert line.startswith("20 of 20 inputs without an answer are trained on (task.null_chunks=")
    features = [{"start_positions": [int(number % 5 == 0)]} for number in range(100)]
    kept, (line,) = task.subsample(features, 3)
    draws = np.random.default_rng(3).random(80) < 20 / 80  # one a chunk without, in order
    without = [number for number in range(100) if number % 5]
    expected = [number for number, drawn in zip(without, draws, strict=True) if drawn]
    assert kept == sorted([*range(0, 100, 5), *expected])
    assert line.startswith(f"{len(expected)} of 80 inputs")
    assert task.subsample(features, 3)[0] == kept != task.subsample(features, 4)[0]
    numbers = [len(task.subsample(features, seed)[0]) - 20 for seed in range(300)]
    assert np.mean(numbers) == pytest.approx(20, abs=1)  # 4.5 deviations of this mean


def test_only_the_training_set_is_thinned_and_knows_its_chunks(tiny):
    text = "York " + "the party of the first part and " * 30
    answers = [{"text": "York", "answer_start": 0}]
    sets = {name: [example(answers, text)] for name in ("train", "eval")}
    task = Squad(null_chunks="balanced")
    encoded = encode_sets(
        sets, DocumentEncoder(task, tiny, DataSection(stride=4), 48, MAYBE), seed=0
    )
    chunks = len(encoded.features["eval"])
    kept = encoded.features["train"]
    assert chunks > len(kept) == len(kept.lengths)
    assert said(kept[0]) == ["York"]
    assert [feature["chunks"] for feature in kept] == [chunks] * len(kept)
    assert f"of {chunks - 1} inputs without an answer" in encoded.thinned[0]


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ([{"text": "York", "answer_start": 16}], [(16, 20)]),
        (["York"], [(3, 7)]),
        ("York", [(3, 7)]),
        ({"text": ["York", "In"], "answer_start": [16, 0]}, [(16, 20), (0, 2)]),
        ({"text": [], "answer_start": []}, []),
        ({"text": "York", "answer_start": 16}, [(16, 20)]),
        (["", " "], []),
        ([{"text": "not", "answer_start": 9}, "not"], [(9, 12), (9, 12)]),
    ],
)
def test_answers_can_be_written_in_several_ways(tiny, answers, found):
    item = example(answers)
    assert [span for span, _ in Squad().placed_answers(item, DataSection())] == found
    assert Squad().gold(item, DataSection(), ALWAYS)["answers"] == [
        item.fields["context"][a:b] for a, b in found
    ]


def test_places_are_counted_in_code_points(tiny):
    text = "\ufeff🎉🎉 שלום\r\nעולם e\u0301 York"
    item = example([{"text": "York", "answer_start": text.index("York")}], text)
    (feature,) = encode(tiny, item)
    assert said(feature) == ["York"]
    in_bytes = example([{"text": "York", "answer_start": len(text[:-4].encode())}], text)
    with pytest.raises(DataError, match="is said to stand at character 35, where '' stands; it st"):
        encode(tiny, in_bytes)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            [{"text": "York", "answer_start": 4}],
            "the answer 'York' is said to stand at character 4, where 'ork,' stands; it stands",
        ),
        ([{"text": "York", "answer_start": -5}], "the answer 'York' is said to stand at character"),
        ([{"text": "Bath", "answer_start": 3}], "the answer 'Bath' does not stand in the context"),
        (["Bath"], "the answer 'Bath' does not stand in the context; the task triviaqa"),
        ([{"text": "York", "answer_start": True}], "an answer is {'text': 'York', 'answer_start'"),
        ([{"answer_start": 3}], "an answer is {'answer_start': 3}, expected its text and answer_s"),
        ({"text": ["York"], "answer_start": [3, 9]}, "an answer is {'text': None, 'answer_start'"),
        (3, "'answers' is a number, expected a list"),
    ],
)
def test_an_answer_that_is_not_where_it_is_said_to_be_is_a_data_error(tiny, answers, message):
    with pytest.raises(DataError) as caught:
        encode(tiny, example(answers))
    assert str(caught.value).startswith(f"dev.json: d: {message}")


def test_fields_can_have_other_names(tiny):
    item = Example({"q": "where?", "doc": {"body": "In York"}, "a": ["York"]}, "d", "f")
    (feature,) = encode(tiny, item, text="doc.body", fields={"question": "q", "answers": "a"})
    assert said(feature) == ["York"]


# what a training set says


def test_whether_there_may_be_no_answer_is_told_by_the_training_set():
    task, data = Squad(), DataSection(train="t.json", eval="e.json")
    nothing = {"decisions": {}}
    assert task.learn([example(["York"])], data) == {"no_answer_threshold": None} | nothing
    both = [example(["York"]), example([])]
    assert task.learn(both, data) == {"no_answer_threshold": 0.5} | nothing
    with pytest.raises(DataError, match="^t.json: nothing to learn, none of 1"):
        task.learn([example([])], data)
    task.check([example([])], data, MAYBE)
    task.check([example(["York"])], data, ALWAYS)
    with pytest.raises(DataError, match=r"^e.json: questions without an answer \(1\), the train"):
        task.check([example([])], data, ALWAYS)


# answers


def maybe(threshold):
    return SimpleNamespace(no_answer_threshold=threshold, decisions={})


def decide(config, windows, **fields):
    """The answer by windows of two words each: (score of the first token, of each word)."""
    context = "York Bath Hull Deal"
    places = np.array([(0, 4), (5, 9), (10, 14), (15, 19)], np.int32)
    features, outputs = [], []
    for number, (null, *words) in enumerate(windows):
        offsets = places[2 * number : 2 * number + 2]
        features.append({"offsets": offsets, "first": 3, "flags": {}, "context": context})
        logits = np.array([null / 2, 90, 90, *(score / 2 for score in words), 90, -1e30])
        outputs.append(dict.fromkeys(Squad.answers.outputs, logits))
    return Squad(max_answer=1, **fields).decode(outputs, config, example([]), features)


@pytest.mark.parametrize(
    ("windows", "answer", "doubt"),
    [
        ([(1, 3, 2)], "York", 1 - 3),
        ([(4, 3, 2)], "", 4 - 3),
        ([(9, 1, 2), (-1, 5, 1)], "Hull", -1 - 5),  # one window with an answer is enough
        ([(800, 1, -800)], "", 799),
        ([(-800, 1, 0)], "York", -801),
    ],
)
def test_the_probability_of_no_answer_decides(windows, answer, doubt):
    found = decide(MAYBE, windows)
    assert found["answer"] == answer
    text, best = "York Bath Hull Deal", (found["best_start"], found["best_end"])
    assert found["best"] == text[slice(*best)]
    assert (found["start"], found["end"]) == (best if answer else (None, None))
    assert found["no_answer"] == pytest.approx(1 / (1 + math.exp(min(-doubt, 700))))
    assert json.loads(json.dumps(found)) == found


def test_the_n_best_come_with_their_logits_and_those_of_no_answer():
    found = decide(MAYBE, [(9, 1, 2), (4, 3, -8)], n_best=3)
    assert found["null"] == {"start_logit": 2, "end_logit": 2}  # of the chunk with the lowest
    texts = [(each["answer"], each["start_logit"], each["end_logit"]) for each in found["n_best"]]
    assert texts == [("Hull", 1.5, 1.5), ("Bath", 1, 1), ("York", 0.5, 0.5)]
    written = Squad.answers.layouts["cuad-nbest"].write([found | {"id": "d"}])["d"]
    # The published softmax, over the sums 4, 3, 2 and 1.
    assert [entry["text"] for entry in written] == ["", "Hull", "Bath", "York"]
    shares = np.exp([4, 3, 2, 1]) / np.exp([4, 3, 2, 1]).sum()
    assert [entry["probability"] for entry in written] == pytest.approx(shares)


def test_the_threshold_of_the_model_decides():
    windows = [(4, 3, 2)]
    p = decide(MAYBE, windows)["no_answer"]
    assert decide(maybe(p), windows)["answer"] == "York"
    found = decide(maybe(p - 1e-9), windows, n_best=2)
    assert found["answer"] == ""
    assert [item["answer"] for item in found["n_best"]] == ["York", "Bath"]


def test_an_empty_document_has_no_answer(tiny):
    item = example([], "")
    (feature,) = encode(tiny, item)
    outputs = [dict.fromkeys(Squad.answers.outputs, np.zeros(len(feature["input_ids"])))]
    nothing = {"answer": "", "score": None, "start": None, "end": None, "empty": True}
    assert Squad().decode(outputs, ALWAYS, item, [feature]) == nothing
    found = Squad().decode(outputs, MAYBE, item, [feature])
    best = {"best": "", "best_start": None, "best_end": None}
    assert found == nothing | best | {"no_answer": 1.0}


def test_questions_with_an_answer_are_scored_by_the_rules_of_squad_1():
    answers = [{"answer": "the York"}, {"answer": "New Bath"}]
    golds = [{"answers": ["York", "Hull"]}, {"answers": ["Bath"]}]
    metrics, rows = score_all(Squad(), answers, golds, ALWAYS)
    assert metrics == {"exact_match": 50, "f1": pytest.approx(100 * (1 + 2 / 3) / 2)}
    assert rows == []
    assert settings_of(Squad(), metrics) == {}
    with pytest.raises(DataError, match="no questions to score"):
        score_all(Squad(), [], [], ALWAYS)


def test_the_threshold_is_that_with_the_best_f1_and_goes_into_the_model():
    # sure and right; unsure and right; unsure and wrong as there is none; surely none
    doubts, texts = [0.1, 0.6, 0.7, 0.9], ["York", "Bath", "Hull", "Deal"]
    answers = [
        {"answer": "", "best": text, "no_answer": doubt}
        for doubt, text in zip(doubts, texts, strict=True)
    ]
    golds = [{"answers": right} for right in (["York"], ["Bath"], [], [])]
    metrics, rows = score_all(Squad(), answers, golds, MAYBE)
    assert metrics == {"exact_match": 100, "f1": 100, "no_answer_threshold": pytest.approx(0.65)}
    assert rows == [
        {"questions": "with an answer", "number": 2, "exact_match": 100, "f1": 100},
        {"questions": "without", "number": 2, "exact_match": 100, "f1": 100},
    ]
    assert settings_of(Squad(), metrics) == {"no_answer_threshold": pytest.approx(0.65)}
    golds[1]["answers"] = ["Ely"]
    metrics, rows = score_all(Squad(), answers, golds, MAYBE)
    assert metrics == {"exact_match": 75, "f1": 75, "no_answer_threshold": pytest.approx(0.35)}
    assert rows[0]["f1"] == 50
    golds[0]["answers"] = ["Ely"]
    assert (
        score_all(Squad(), answers, golds, MAYBE)[0]["no_answer_threshold"] == 0.05
    )  # never answer
    golds = [{"answers": [text]} for text in texts]
    assert score_all(Squad(), answers, golds, MAYBE)[0]["no_answer_threshold"] == 0.95  # always
