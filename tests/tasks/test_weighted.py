import numpy as np
import pytest
from transformers import PretrainedConfig

from ldt.errors import RecipeError
from ldt.tasks import Classification, TokenClassification


def config(*names, problem="single_label_classification"):
    return PretrainedConfig(id2label=dict(enumerate(names)), problem_type=problem)


def of(*labels):
    return [{"labels": label} for label in labels]


def test_balanced_weights_are_those_of_scikit_learn():
    task = Classification(class_weights="balanced", focal_gamma=2)
    changes, lines = task.config_changes(of(0, 0, 0, 1), config("a", "b"))
    # n / (classes * n of the class), sklearn.utils.class_weight.compute_class_weight
    assert changes == {"class_weights": pytest.approx([4 / 6, 4 / 2]), "focal_gamma": 2.0}
    assert lines == ["class weights, with the number of labels: 'a' 0.6667 (3), 'b' 2 (1)"]


def test_of_several_labels_the_documents_without_by_those_with():
    task = Classification(class_weights="balanced")
    several = config("a", "b", "c", problem="multi_label_classification")
    rows = of(*np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0]], bool))
    assert task.config_changes(rows, several)[0]["class_weights"] == pytest.approx(
        [1 / 3, 3.0, 4.0]
    )
    (line,) = task.config_changes(of(*np.array([[1, 0, 0], [1, 1, 0]], bool)), several)[1]
    assert line.endswith("'a' 1e-06 (2), 'b' 1 (1), 'c' 2 (0)")


def test_words_are_counted_where_labels_are_of_tokens():
    task = TokenClassification(class_weights="balanced")
    names = config("O", "B-X", "I-X", problem=None)
    rows = of(np.array([-100, 0, 0, 1]), np.array([0, 2, -100]))
    wanted = [5 / (3 * 3), 5 / 3, 5 / 3]
    assert task.config_changes(rows, names)[0]["class_weights"] == pytest.approx(wanted)
    task = TokenClassification(class_weights={"X": 3, "O": 0.5})
    assert task.config_changes(rows, names)[0]["class_weights"] == [0.5, 3.0, 3.0]


def test_weights_by_name_leave_the_others_at_1():
    task = Classification(class_weights={"b": 2.5})
    assert task.config_changes(of(0, 1), config("a", "b"))[0]["class_weights"] == [1.0, 2.5]


def test_an_unknown_class_is_named():
    task = Classification(class_weights={"suply": 2})
    with pytest.raises(RecipeError, match="class_weights: no class 'suply'.*supply"):
        task.config_changes(of(0, 1), config("supply", "b"))


def test_without_weights_those_of_the_model_before_go():
    changes, lines = Classification().config_changes(of(0), config("a", "b"))
    assert changes == {"class_weights": None, "focal_gamma": 0.0}
    assert lines == []
