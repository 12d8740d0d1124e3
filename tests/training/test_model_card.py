import re
from collections import Counter
from html.parser import HTMLParser

import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import (
    eval_results_to_model_index,
    model_index_to_eval_results,
)

from ldt.model import LdtConfig, LdtModernBertConfig
from ldt.tasks import Classification, Squad
from ldt.training.model_card import card

SET = {
    "source": "data/train.jsonl",
    "sha256": "ab12",
    "documents": 1200,
    "median": 5000,
    "p95": 9000,
    "longest": 20000,
    "windowed": 30,
    "truncated": 4,
}
RESULTS = {
    "metrics": {"eval_macro_f1": 81.234567, "eval_loss": 0.5, "train_loss": 0.25},
    "table": [{"class": "a|b", "f1": 50.0, "support": 3}],
    "baseline": {"macro_f1": {"answer": "always 'a|b'", "value": 40.0}},
    "metric": "macro_f1",
    "step_of_weights": 1500,
    "steps": 3000,
    "task": "classification",
    "problem": "single_label_classification",
    "base_model": "models/minilm",
    "parameters": 22_000_000,
    "max_length": 4096,
    "overflow": "chunks",
    "max_chunks": None,
    "data": {"train": SET, "eval": SET | {"source": "dev.jsonl", "documents": 99}},
    "seconds": 3600.4,
    "tokens": 9_000_000,
    "tokens_per_second": 2500.0,
    "versions": {"ldt": "0.1.0", "torch": "2.13.0"},
}
CONFIG = LdtConfig(
    id2label={0: "a|b", 1: "<script>x</script>"},
    pooling_layers=[6, 7],
    pooling="mean",
    pooling_size=5,
    pooling_window=512,
)
TASK = Classification()
TRAINING = {
    "learning_rate": 3e-5,
    "num_train_epochs": 3,
    "max_steps": -1,
    "seed": 42,
    "bf16": None,
    "save_steps": 7,
    "load_best_model_at_end": True,
}


@pytest.mark.parametrize(
    "line",
    [
        "| macro_f1 | 81.23 | 40.00 (always 'a\\|b') |",
        "| loss | 0.5000 |  |",
        "- Longer documents than 4,096 tokens are read in chunks whose answers are merged: "
        "nothing in one chunk sees the text of another.",
        "- The results are of 99 documents that also decided on the best step, so they are a "
        "little too good; a test set that was never looked at tells more.",
        "| `num_train_epochs` | 3 |",
        "It is a Poolingformer: layers 6, 7 (from 0) have a second level of attention, to cells of "
        "5 tokens pooled by mean in a window of 512 tokens.",
        "| a\\|b | 50.00 | 3 |",
        "On the evaluation set, with the weights of step 1,500, chosen by macro_f1.",
        "| train | `data/train.jsonl` | 1,200 | 5,000 / 9,000 / 20,000 | 30 | 4 |",
        "- eval: sha256 `ab12`",
        "| `learning_rate` | 3e-05 |",
        "- 4 training documents were not read to their end.",
        "- 4 evaluation documents were not read to their end.",
    ],
)
def test_the_card_says(line):
    assert line in card(TASK, RESULTS, CONFIG, TRAINING, "r").splitlines()


def test_the_card_has_valid_front_matter_and_no_html_from_labels_or_paths():
    text = card(TASK, RESULTS | {"base_model": 'a"b\\<i>'}, CONFIG, TRAINING, "r")
    _, front, body = text.split("---\n", 2)
    front = yaml.safe_load(front)
    front.pop("model-index")
    assert front == {"library_name": "ldt", "base_model": 'a"b\\<i>'}
    assert "<script>" not in body
    assert "<i>" not in body


class Tags(HTMLParser):
    """Counts the elements of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags = Counter()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1


@pytest.mark.parametrize(
    "text",
    [
        "![x](http://evil/p.png)",
        "<img src=http://evil/q.png>",
        "**bold** __strong__ *em* _em_",
        "[link](http://evil) <http://evil> www.evil.org",
        "` `` a|b \\\\| c\\",
        "a\n\n# head\n- item\n| cell |",
        "\\**bold\\** \\`<b>\\`",
    ],
)
def test_no_text_of_the_data_is_markdown_html_or_an_address(text):
    markdown = pytest.importorskip("markdown")
    pages = []
    for word in ("word", text):
        metric = {"answer": f"always {word!r}", "value": 90.0}
        results = RESULTS | {
            "base_model": word,
            "table": [{"class": word, "f1": 50.0, "support": 3}],
            "baseline": {"macro_f1": metric},
            "data": {"train": SET | {"source": word}, "eval": SET | {"source": word}},
        }
        config = LdtConfig(id2label={0: word, 1: "other"})
        body = card(TASK, results, config, TRAINING | {"lr_scheduler_type": word}, "r")
        body = body.split("---\n", 2)[2]
        pages.append(Tags(markdown.markdown(body, extensions=["tables", "fenced_code"])).tags)
        outside = re.sub("`[^`\n]*`", "", body)
        assert "http://" not in outside
        assert "www." not in outside
    assert pages[0] == pages[1]


def test_without_an_evaluation_set_the_card_says_so():
    text = card(TASK, RESULTS | {"data": {"train": SET}, "table": []}, CONFIG, TRAINING, "r")
    assert "There was no evaluation set." in text
    assert "too good" not in text
    assert "evaluation documents" not in text


LENGTHS = [
    {"most_tokens": 512, "documents": 1200, "metrics": {"macro_f1": 100.0, "mse": 0.5}},
    {"most_tokens": 2048, "documents": 9, "metrics": {"macro_f1": 42.4, "mse": float("nan")}},
]


def test_the_metric_of_the_run_is_there_by_length_with_bars_of_shares():
    text = card(TASK, RESULTS | {"by_length": LENGTHS}, CONFIG, TRAINING, "r")
    head, _, first, second = text.partition("By length of the document:\n\n")[2].splitlines()[:4]
    assert head == "| tokens | documents | macro_f1 |  |"
    assert first == f"| 1 to 512 | 1,200 | 100.00 | {'█' * 20} |"
    assert second == f"| 1,025 to 2,048 | 9 | 42.40 | {'█' * 8} |"
    text = card(TASK, RESULTS | {"by_length": LENGTHS, "metric": "mse"}, CONFIG, TRAINING, "r")
    assert "| 1 to 512 | 1,200 | 0.5000 |  |\n| 1,025 to 2,048 | 9 |  |  |" in text
    for without in ({}, {"by_length": LENGTHS, "metric": "loss"}):
        assert "By length" not in card(TASK, RESULTS | without, CONFIG, TRAINING, "r")


WINDOWS = "read in chunks"


@pytest.mark.parametrize(
    ("facts", "said", "unsaid"),
    [
        ({"overflow": "truncate"}, "the beginning alone is read; the answer does not", WINDOWS),
        ({"overflow": "error"}, "- Longer documents than 4,096 tokens are refused.", WINDOWS),
        ({"max_chunks": 2}, "chunks (the first 2 of a document alone) whose", "chunks whose"),
        ({"steps": 1}, "\n1 step, ", "1 steps"),
        ({"baseline": {}}, "| macro_f1 | 81.23 |\n", "without reading"),
        ({"problem": "regression"}, "A regression model", "Labels:"),
        (
            {"problem": None, "task": "multiple_choice"},
            "A multiple choice model",
            "multiple_choice",
        ),
    ],
)
def test_the_card_says_what_this_run_did(facts, said, unsaid):
    text = card(TASK, RESULTS | facts, CONFIG, TRAINING, "r")
    assert said in text
    assert unsaid not in text


def test_the_last_weights_are_not_called_the_best_ones():
    training = TRAINING | {"load_best_model_at_end": False}
    text = card(TASK, RESULTS, CONFIG, training, "r")
    assert "with the weights of step 1,500, the last.\n" in text
    assert "- The results are of 99 documents.\n" in text


def test_a_threshold_of_the_evaluation_set_makes_the_results_too_good_as_well():
    metrics = {"eval_f1": 50.0, "eval_no_answer_threshold": 0.25}
    results = RESULTS | {"metrics": metrics, "problem": None, "task": "squad", "baseline": {}}
    text = card(Squad(), results, CONFIG, TRAINING, "r")
    assert "also decided on the best step and `no_answer_threshold`, so" in text


def test_steps_leave_epochs_without_a_say():
    text = card(TASK, RESULTS, CONFIG, TRAINING | {"max_steps": 9}, "r")
    assert "| `max_steps` | 9 |" in text
    assert "num_train_epochs" not in text
    assert "max_steps" not in card(TASK, RESULTS, CONFIG, TRAINING, "r")


def test_outputs_without_names_are_no_labels():
    config = LdtConfig(id2label={0: "LABEL_0", 1: "LABEL_1"})
    assert "Labels:" in card(TASK, RESULTS, CONFIG, {}, "r")
    assert "LABEL_" not in card(TASK, RESULTS, config, {}, "r")


def test_the_metadata_have_the_metrics_of_the_evaluation_for_the_hub():
    made = ModelCard(card(TASK, RESULTS, CONFIG, TRAINING, "r"))
    assert made.data.model_name == "r"
    found = {result.metric_type: result.metric_value for result in made.data.eval_results}
    assert found == {"macro_f1": 81.234567, "loss": 0.5}
    assert all(result.dataset_type == "custom" for result in made.data.eval_results)
    read = model_index_to_eval_results(eval_results_to_model_index("r", made.data.eval_results))
    assert read == ("r", made.data.eval_results)
    assert {(r.task_type, r.dataset_name) for r in made.data.eval_results} == {
        ("text-classification", "dev.jsonl")
    }


def test_a_metric_that_is_no_number_is_not_in_the_metadata():
    metrics = {"eval_macro_f1": 0.5, "eval_loss": float("nan")}
    made = ModelCard(card(TASK, RESULTS | {"metrics": metrics}, CONFIG, TRAINING, "r"))
    assert [result.metric_type for result in made.data.eval_results] == ["macro_f1"]
    without = RESULTS | {"data": {"train": SET}, "table": []}
    assert ModelCard(card(TASK, without, CONFIG, TRAINING, "r")).data.eval_results is None


@pytest.mark.parametrize(
    ("config", "first"),
    [
        (CONFIG, "import ldt.model"),
        (LdtConfig(), "from transformers import AutoModelForSequenceClassification, AutoTokenizer"),
        (
            LdtModernBertConfig(),
            "from transformers import AutoModelForSequenceClassification, AutoTokenizer",
        ),
        (LdtModernBertConfig(global_layers="all"), "import ldt.model"),
    ],
)
def test_the_first_line_of_python_says_whether_ldt_is_needed(config, first):
    config.architectures = ["LdtForSequenceClassification"]
    text = card(TASK, RESULTS, config, TRAINING, "r")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    assert code.splitlines()[0] == first
    compile(code, "card", "exec")
