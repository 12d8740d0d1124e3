"""Tiny runs of several tasks, documents for them, and what an exported folder's README answers."""

import json
import re
import subprocess
import sys

import torch
from transformers import AutoTokenizer

from ldt.data.tokenization import add_tokens
from ldt.model import LdtConfig, LdtModernBertConfig
from ldt.recipe import recipe as recipes

TAGS = {"id2label": {0: "O", 1: "B-ORG", 2: "I-ORG"}}
TASKS = {  # task -> its section, changes to the config
    "classification": (
        {"threshold": 0.5},
        {"id2label": {0: "yes", 1: "no", 2: "007"}, "problem_type": "single_label_classification"},
    ),
    "token_classification": ({}, TAGS),
    "squad": ({}, {"num_labels": 2, "no_answer_threshold": 0.5}),
    "multiple_choice": ({}, {"num_labels": 1}),
    "reranking": ({}, {"id2label": {0: "relevance"}}),
    "embedding": ({}, {"embedding": {"pooling": "mean"}}),
    "wikihop": ({}, {}),
}
TEXT = "the first party and the other party agree that this agreement ends"
DOCUMENTS = {
    "classification": {"text": TEXT},
    "token_classification": {"tokens": TEXT.split()},
    "squad": {"question": "the other party", "context": TEXT},
    "multiple_choice": {"question": "the party", "context": TEXT, "choices": ["ends", "the first"]},
    "reranking": {"query": "the party", "documents": [TEXT, "that the other party ends"]},
    "embedding": {"text": TEXT},
    "wikihop": {"query": "agreement", "candidates": ["first", "other"], "supports": [TEXT, "that"]},
}


# What a config needs, by its class: a layer of window 8, of a ModernBERT a full one before it.
WINDOWS = {
    LdtConfig: {"num_hidden_layers": 1, "attention_window": 8, "type_vocab_size": 1},
    LdtModernBertConfig: {"num_hidden_layers": 2, "local_attention": 8},
}


def make_run(tokenizer_folder, folder, task, *, of=LdtConfig, section=None, length=64, **changes):
    """A run folder of a random model of width 16 with a config of class ``of``."""
    own, config = TASKS[task]
    values = {"task": {"name": task} | own | (section or {}), "model": {"path": "somewhere"}}
    values["data"] = {"train": "train.jsonl"} | ({"max_length": length} if length else {})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(json.dumps(values))
    recipe = recipes.load(folder / "recipe.yaml")
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    add_tokens(tokenizer, recipe.task.inputs.markers)
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "sep")}
    size = WINDOWS[of] | {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    size |= {"initializer_range": 0.7}
    size |= {"vocab_size": len(tokenizer), "max_position_embeddings": 130}
    torch.manual_seed(0)
    model = recipe.task.head()(of(**(size | ids | config | changes)))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def longer(document):
    """The document, and with its text three and eleven times, which is several chunks."""
    (field,) = {"text", "tokens", "context", "supports", "documents"} & document.keys()
    for times in (1, 3, 11):
        value = document[field]
        value = value * times if isinstance(value, list) else " ".join([value] * times)
        yield document | {field: value}


def example(folder):
    """The lines of Python in a README."""
    (code,) = re.findall(r"^```python\n(.*?)^```", (folder / "README.md").read_text(), re.M | re.S)
    return code


def answered(folder, document, without=("torch", "transformers", "ldt")):
    """What the README's lines print for a document, where some packages cannot be imported."""
    code = example(folder)
    for field, value in document.items():
        line = f"{field} = {value!r}"
        code, count = re.subn(rf"(?m)^{field} = .*$", lambda _, line=line: line, code)
        assert count == 1, field
    alone = f"import sys\nsys.modules |= dict.fromkeys({without!r})\n"
    run = [sys.executable, "-c", alone + code]
    done = subprocess.run(run, cwd=folder, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)
