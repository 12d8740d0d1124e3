"""Questions with passages as lines, and outputs of a model that is sure of an answer."""

import numpy as np
from transformers import PretrainedConfig

from ldt.io.records import Example
from ldt.recipe.recipe import DataSection
from ldt.tasks import PassageQA
from ldt.tasks.passage_qa import TYPES

CONTEXT = "One is red. Two is blue. Three is far away."
CANDIDATES = [
    {"start": 0, "end": 11, "type": "paragraph"},
    {"start": 12, "end": 43, "type": "list"},
    {"start": 25, "end": 43, "type": "other"},
    {"start": 25, "end": 25},
]


def says(passage=None, *spans, yes_no=None):
    return {"passage": passage, "spans": [list(each) for each in spans], "yes_no": yes_no}


def question(*annotations, **fields):
    values = {"question": "What?", "context": CONTEXT, "candidates": CANDIDATES}
    return Example(values | {"annotations": list(annotations)} | fields, "q", "dev.jsonl:3")


CONFIG = PretrainedConfig(**PassageQA().learn([question(says())], DataSection()))


def encode(item, tokenizer, max_length=64, config=CONFIG, **data):
    section = DataSection(**data)
    return PassageQA().encode(item, tokenizer, data=section, max_length=max_length, config=config)


def outputs_of(features, passages=None, kind="span", chars=None, cls=0.0):
    """Outputs of a model that gives passages these logits, a kind of answer, and one span."""
    made = []
    for feature in features:
        sides = np.full((2, len(feature["input_ids"]) + 3), -8, np.float32)
        sides[:, 0] = cls
        offsets, first = feature["offsets"], feature["first"]
        real = offsets[:, 1] > offsets[:, 0]
        if chars:
            inside = np.flatnonzero((offsets[:, 1] > chars[0]) & (offsets[:, 0] < chars[1]) & real)
            if len(inside):
                sides[0, first + inside[0]] = sides[1, first + inside[-1]] = 3
        logits = [float((passages or {}).get(int(n), -4)) for n in feature["passages"]]
        types = np.array([4.0 * (name == kind) for name in TYPES], np.float32)
        padded = np.array([*logits, -100], np.float32)  # as batches of other inputs pad it
        made.append({"logits": types, "passage_logits": padded})
        made[-1] |= {"start_logits": sides[0], "end_logits": sides[1]}
    return made


def decode(outputs, features, item=None, config=CONFIG, **options):
    return PassageQA(**options).decode(outputs, config, item or question(), features)
