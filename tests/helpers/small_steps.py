"""Small models and inputs of every task, trained for an epoch; the gradient of each step."""

import random

import numpy as np
import torch
from leds import led_config
from longformers import SEP, ldt_model
from transformers import TrainerCallback, TrainingArguments

from ldt.data.features import Collator
from ldt.model import (
    LdtCausalConfig,
    LdtForCausalLM,
    LdtForConditionalGeneration,
    LdtForEvidenceGeneration,
    LdtSeq2SeqConfig,
)
from ldt.recipe.run import Run
from ldt.training.progress import ProgressReport
from ldt.training.trainer import Trainer

INPUTS = 13  # a step of 8 and one of 5


def feature(rng, number, **more):
    """8 to 20 tokens, the fifth a separator, the first two global."""
    ids = [rng.randrange(3, 40) for _ in range(rng.randrange(8, 21))]
    ids[4] = SEP
    is_global = [1, 1] + [0] * (len(ids) - 2)
    made = {"input_ids": ids, "global_attention_mask": is_global, "document": number}
    return made | {
        key: value(len(ids)) if callable(value) else value for key, value in more.items()
    }


def some_of(rng, values):
    """As many of the values as it happens, at times none."""
    return [value for value in values if rng.random() < 0.4]


def of_tokens(rng, high):
    return lambda size: [rng.randrange(high) if rng.random() < 0.3 else -100 for _ in range(size)]


def spans(rng, number):
    sides = {f"{side}_positions": some_of(rng, range(8)) for side in ("start", "end")}
    return feature(rng, number, **sides)


def several_spans(rng, number):
    return [spans(rng, number) for _ in range(3 - number % 3)]


def evidence(rng, number):
    count = rng.randrange(1, 4)
    return spans(rng, number) | {
        "passage_positions": [2, 3, 5][:count],
        "sentence_positions": [6, 7],
        "passage_labels": [rng.choice([0, 1, -100]) for _ in range(count)],
        "sentence_labels": [rng.choice([0, 1, -100]) for _ in range(2)],
        "labels": rng.choice([0, 1, 2, -100]),
    }


def passages(rng, number):
    count = rng.randrange(1, 4)
    return feature(rng, number) | {
        "passage_positions": [2, 3, 5][:count],
        "passage_labels": [rng.choice([0, 1, -100]) for _ in range(count)],
        "labels": rng.choice([0, 1, 2, -100]),
    }


def written(rng, number):
    return [rng.randrange(3, 40) for _ in range(number % 5 + 3)]


def candidates(rng, number):
    more = {"positions": [1, 2, 3], "labels": rng.choice([0, 1, 2, -100])}
    return [feature(rng, number, **more) for _ in range(3 - number % 3)]


def choices(rng, number):
    chunks, label = 2 - number % 2, rng.choice([0, 1, 1, -100])
    return [
        feature(rng, number, labels=label, choices=choice)
        for choice in (0, 1, 2)
        for _ in range(chunks)
    ]


def documents(rng, number):
    """Three documents of a query, of one chunk or two."""
    chunks, relevant = 2 - number % 2, rng.choice([None, 0, 1])
    return [
        feature(rng, number, labels=float(place == relevant), documents=place)
        for place in (0, 1, 2)
        for _ in range(chunks)
    ]


def ranked_by(loss):
    """A reranker's head, the changes of its config for a loss, and what makes an item."""
    facts = {"loss": loss, "teacher": False, "best_chunks": 1}
    return "ForSequenceClassification", {"num_labels": 1, "ranking": facts}, documents


def group(rng, number):
    """A query, a document that is right for it in two chunks, and others; queries share one."""
    made = []
    for place, label in enumerate([0, 1, 1, 2, 2][: 3 + number % 3]):
        text, words = 10 * number + [0, 1, 1, 2, 0][place], rng
        if place == 4:
            text, words = 7, random.Random(7)
        more = {"labels": label, "texts": text, "scores": text % 10 / 2}
        made.append(feature(words, number, **more))
    return made


def clusters(rng, number):
    """A document of one chunk or of two, with a word a token and two clusters."""
    made, before = [], 0
    for _ in range(2 - number % 2):
        row = feature(rng, number)
        size = len(row["input_ids"])
        places = np.arange(before, before + size)
        word = places % 5
        tokens = np.arange(size)
        row["words"] = np.stack([places, tokens, tokens, places // 7, word * 0 - 1, word], 1)
        firsts = before + np.array([1, 3, 4, 6])
        row["labels"] = np.stack([firsts, firsts + 1, firsts % 2], 1)
        made.append(row)
        before += size
    return made


TASKS = {  # task and variation: head, its changes of the config, and what makes an item
    "classification": (
        "ForSequenceClassification",
        {},
        lambda rng, n: feature(rng, n, labels=rng.choice([0, 1, 2, -100])),
    ),
    "classification, pooled": (
        "ForSequenceClassification",
        {"classifier_pooling": "mean"},
        lambda rng, n: feature(rng, n, labels=rng.choice([0, 1, 2, -100])),
    ),
    "classification, several labels": (
        "ForSequenceClassification",
        {},
        lambda rng, n: feature(rng, n, labels=[rng.choice([0.0, 1.0]) for _ in range(3)]),
    ),
    "classification, weighted": (
        "ForSequenceClassification",
        {"class_weights": [0.1, 2.0, 0.3], "focal_gamma": 1.5},
        lambda rng, n: feature(rng, n, labels=rng.choice([0, 1, 2, -100])),
    ),
    "classification, several labels, weighted": (
        "ForSequenceClassification",
        {"class_weights": [0.1, 2.0, 9.0], "focal_gamma": 0.5},
        lambda rng, n: feature(rng, n, labels=[rng.choice([0.0, 1.0]) for _ in range(3)]),
    ),
    "token_classification, weighted": (
        "ForTokenClassification",
        {"class_weights": [0.05, 2.0, 0.3]},
        lambda rng, n: feature(rng, n, labels=of_tokens(rng, 3)),
    ),
    "classification, regression": (
        "ForSequenceClassification",
        {"num_labels": 1},
        lambda rng, n: feature(rng, n, labels=rng.random()),
    ),
    "token_classification": (
        "ForTokenClassification",
        {},
        lambda rng, n: feature(rng, n, labels=of_tokens(rng, 3)),
    ),
    "squad": ("ForQuestionAnswering", {}, spans),
    "triviaqa": ("ForQuestionAnswering", {}, several_spans),
    "hotpotqa": ("ForEvidenceAnswering", {"evidence_weights": {"passages": 2.0}}, evidence),
    "evidence_classification": (
        "ForEvidenceClassification",
        {"evidence_weights": {"class": 0.1}},
        passages,
    ),
    "passage_qa": (
        "ForPassageAnswering",
        {"passage_loss": "one"},
        lambda rng, n: spans(rng, n) | passages(rng, n),
    ),
    "summarization": (
        None,
        {},
        lambda rng, n: feature(rng, n, labels=written(rng, n)),
    ),
    "qasper_generation": (
        None,
        {"evidence_weights": {"passages": 0.3}},
        lambda rng, n: passages(rng, n) | {"labels": written(rng, n)},
    ),
    "qasper": ("ForPassageAnswering", {}, lambda rng, n: spans(rng, n) | passages(rng, n)),
    "wikihop": ("ForCandidateRanking", {}, candidates),
    "wikihop, sums": ("ForCandidateRanking", {"window_merge": "sum"}, candidates),
    "multiple_choice": ("ForMultipleChoice", {}, choices),
    "reranking": ranked_by("listwise"),
    "reranking, pointwise": ranked_by("pointwise"),
    # Of losses of a whole batch the one that compares no two inputs.
    "embedding": ("ForEmbedding", {"embedding": {"loss": "kl"}}, group),
    "coreference": (
        "ForCoreference",
        {
            "coref_head": {
                "ffnn_size": 8,
                "max_span_length": 4,
                "singletons": True,
                "dropout_prob": 0,
            }
        },
        clusters,
    ),
    "mlm": ("ForMaskedLM", {}, lambda rng, n: feature(rng, n, labels=of_tokens(rng, 40))),
    "charlm": (None, {}, lambda rng, n: feature(rng, n, labels=of_tokens(rng, 40))),
}
# Losses that compare the inputs of a batch: what lies in one is no matter of memory.
COMPARED = {
    "embedding, contrastive": ("ForEmbedding", {}, group),
    "embedding, graded": (
        "ForEmbedding",
        {"embedding": {"loss": "graded", "dimensions": [8]}},
        lambda rng, n: [row | {"scores": n % 3 / 2} for row in group(rng, n)[:3]],
    ),
    "embedding, tokens": ("ForEmbedding", {"embedding": {"vectors": "tokens", "size": 8}}, group),
}
WRITERS = {
    "summarization": LdtForConditionalGeneration,
    "qasper_generation": LdtForEvidenceGeneration,
}
OF_ROWS = (
    "triviaqa",
    "wikihop",
    "multiple_choice",
    "reranking",
    "coreference",
)  # whose items are several rows


class Gradients(TrainerCallback):
    """Keeps those of each step."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        gradients = ((weight, weight.grad) for weight in model.parameters())
        self.steps.append(
            [
                torch.zeros_like(x) if gradient is None else gradient.clone()
                for x, gradient in gradients
            ]
        )


class Answers:
    """The metrics of an evaluation: none; it keeps what they would be made of."""

    def __call__(self, prediction):
        self.prediction = prediction
        return {}


def made_of(task, dtype=torch.float64):
    """Model and items of a task."""
    head, changes, item = (TASKS | COMPARED)[task]
    torch.manual_seed(0)
    rng = random.Random(0)
    items = [item(rng, number) for number in range(INPUTS)]
    if head:
        return ldt_model(head, **changes).to(dtype), items
    if task in WRITERS:
        config = LdtSeq2SeqConfig.from_dict(led_config(**changes).to_dict())
        return WRITERS[task](config).eval().to(dtype), items
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LdtCausalConfig(
        vocab_size=40,
        intermediate_size=24,
        attention_window=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **sizes,
    )
    for made in items:
        del made["global_attention_mask"]
    return LdtForCausalLM(config).to(dtype), items


def trainer(folder, task, size, batches, dtype=torch.float64, callbacks=(), **changes):
    """Of an epoch of a task; the weights stay as they are unless changed otherwise."""
    model, items = made_of(task, dtype)
    arguments = {
        "output_dir": str(folder),
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": batches,
        "num_train_epochs": 1,
        "learning_rate": 0.0,
        "max_grad_norm": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "logging_nan_inf_filter": False,
        "average_tokens_across_devices": True,
        "ddp_find_unused_parameters": False,
        "restore_callback_states_from_checkpoint": True,
    }
    positions = ["start_positions", "end_positions"]
    names = positions if task in ("squad", "triviaqa") else ["labels"]
    return Trainer(
        model=model,
        args=TrainingArguments(**arguments | {"label_names": names} | changes),
        train_dataset=items,
        eval_dataset=items,
        data_collator=Collator(1, type(model)),
        compute_metrics=Answers(),
        callbacks=list(callbacks),
        tokenizer=None,
        ids=list(range(INPUTS)),
        progress=ProgressReport(Run(folder)),
    )


def gradients(folder, task, size, batches, dtype=torch.float64, resume=None, **changes):
    """Those of each step of an epoch, and the losses that the steps logged."""
    seen = Gradients()
    made = trainer(folder, task, size, batches, dtype, [seen], **changes)
    made.run(resume)
    return seen.steps, [row["loss"] for row in made.state.log_history if "loss" in row]


def assert_same(found, wanted, bound=1e-9):
    for step, other in zip(found, wanted, strict=True):
        largest = max(weight.abs().max() for weight in other)
        assert largest > 0
        for one, same in zip(step, other, strict=True):
            assert (one - same).abs().max() < bound * largest
