import numpy as np
import pytest
from features_of import marked_tokens
from passage_answers import (
    CANDIDATES,
    CONFIG,
    CONTEXT,
    decode,
    encode,
    outputs_of,
    question,
    says,
)
from transformers import AutoTokenizer, PretrainedConfig

from ldt.benchmarks.passage_qa import PassageAnswer as Prediction
from ldt.data.tokenization import add_tokens
from ldt.errors import DataError
from ldt.recipe.recipe import DataSection
from ldt.tasks import PassageQA
from ldt.tasks.base import score_all, settings_of
from ldt.tasks.passage_qa import TYPES


@pytest.fixture(scope="module")
def real(shared_data):
    tokenizer = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / "roberta-base")
    add_tokens(tokenizer, PassageQA.inputs.markers)
    return tokenizer


# input


def test_a_marker_by_type_stands_before_each_candidate_with_a_word_and_is_global(real):
    (feature,) = encode(question(says()), real)
    tokens = marked_tokens(feature, real)
    read_ = "".join(token for token, _ in tokens).replace("Ġ", " ")
    assert "[paragraph] One is red.[list] Two is blue.[passage] Three is far away." in read_
    marked = [token.strip() for token, is_global in tokens if is_global]
    assert [token for token in marked if token[0] == "["] == ["[paragraph]", "[list]", "[passage]"]
    assert feature["passages"].tolist() == [0, 1, 2]
    ids = [feature["input_ids"][at] for at in feature["passage_positions"]]
    assert real.convert_ids_to_tokens(ids) == ["[paragraph]", "[list]", "[passage]"]


@pytest.mark.parametrize(
    ("annotation", "kind", "passages", "words"),
    [
        (says(), "none", [0, 0, 0], None),
        (says(1), "passage", [0, 1, 0], None),
        (says(2, (34, 37)), "span", [0, 0, 1], "far"),
        (says(0, yes_no="yes"), "yes", [1, 0, 0], None),
        (says(0, yes_no="no"), "no", [1, 0, 0], None),
    ],
)
def test_an_annotation_gives_passages_a_span_and_the_type(real, annotation, kind, passages, words):
    item = question(annotation)
    (feature,) = encode(item, real)
    assert (TYPES[feature["labels"]], feature["passage_labels"]) == (kind, passages)
    start, end = feature["start_positions"][0], feature["end_positions"][0]
    if words is None:
        assert (start, end) == (0, 0)
    else:
        places = feature["offsets"][[start - feature["first"], end - feature["first"]]]
        assert CONTEXT[places[0, 0] : places[1, 1]] == words


def test_a_chunk_is_of_the_type_of_what_it_has_itself(real):
    features = encode(question(says(1, (34, 37))), real, max_length=13)
    there = [feature["passages"].tolist() for feature in features]
    assert [0] in there
    for feature, numbers in zip(features, there, strict=True):
        words = {CONTEXT[a:b] for a, b in feature["offsets"].tolist()}
        kind = "span" if "far" in words else "passage" if 1 in numbers else "none"
        assert TYPES[feature["labels"]] == kind
        assert feature["passage_labels"] == [int(number == 1) for number in numbers]
    assert {TYPES[feature["labels"]] for feature in features} == {"none", "passage", "span"}


def test_what_two_annotations_say_is_right_together_and_what_one_of_five_says_is_not(real):
    two = [says(0, (7, 10)), says(2, (25, 30), (34, 37)), says(), says(), says()]
    (feature,) = encode(question(*two), real)
    assert feature["passage_labels"] == [1, 0, 1]
    assert len(feature["start_positions"]) == 3
    one = [says(0, (7, 10)), *[says()] * 4]
    (feature,) = encode(question(*one), real)
    assert (feature["labels"], feature["passage_labels"]) == (0, [0, 0, 0])
    assert feature["start_positions"] == [0]
    (feature,) = encode(question(says(0, (7, 10)), says(0), says(0)), real)
    assert TYPES[feature["labels"]] == "passage"  # one span is not enough


def test_without_candidates_the_input_has_no_marker_and_the_answer_no_passage(real):
    (feature,) = encode(question(says(), candidates=[]), real)
    assert (feature["passage_positions"], feature["passage_labels"]) == ([], [])
    answer = decode(outputs_of([feature], chars=(34, 37)), [feature])
    assert (answer["passage"], answer["passage_score"], answer["answer"]) == (None, 0.0, "far")


# answers


def test_the_passage_has_the_highest_score_over_all_chunks_and_the_span_is_inside(real):
    features = encode(question(says()), real, max_length=13)
    outputs = outputs_of(features, {0: 1, 1: 2, 2: -1}, chars=(0, 3))  # the best span is in 0
    answer = decode(outputs, features)
    assert (answer["passage"], answer["passage_score"]) == (1, 2.0)
    assert answer["start"] >= 12
    for output in outputs:
        output["passage_logits"][:-1] -= 2 * (output["passage_logits"][:-1] == 2)
    answer = decode(outputs, features)
    assert (answer["passage"], answer["answer"], answer["span_score"]) == (0, "One", 6.0)


def test_a_span_is_compared_over_chunks_by_its_logits_less_those_of_the_first_token(real):
    candidates = [{"start": 0, "end": 43}]
    features = encode(question(says(), candidates=candidates), real, max_length=13)
    outputs = outputs_of(features, {0: 1})
    for output, feature in zip(outputs, features, strict=True):
        words = [CONTEXT[a:b] for a, b in feature["offsets"].tolist()]
        for word, logit, cls in (("red", 5, 4), ("far", 3, 0)):
            if word in words:
                place = feature["first"] + words.index(word)
                for name in ("start_logits", "end_logits"):
                    output[name][[place, 0]] = logit, cls
    answer = decode(outputs, features)
    assert (answer["answer"], answer["span_score"]) == ("far", 6.0)


@pytest.mark.parametrize("kind", ["yes", "no"])
def test_yes_or_no_takes_the_place_of_a_span_by_its_odds_against_no_answer(real, kind):
    features = encode(question(says()), real)
    outputs = outputs_of(features, {0: 1}, kind, chars=(7, 10))
    answer = decode(outputs, features)
    assert (answer["answer"], answer["yes_no"], answer["start"]) == (kind, kind, None)
    assert answer["span_score"] == pytest.approx(4 - np.log(2))
    outputs[0]["logits"][2] = 4.5
    assert decode(outputs, features)["answer"] == "red"


def test_stored_thresholds_leave_answers_out_and_keep_what_they_would_be(real):
    features = encode(question(says()), real)
    outputs = outputs_of(features, {0: 1}, chars=(7, 10))
    for least, passage, words in ((0.9, 0, "red"), (1.1, None, "red"), (6.1, None, "")):
        thresholds = {"passage": least, "span": least}
        answer = decode(outputs, features, config=PretrainedConfig(answer_thresholds=thresholds))
        assert (answer["passage"], answer["answer"]) == (passage, words)
        assert (answer["best_passage"], answer["best"]) == (0, "red")
        assert (answer["best_start"], answer["best_end"]) == (7, 10)
        assert (answer["start"], answer["end"]) == ((7, 10) if words else (None, None))
    assert settings_of(
        PassageQA(), {"f1": 3.0, "passage_threshold": 1.5, "span_threshold": 2.0}
    ) == {"answer_thresholds": {"passage": 1.5, "span": 2.0}}


# scores


def gold(*annotations):
    return PassageQA().gold(question(*annotations), DataSection(), CONFIG)


def answered(passage, score, span=None):
    start, end = span or (None, None)
    scores = {"passage_score": score, "span_score": score}
    place = {"best_passage": passage, "best_start": start, "best_end": end}
    return scores | place | {"start": None, "end": None, "yes_no": None}


def test_one_annotation_counts_as_two_and_thresholds_lie_between_two_scores():
    golds = [gold(says(0, (7, 10))), gold(says()), gold(says(2))]
    answers = [answered(0, 3.0, (7, 10)), answered(1, 2.0, (0, 3)), answered(2, 1.0, (25, 30))]
    found, rows = score_all(PassageQA(), answers, golds, CONFIG)
    assert found["passage_f1"] == pytest.approx(80)  # all three: 2 of 3 right, 2 of 2 found
    assert (found["span_f1"], found["f1"]) == (100, pytest.approx(90))
    assert (found["passage_threshold"], found["span_threshold"]) == (1.0, 2.5)
    assert rows == []


def test_the_first_paragraph_is_the_answer_without_reading():
    candidates = [{"start": 12, "end": 43, "type": "list"}, CANDIDATES[0]]
    item = question(says(1), candidates=candidates)
    golds = [PassageQA().gold(item, DataSection(), CONFIG), gold(says(2))]
    assert [each.first for each in golds] == [1, 0]
    found = PassageQA().baseline(golds, golds, CONFIG)
    assert found["passage_f1"] == ("always the first paragraph", 50.0)
    assert found.keys() == {"passage_f1", "f1"}
    assert Prediction(0).passage_score == 0


# bad input


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"candidates": None}, "field 'candidates' is null, expected a list"),
        ({"candidates": [[0, 3]]}, "candidates: a list of 2, expected objects with start and end"),
        ({"candidates": [{"start": 0, "end": 44}]}, r"candidates: \[0, 44\], expected .* the 43"),
        ({"annotations": []}, "annotations: none, a question has at least one"),
        (
            {"annotations": [says(4)]},
            "annotations 0: an object of 3 keys, expected passage, null o",
        ),
        ({"annotations": [says(0, (9, 7))]}, r"annotations 0: \[9, 7\], expected"),
        ({"annotations": [says(0, yes_no="YES")]}, "annotations 0: an object of 3 keys, expected"),
        ({"annotations": [{"passage": "0"}]}, "annotations 0: an object of 1 key, expected"),
    ],
)
def test_a_line_that_cannot_be_read_is_told(real, fields, what):
    with pytest.raises(DataError, match=f"^dev.jsonl:3: {what}"):
        encode(question(says(), **fields), real)
