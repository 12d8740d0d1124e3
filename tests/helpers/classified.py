"""A tiny classifier's run folder, documents for it, and its answers."""

import json
import random
from pathlib import Path

import torch

from ldt.inference.predict import predict
from ldt.model import LdtForSequenceClassification, load, load_tokenizer

LABELS = ["yes", "no", "007"]
WORDS = "the party of this agreement ends and other first part".split()
RECIPE = """
task: {name: classification}
model: {path: somewhere}
data: {train: train.jsonl, text: body.text, id: name, max_length: 64}
"""


def make_run(tiny_longformer, folder):
    """A run folder whose classifier answers differently for different texts."""
    torch.manual_seed(0)
    names = dict(enumerate(LABELS))
    model = load(
        tiny_longformer,
        LdtForSequenceClassification,
        id2label=names,
        label2id={name: number for number, name in names.items()},
        problem_type="single_label_classification",
    )
    for weight in model.parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=0.7)
    model.save_pretrained(folder)
    load_tokenizer(tiny_longformer, model.config).save_pretrained(folder)
    (folder / "recipe.yaml").write_text(RECIPE)


def lines_of(count, seed=0, longest=150):
    """JSONL lines of documents of mixed length and words, every tenth of them empty."""
    rng = random.Random(seed)
    texts = [
        " ".join(rng.choices(rng.sample(WORDS, 2), k=rng.randint(1, longest))) for _ in range(count)
    ]
    texts[::10] = [""] * len(texts[::10])
    return [
        json.dumps({"name": f"doc-{number}", "body": {"text": text}})
        for number, text in enumerate(texts)
    ]


def write(path, lines):
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def read(path):
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


def answer(source, folder, tmp_path, **options):
    """The exit code and the answers."""
    target = tmp_path / "answers.jsonl"
    code = predict(source, model=str(folder), output=str(target), **options)
    return code, read(target)
