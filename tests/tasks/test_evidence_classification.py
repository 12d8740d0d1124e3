"""Classes with evidence: inputs, labels, answers over chunks, and figures as published."""

import json

import numpy as np
import pytest
from training_runs import train
from transformers import AutoTokenizer, PretrainedConfig

from ldt import benchmarks as evaluation
from ldt.data.tokenization import add_tokens
from ldt.errors import DataError
from ldt.inference.predict import predict
from ldt.io.records import Example
from ldt.recipe import recipe as recipes
from ldt.recipe.recipe import DataSection
from ldt.tasks import EvidenceClassification
from ldt.tasks.base import metric_of, score_all
from ldt.tasks.questions import probabilities

NOT, YES, NO = "NotMentioned", "Entailment", "Contradiction"
TEXT = "Title. The party agrees. \n It ends in May. Nothing else."
SPANS = [[0, 6], [7, 24], [24, 26], [27, 42], [43, 56]]  # the third is white space


def claim(**fields):
    values = {"text": TEXT, "spans": SPANS, "hypothesis": "It ends.", "label": YES}
    return Example(values | {"evidence": [3]} | fields, "c/1", "dev.json: c/1")


@pytest.fixture(scope="module")
def tiny(tokenizer_folder):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    add_tokens(tokenizer, EvidenceClassification.inputs.markers)
    return tokenizer


TASK = EvidenceClassification()
CONFIG = PretrainedConfig(**TASK.learn([claim(), claim(label=NO)], DataSection()))


def encode(item, tokenizer, max_length=256, config=CONFIG, task=TASK, **data):
    section = DataSection(**data)
    return task.encode(item, tokenizer, data=section, max_length=max_length, config=config)


def says(features, classes, spans):
    """Outputs of a model: logits of the classes by chunk, of the spans by number."""
    return [
        {
            "logits": np.array(logits, np.float32),
            "passage_logits": np.array([*map(spans.get, feature["passages"].tolist()), -9e9]),
        }
        for feature, logits in zip(features, classes, strict=True)
    ]


# encoding


def test_a_marker_stands_before_each_span_that_has_a_word_and_is_global(tiny):
    (feature,) = encode(claim(), tiny)
    marker = tiny.convert_tokens_to_ids("[SPAN]")
    ids = np.array(feature["input_ids"])
    assert feature["passages"].tolist() == [0, 1, 3, 4]
    assert np.flatnonzero(ids == marker).tolist() == feature["passage_positions"]
    for place, number in zip(feature["passage_positions"], [0, 1, 3, 4], strict=True):
        behind = feature["offsets"][place + 1 - feature["first"]]
        assert TEXT[SPANS[number][0]] in TEXT[behind[0] : behind[1]].strip()
    is_global = np.flatnonzero(feature["global_attention_mask"]).tolist()
    hypothesis = feature["first"] - 2
    assert is_global == [*range(hypothesis + 1), *feature["passage_positions"]]


def test_no_chunk_cuts_a_span_and_the_class_is_learnt_where_its_evidence_is(tiny):
    item = claim(evidence=[0, 1])
    whole = len(encode(item, tiny)[0]["input_ids"])
    features = encode(item, tiny, max_length=whole - 4)
    assert len(features) > 1
    read = [feature["passages"].tolist() for feature in features]
    assert sorted(sum(read, [])) == [0, 1, 3, 4]
    for feature in features:
        offsets = feature["offsets"]
        for number in feature["passages"].tolist():
            start, end = SPANS[number]
            assert offsets[:, 0].min() <= start
            assert end <= offsets[:, 1].max()
    assert [feature["labels"] for feature in features] == [1] + [-100] * (len(features) - 1)
    assert TASK.remarks(features, 0)[0] == f"1 of {len(features)} inputs have evidence"
    unmentioned = encode(claim(label=NOT, evidence=[]), tiny, max_length=whole - 4)
    assert {feature["labels"] for feature in unmentioned} == {0}


def test_a_text_without_spans_has_a_class_and_no_evidence(tiny):
    (feature,) = encode(claim(spans=[], evidence=[]), tiny)
    assert (feature["passage_positions"], feature["labels"]) == ([], 1)
    outputs = says([feature], [[0, 0, 2]], {})
    answer = TASK.decode(outputs, CONFIG, claim(), [feature])
    assert (answer["label"], answer["evidence"], answer["span_probs"]) == (NO, [], [])


# labels and errors


def test_the_classes_are_those_of_contractnli_or_learnt():
    def names(*labels, task=TASK):
        learnt = task.learn([claim(label=label) for label in labels], DataSection())
        return list(learnt["id2label"].values())

    assert names(NO, YES) == [NOT, YES, NO]  # though one is not there
    assert names("no", "maybe", "no") == ["maybe", "no"]
    own = EvidenceClassification(labels=["yes", "no", "maybe"])
    assert names("no", "yes", task=own) == ["yes", "no", "maybe"]
    with pytest.raises(DataError, match="c/1: label 'so', expected one of 'yes', 'no', 'maybe'"):
        names("no", "so", task=own)
    with pytest.raises(DataError, match="nothing to learn, all 2 hypotheses have the label 'x'"):
        names("x", "x")
    with pytest.raises(DataError, match="label 'so', expected one of 'NotMentioned'"):
        TASK.check([claim(label="so")], DataSection(), CONFIG)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"spans": "a"}, r"field 'spans': 'a', expected a list of \[start, end\]"),
        ({"spans": [[0, 57]]}, r"field 'spans': \[0, 57\], expected .* the 56 char"),
        ({"spans": [[5, 4]]}, r"field 'spans': \[5, 4\], expected"),
        ({"evidence": [5]}, "field 'evidence': 5, expected numbers of spans, .* are 5, from 0"),
        ({"evidence": [-1]}, "field 'evidence': -1, expected"),
        ({"evidence": [True]}, "field 'evidence': true, expected"),
        ({"evidence": "a"}, "field 'evidence': 'a', expected"),
    ],
)
def test_an_example_that_cannot_be_read_is_told(tiny, fields, what):
    with pytest.raises(DataError, match=f"^dev.json: c/1: {what}"):
        encode(claim(**fields), tiny)


# answers


def test_an_answer_has_its_class_and_the_evidence_above_the_threshold(tiny):
    item = claim(key="nda-1", document=7)
    features = encode(item, tiny)
    outputs = says(features, [[0, 2, 1]], {0: -2, 1: 0, 3: 2, 4: 1e-6})
    answer = TASK.decode(outputs, CONFIG, item, features)
    sure = 1 / (1 + np.exp(-2))
    assert answer["label"] == YES
    assert sum(answer["scores"].values()) == pytest.approx(1)
    assert list(answer["scores"]) == [NOT, YES, NO]
    assert answer["span_probs"] == pytest.approx([1 - sure, 0.5, 0, sure, 0.5], abs=1e-6)
    best, last = answer["evidence"]  # one half is not above it
    assert best == {
        **{"span": 3, "start": 27, "end": 42, "text": "It ends in May."},
        "score": pytest.approx(sure),
    }
    assert last["span"] == 4
    assert {name: answer[name] for name in ("key", "document", "hypothesis")} == {
        **{"key": "nda-1", "document": 7},
        "hypothesis": "It ends.",
    }
    assert json.loads(json.dumps(answer)) == answer
    assert set(answer) <= {*TASK.answers.keys}
    places = TASK.places(answer, item, DataSection())
    assert max(places, key=lambda place: place[1])[0] == 27
    strict = EvidenceClassification(threshold=0.9).decode(outputs, CONFIG, item, features)
    assert strict["evidence"] == []


def test_chunks_with_evidence_say_more_and_a_span_in_two_has_the_mean():
    features = [{"passages": np.array([0, 1])}, {"passages": np.array([1, 2])}]
    outputs = [
        {"logits": np.log([0.5, 0.25, 0.25]), "passage_logits": np.array([0.0, 0.0, 99.0])},
        {"logits": np.log([0.1, 0.8, 0.1]), "passage_logits": np.log([3.0, 3.0, 99.0])},
    ]
    classes, spans = probabilities(outputs, features, 4)
    assert spans == pytest.approx([0.5, (0.5 + 0.75) / 2, 0.75, 0])
    assert classes == pytest.approx(
        (2 * np.array([0.5, 0.25, 0.25]) + 3 * np.array([0.1, 0.8, 0.1])) / 5
    )
    bare = [{"passages": np.array([], int)}] * 2
    classes, _ = probabilities(outputs, bare, 0)
    assert classes == pytest.approx([0.3, 0.525, 0.175])


# figures


def answered(label, scores, spans):
    return {"label": label, "scores": dict(zip((NOT, YES, NO), scores, strict=True))} | {
        "span_probs": spans
    }


def gold(label, evidence, spans=3, key=None, document=None):
    named = {"key": key, "document": document}
    return {"label": label, "evidence": evidence, "spans": spans} | named


def test_the_figures_are_published_ones_with_keys_and_plain_ones_without():
    answers = [
        answered(YES, [0.1, 0.8, 0.1], [0.9, 0.2, 0.1]),
        answered(NO, [0.1, 0.1, 0.8], [0.9, 0.2, 0.3]),
        answered(NO, [0.1, 0.1, 0.8], [0.9, 0.2, 0.1]),
    ]
    right = [(YES, [0]), (NO, [1]), (NOT, [])]
    keys = [("a", 1), ("a", 2), ("b", 1)]
    golds = [gold(*r, key=key, document=d) for r, (key, d) in zip(right, keys, strict=True)]
    metrics, rows = score_all(TASK, answers, golds, CONFIG)
    # Of a: scores .9 .9 .3 .2 .2 .1, right .9 and .2: (1/2 + 2/5) / 2; of b there is no evidence.
    assert metrics["span.map"] == pytest.approx(45)
    assert metrics["class.accuracy"] == 50  # a has 100, b 0
    assert metrics["class.f1_contradiction"] == 100
    assert [(row["class"], row["support"]) for row in rows] == [(NOT, 1), (YES, 1), (NO, 1)]
    plain, _ = score_all(TASK, answers, [gold(*each) for each in right], CONFIG)
    assert plain["class.accuracy"] == pytest.approx(200 / 3)
    assert plain["class.macro_f1"] == pytest.approx((100 + 200 / 3) / 3)
    assert plain["span.map"] == pytest.approx(45)
    assert metric_of(TASK, CONFIG) in metrics.keys() & plain.keys()


def test_the_baseline_is_the_commonest_class_of_each_hypothesis():
    trained = [gold(YES, [0], key="a", document=1), gold(NO, [0], key="b", document=1)]
    golds = [*trained, gold(NO, [2], key="b", document=2)]
    found = TASK.baseline(trained, golds, CONFIG)
    assert found["class.accuracy"] == ("always the commonest class of a hypothesis", 100)
    assert found["span.map"].value == pytest.approx(100 / 3)
    unkeyed = [gold(YES, [0]), gold(YES, [1]), gold(NO, [1])]
    assert TASK.baseline(unkeyed, unkeyed, CONFIG)["class.accuracy"].value == pytest.approx(200 / 3)


# the whole


CHOICES = {"BBBBB": YES, "CCCCC": NO, "AAAAA": NOT}


def contracts(texts):
    """A file whose contracts say by a word of their first span what holds of two hypotheses."""
    documents = []
    for number, word in enumerate(texts):
        words = f"The {word}. Of party. Agree that."
        spans = [[0, 10], [11, 20], [21, len(words)]]
        evidence = [] if CHOICES[word] == NOT else [0]
        entry = {"choice": CHOICES[word], "spans": evidence}
        documents.append(
            {
                **{"id": number, "file_name": "a.pdf", "text": words, "spans": spans},
                **{"document_type": "sec-text", "url": ""},
                "annotation_sets": [{"annotations": {"nda-1": entry, "nda-2": dict(entry)}}],
            }
        )
    labels = {
        key: {"short_description": key, "hypothesis": words}
        for key, words in (("nda-1", "It ends."), ("nda-2", "It begins."))
    }
    return {"documents": documents, "labels": labels}


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_longformer):
    """A folder with a model that has learnt nine contracts, and the metrics of its training."""
    folder = tmp_path_factory.mktemp("contractnli")
    file = folder / "all.json"
    file.write_text(json.dumps(contracts([*CHOICES] * 3)), encoding="utf-8")
    recipe = folder / "r.yaml"
    recipe.write_text(
        f"""
task: {{name: evidence_classification}}
model: {{path: {tiny_longformer}}}
data: {{train: {file}, eval: {file}, format: contractnli}}
training:
  output_dir: {folder}/run
  num_train_epochs: 12
  per_device_train_batch_size: 9
  gradient_accumulation_steps: 1
  learning_rate: 0.02
  lr_scheduler_type: constant
  eval_strategy: "no"
  save_strategy: "no"
""",
        encoding="utf-8",
    )
    return folder, train(recipes.load(recipe))


def test_contracts_are_learnt_and_ldt_evaluate_says_the_same(run):
    folder, metrics = run
    gold_file, out = str(folder / "all.json"), str(folder / "predictions.json")
    predict(gold_file, model=str(folder / "run"), output=out, layout="contractnli")
    result = evaluation.evaluate(gold_file, out, format="contractnli")
    trained = {name.removeprefix("eval_"): value for name, value in metrics.items() if "." in name}
    assert trained == {name: pytest.approx(result.metrics[name], abs=1e-9) for name in trained}
    assert set(trained) == set(result.shown)
    assert trained["class.accuracy"] > 95
    assert trained["span.map"] > 95


def test_passages_name_the_sentences_of_the_likeliest_spans(run):
    folder, _ = run
    out = folder / "answers.jsonl"
    predict(str(folder / "all.json"), model=str(folder / "run"), output=str(out), passages=1)
    answers = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    found = [answer["passages"][0] for answer in answers if answer["label"] != NOT]
    assert {(passage["start"], passage["end"]) for passage in found} == {(0, 10)}
