import json
import math

import numpy as np
import pytest
from transformers import AutoTokenizer, PretrainedConfig

from ldt.errors import DataError, RecipeError
from ldt.io.records import Example
from ldt.metrics.meanings import LOWER_IS_BETTER
from ldt.recipe import recipe
from ldt.recipe.recipe import DataSection
from ldt.tasks import Classification
from ldt.tasks.base import metric_of, score_all, strata_of


def examples(*labels, text="some text"):
    return [
        Example({"text": text, "label": label}, number, f"train.jsonl:{number}")
        for number, label in enumerate(labels, start=1)
    ]


def learnt(*labels, task=None, data=None):
    task = task or Classification()
    return PretrainedConfig(**task.learn(examples(*labels), data or DataSection()))


@pytest.fixture
def encode(tiny):
    def encode(text, max_length=16, task=None, config=None, label=None, **data):
        example = Example({"text": text, "label": label}, "d", "dev.jsonl:3")
        task = task or Classification()
        section = DataSection(**data)
        return task.encode(example, tiny, data=section, max_length=max_length, config=config)

    return encode


# what the labels of a training set mean


@pytest.mark.parametrize(
    ("labels", "problem", "names"),
    [
        (["no", "yes", "on", "007", "no"], "single_label_classification", "007 no on yes"),
        ([10, 9, 10], "single_label_classification", "10 9"),
        ([True, False], "single_label_classification", "false true"),
        ([["b", "a"], [], ["b"]], "multi_label_classification", "a b"),
        ([0.5, 2, 1.5], "regression", "label"),
        (["1", "2"], "single_label_classification", "1 2"),
    ],
)
def test_the_problem_and_the_classes_are_told_by_the_labels(labels, problem, names):
    config = learnt(*labels)
    assert config.problem_type == problem
    assert [config.id2label[number] for number in range(config.num_labels)] == names.split()
    assert config.label2id == {name: number for number, name in enumerate(names.split())}


def test_several_label_fields_are_one_multi_label_problem_in_their_order():
    data = DataSection(label=["clauses.B b", "clauses.A a"])
    found = [
        Example({"clauses": {"A a": a, "B b": b}}, 1, "f:1")
        for a, b in ((True, False), ("false", "1"), (0, 0))
    ]
    task = Classification()
    config = PretrainedConfig(**task.learn(found, data))
    assert config.id2label == {0: "B b", 1: "A a"}
    assert config.problem_type == "multi_label_classification"
    golds = [task.gold(example, data, config) for example in found]
    assert golds == [["A a"], ["B b"], []]
    with pytest.raises(DataError, match="f:1: label 'clauses.A a' is 2, expected yes or no in one"):
        task.learn([Example({"clauses": {"A a": 2, "B b": True}}, 1, "f:1")], data)


def test_the_recipe_can_say_what_the_labels_mean():
    numbers = learnt("0.5", "2", task=Classification(problem="regression", pooling="max"))
    assert (numbers.problem_type, numbers.classifier_pooling) == ("regression", "max")
    classes = learnt("0.5", "2", task=Classification(problem="single_label"))
    assert classes.id2label == {0: "0.5", 1: "2"}
    ints = learnt(1, 2, task=Classification(problem="regression"))
    assert ints.num_labels == 1


def test_the_recipe_can_fix_the_classes_and_their_order():
    task = Classification(labels=["z", "b", "a"])
    assert learnt("a", "z", "a", task=task).id2label == {0: "z", 1: "b", 2: "a"}
    with pytest.raises(DataError, match="train.jsonl:2: label 'c' is not in task.labels: 'z', 'b'"):
        learnt("a", "c", task=task)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", None], "train.jsonl:2: label 'label' is null"),
        (["a", ""], "train.jsonl:2: label 'label' is '', expected text, a whole number, true or"),
        (["a", 1], "train.jsonl:2: label 'label' is a number, at train.jsonl:1 text; they must be"),
        ([["a"], "b"], "train.jsonl:2: label 'label' is text, at train.jsonl:1 a list; they"),
        ([{}, {}], "train.jsonl:1: label 'label' is an object, empty, expected text"),
        ([["a"], [None]], "train.jsonl:2: label 'label' is null, expected text"),
        (["a"] * 3, "nothing to learn, all 3 documents have the same label, 'a'"),
        ([False] * 3, "nothing to learn, all 3 documents have the same label, 'false'"),
        ([[]] * 3, "nothing to learn, all 3 documents have the same label, []"),
        ([1.5] * 3, "nothing to learn, all 3 documents have the same label, 1.5"),
        ([1.5, math.nan], "train.jsonl:2: label 'label' is nan, expected a number"),
        (
            ["1", "0.7"],
            "train.jsonl:1: labels such as '0.7' are numbers as text; task.problem=regr",
        ),
    ],
)
def test_labels_that_cannot_be_learnt_are_data_errors(labels, message):
    with pytest.raises(DataError) as caught:
        learnt(*labels)
    assert message in str(caught.value)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("fields", "label", "message"),
    [
        ({"problem": "regression", "labels": ["a"]}, "label", "task.labels: a regression has no"),
        ({"problem": "regression", "merge": "logsumexp"}, "label", "task.merge: logsumexp of numb"),
        ({"problem": "single_label"}, ["a"], "data.label: several fields, task.problem is single"),
        ({"labels": ["b"]}, ["a"], "task.labels: data.label names the classes already"),
    ],
)
def test_keys_that_do_not_go_together_are_recipe_errors(fields, label, message):
    task = Classification(**fields)
    found = [Example({"label": 1.5, "a": True}, 1, "f:1")]
    if task.problem != "regression":
        found[0].fields["label"] = "x"
    with pytest.raises(RecipeError, match=message):
        task.learn(found, DataSection(label=label))


def test_a_label_unseen_in_training_is_found_before_it_with_its_count():
    config = learnt("a", "b")
    with pytest.raises(DataError) as caught:
        Classification().check(examples("a", "c", "d", "d"), DataSection(), config)
    assert str(caught.value) == (
        "train.jsonl:3: labels that the training set does not have, with their number: "
        "'d' (2), 'c' (1); it has 'a', 'b'"
    )
    Classification().check(examples("b", "b"), DataSection(), config)


def test_an_unlabelled_evaluation_set_is_a_data_error():
    config, numbers = learnt("a", "b"), learnt(0.5, 1.5)
    with pytest.raises(DataError, match="train.jsonl:1: label 'label' is null"):
        Classification().check(examples(None), DataSection(), config)
    with pytest.raises(DataError, match="train.jsonl:2: label 'label' is 'high', expected a num"):
        Classification().check(examples(1.5, "high"), DataSection(), numbers)
    Classification().check(examples(99), DataSection(), numbers)


def test_strata_are_classes_and_nothing_else():
    task, data = Classification(), DataSection()
    strata = [
        [*strata_of(task, each, data)] for each in examples("a", 1, True, 1.5, ["a"], None, [None])
    ]
    assert strata == [["a"], ["1"], ["true"], [], ["a"], [], []]
    assert not strata_of(Classification(problem="regression"), examples(1)[0], data)


# encoding


def test_a_document_is_encoded_between_cls_and_sep_with_cls_global(encode, tiny):
    ids = tiny("the party", add_special_tokens=False)["input_ids"]
    assert encode("the party") == [
        {
            "input_ids": [tiny.cls_token_id, *ids, tiny.sep_token_id],
            "global_attention_mask": [1] + [0] * (len(ids) + 1),
            "document": 0,
            "tokens": len(ids) + 2,
        }
        | {"flags": {}, "chunks": 1, "read": (1, 0, 2)}
    ]


def test_the_encoding_of_real_tokenizers_is_pinned(shared_data):
    folder = shared_data / "tokenizers"
    golden = {
        "roberta-base": [0, 133, 537, 9, 5, 78, 233, 4, 2],
        "bert-base-uncased": [101, 1996, 2283, 1997, 1996, 2034, 2112, 1012, 102],
    }
    for name, ids in golden.items():
        tokenizer = AutoTokenizer.from_pretrained(folder / name)
        example = Example({"body": "The party of the first part."}, 1, "f:1")
        (feature,) = Classification().encode(
            example, tokenizer, data=DataSection(text="body"), max_length=9
        )
        assert feature["input_ids"] == ids
        assert feature["global_attention_mask"] == [1, 0, 0, 0, 0, 0, 0, 0, 0]


def test_an_empty_text_is_cls_and_sep_with_a_flag(encode, tiny):
    (feature,) = encode("")
    assert feature["input_ids"] == [tiny.cls_token_id, tiny.sep_token_id]
    assert feature["flags"] == {"empty": True}
    assert encode(" \n\u3000")[0]["flags"] == {"empty": True}
    assert encode("a")[0]["flags"] == {}


@pytest.mark.parametrize(
    ("training", "label", "target"),
    [
        (["b", "a"], "b", 1),
        ([True, False], False, 0),
        ([["a", "b"], ["c"]], ["c", "a"], np.array([True, False, True])),
        ([["a", "b"], ["c"]], [], np.zeros(3, bool)),
        ([0.5, 1.5], 3, 3.0),
    ],
)
def test_labels_are_encoded_where_there_is_a_config(encode, training, label, target):
    config = learnt(*training)
    for feature in encode("the party of the first part " * 9, label=label, config=config):
        np.testing.assert_array_equal(feature["labels"], target)
        assert type(feature["labels"]) is type(target)
    assert "labels" not in encode("the", label=label)[0]


def test_a_label_that_the_model_does_not_know_is_a_data_error(encode):
    with pytest.raises(DataError, match="dev.jsonl:3: label 'c', the model knows 'a', 'b'"):
        encode("the", label="c", config=learnt("a", "b"))


# answers


DOCUMENT = Example({"text": ""}, "d", "d.jsonl:1")


def decide(task, windows, config, flags=None):
    """The answer to a document from its windows' logits."""
    outputs = [{"logits": logits} for logits in windows]
    features = [{"flags": flags or {}}] * len(outputs)
    return task.decode(outputs, config, DOCUMENT, features)


WINDOWS = np.array([[2.0, 0.0, -1.0], [0.0, 1.0, 5.0]])


@pytest.mark.parametrize(
    ("merge", "merged"),
    [
        ("mean", [1.0, 0.5, 2.0]),
        ("max", [2.0, 1.0, 5.0]),
        ("logsumexp", [math.log(math.exp(a) + math.exp(b)) for a, b in WINDOWS.T]),
    ],
)
def test_the_logits_of_windows_are_merged_and_then_turned_into_probabilities(merge, merged):
    task = Classification(merge=merge)
    total = sum(map(math.exp, merged))
    single = decide(task, WINDOWS, learnt("a", "b", "c"))
    want = {name: math.exp(x) / total for name, x in zip("abc", merged, strict=True)}
    assert single == {"label": "c", "scores": pytest.approx(want), "chunks": 2}
    multi = decide(task, WINDOWS - 1.2, learnt(["a"], ["b", "c"]))
    want = {name: 1 / (1 + math.exp(1.2 - x)) for name, x in zip("abc", merged, strict=True)}
    assert multi["scores"] == pytest.approx(want)
    assert multi["label"] == [name for name in "abc" if want[name] >= 0.5]
    assert json.loads(json.dumps([single, multi])) == [single, multi]


def test_the_threshold_decides_which_classes_are_in_the_answer():
    config, logits = learnt(["a"], ["b"]), np.array([[0.0, 1.0]])
    assert decide(Classification(), logits, config)["label"] == ["a", "b"]
    assert decide(Classification(threshold=0.6), logits, config)["label"] == ["b"]
    assert decide(Classification(threshold=0.9), logits, config)["label"] == []


def test_a_regression_answers_with_a_number():
    answer = decide(Classification(), np.array([[1.0], [2.5]]), learnt(0.5, 1.5))
    assert answer == {"label": 1.75, "scores": {"label": 1.75}, "chunks": 2}


def test_huge_logits_do_not_overflow():
    with np.errstate(all="raise", under="ignore"):
        for merge in ("mean", "max", "logsumexp"):
            task, logits = Classification(merge=merge), np.array([[-1e30, 1e30]])
            assert decide(task, logits, learnt("a", "b"))["scores"] == {"a": 0, "b": 1}
            assert decide(task, logits, learnt(["a"], ["b"]))["scores"] == {"a": 0, "b": 1}


def answers(*labels):
    return [{"label": label} for label in labels]


def test_single_labels_are_scored_with_a_row_for_every_class():
    config = learnt("a", "b", "c")
    metrics, rows = score_all(Classification(), answers("a", "b", "b"), ["a", "a", "b"], config)
    f1 = pytest.approx(200 / 3)
    want = {"accuracy": f1, "macro_f1": f1, "micro_f1": f1}  # of a and b, c occurs nowhere
    assert metrics == want
    assert rows[0] == {"class": "a", "precision": 100, "recall": 50, "f1": f1, "support": 2}
    assert [row["class"] for row in rows] == ["a", "b", "c"]
    assert json.loads(json.dumps([metrics, rows])) == [metrics, rows]


def test_multi_labels_are_scored_over_all_classes():
    config = learnt(["a", "b"], ["c"])
    metrics, rows = score_all(Classification(), answers(["a"], []), [["a", "b"], []], config)
    assert metrics == pytest.approx({"exact_match": 50, "macro_f1": 100 / 3, "micro_f1": 200 / 3})
    assert [row["support"] for row in rows] == [1, 1, 0]


def test_numbers_are_scored_without_rows():
    config = learnt(0.5, 1.5)
    metrics, rows = score_all(Classification(), answers(1.0, 2.0), [1.0, 4.0], config)
    assert metrics == {"mse": 2, "mae": 1, "pearson": pytest.approx(1), "spearman": 1}
    assert rows == []


@pytest.mark.parametrize(
    ("labels", "metric", "lower"), [(["a", "b"], "macro_f1", False), ([0.5, 1.5], "mse", True)]
)
def test_the_default_metric_suits_the_problem_and_is_scored(labels, metric, lower):
    task, config = Classification(), learnt(*labels)
    assert metric_of(task, config) == metric
    assert (metric in LOWER_IS_BETTER) is lower
    gold = [task.gold(example, DataSection(), config) for example in examples(*labels)]
    assert metric in score_all(task, answers(*gold), gold, config)[0]


# the whole


def test_a_recipe_takes_the_fields_of_the_task(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("task: {name: classification, labels: [no, yes, 007], merge: max}\n")
    task = recipe.load(path).task
    assert task == Classification(labels=["no", "yes", "007"], merge="max")
    path.write_text("task: {name: classification, global_attention: [cls, question]}\n")
    with pytest.raises(RecipeError, match="no 'question' in the input of classification"):
        recipe.load(path)
