"""The model card: what a run's README.md says about its model, for the next person."""

from __future__ import annotations

import json
from typing import Any

SHOWN = (  # of the training section, in this order, where set
    "learning_rate",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "warmup_steps",
    "lr_scheduler_type",
    "weight_decay",
    "bf16",
    "fp16",
    "early_stopping_patience",
    "seed",
)
UNNAMED = "LABEL_"  # transformers' names of a head's outputs that nobody named


def card(results: dict[str, Any], config, training: dict[str, Any]) -> str:
    """A model card in Markdown.

    Args:
        results: what metrics.json holds.
        config: the model's.
        training: the training section with its defaults.
    """
    labels = [str(name) for name in (config.id2label or {}).values()]
    if all(name.startswith(UNNAMED) for name in labels):
        labels = []
    problem = (results["problem"] or "").replace("_", " ")
    front = f"---\nlibrary_name: ldt\nbase_model: {json.dumps(results['base_model'])}\n---\n"
    parts = [
        front,
        f"# {results['task'].replace('_', ' ').capitalize()} of long documents\n",
        f"A {problem or results['task']} model for documents of up to {results['max_length']:,} "
        "tokens at a time, fine-tuned by ldt from "
        f"`{_plain(results['base_model'])}` ({results['parameters']:,} parameters).\n",
    ]
    if config.pooling_layers:
        layers = ", ".join(map(str, config.pooling_layers))
        parts.append(
            f"It is a Poolingformer: layers {layers} (from 0) have a second level of attention, "
            f"to cells of {config.pooling_size} tokens pooled by {config.pooling} in a window of "
            f"{config.pooling_window:,} tokens.\n"
        )
    if labels:
        parts.append(f"Labels: {', '.join(_code(name) for name in labels)}.\n")
    parts += ["## Use\n", "```\nldt predict --input documents.jsonl --model .\n```\n"]
    parts += ["## Results\n", _results(results)]
    if results["table"]:
        parts.append(_table(list(results["table"][0]), [row.values() for row in results["table"]]))
    parts += ["## Data\n", _data(results["data"])]
    parts.append(_training(results, training))
    parts += ["## Limits\n", _limits(results)]
    return "\n".join(parts)


def pretraining_card(results: dict[str, Any], config, training: dict[str, Any]) -> str:
    """A model card in Markdown of a masked LM; arguments are those of `card`."""
    base = results["base_model"]
    origin = f"continued from `{_plain(base)}`" if base else "trained from scratch"
    front = "---\nlibrary_name: ldt\n"
    front += f"base_model: {json.dumps(base)}\n---\n" if base else "---\n"
    windows = config.attention_window
    windows = windows if isinstance(windows, list) else [windows]
    windows = ", ".join(f"{size:,}" for size in sorted(set(windows)))
    parts = [
        front,
        "# Masked language model for long documents\n",
        f"An encoder of {config.num_hidden_layers} layers of width {config.hidden_size} for inputs "
        f"of up to {results['max_length']:,} tokens, window {windows}, {origin} by ldt "
        f"({results['parameters']:,} parameters).\n",
        "## Use\n",
        "```\nldt finetune recipe.yaml model.path=.\n```\n",
        "## Results\n",
        _results(results),
        "Loss is in nats per masked token, `bits_per_token` in bits; `bits_per_byte` is that times "
        "the tokens per byte of the text, `perplexity` e to the loss.\n",
        "## Data\n",
        _corpora(results["data"]),
        _training(results, training),
        "## Limits\n",
        "- It fills in words; it answers nothing before it is fine-tuned.\n"
        "- What stands in the training text, errors and prejudice included, is in the model.\n",
    ]
    return "\n".join(parts)


def character_card(results: dict[str, Any], config, training: dict[str, Any]) -> str:
    """A model card in Markdown of a character model; arguments are those of `card`."""
    unit = results["unit"]
    rows = [
        (name, _code(item["source"]), f"{item['characters']:,}", f"{item['bytes']:,}")
        for name, item in results["data"].items()
    ]
    windows = config.attention_window
    windows = windows if isinstance(windows, list) else [windows]
    parts = [
        "---\nlibrary_name: ldt\n---\n",
        f"# Language model of {unit}s\n",
        f"A causal model of {config.vocab_size} {unit}s: {config.num_hidden_layers} layers of "
        f"width {config.hidden_size}, windows {', '.join(f'{size:,}' for size in windows)} from "
        f"the bottom to the top (half of each before a {unit}, none behind), trained by ldt on "
        f"inputs of {results['max_length']:,} {unit}s ({results['parameters']:,} parameters).\n",
        "## Use\n",
        "```\nldt predict --input prompts.jsonl --model .\n```\n",
        "## Results\n",
        _results(results),
        f"Loss is in nats per {unit}, `bits_per_character` in bits; `bits_per_byte` is by the "
        "bytes of the text in UTF-8.\n",
    ]
    if results["table"]:
        parts.append(_table(list(results["table"][0]), [row.values() for row in results["table"]]))
    parts += [
        "## Data\n",
        _table(["set", "source", f"{unit}s", "bytes"], rows),
        _training(results, training),
        "## Limits\n",
        "- What it writes looks like its text and says nothing about the world.\n"
        "- What stands in the training text, errors and prejudice included, is in the model.\n",
    ]
    return "\n".join(parts)


def _corpora(sets: dict[str, dict]) -> str:
    head = ["set", "source", "documents", "tokens", "bytes", "not readable"]
    keys = ("documents", "tokens", "bytes", "rejected")
    rows = [
        (name, _code(item["source"]), *(f"{item[k]:,}" if k in item else "" for k in keys))
        for name, item in sets.items()
    ]
    return _table(head, rows)


def _training(results: dict[str, Any], training: dict[str, Any]) -> str:
    shown = [(f"`{key}`", training[key]) for key in SHOWN if training.get(key) is not None]
    versions = ", ".join(f"{name} {value}" for name, value in results["versions"].items())
    return (
        "## Training\n\n" + _table(["setting", "value"], shown) + "\n"
        f"{results['steps']:,} steps, {results['tokens']:,} tokens, {results['seconds']:,.0f} s "
        f"({results['tokens_per_second']:,.0f} tokens/s). {versions}. All settings are in "
        "`recipe.yaml`, all figures in full in `metrics.json`.\n"
    )


def _results(results: dict[str, Any]) -> str:
    values = [(name.removeprefix("eval_"), value) for name, value in results["metrics"].items()]
    if "eval" not in results["data"]:
        return "There was no evaluation set.\n\n" + _table(["metric", "value"], values)
    how = f"On the evaluation set, with the weights of step {results['step_of_weights']:,}"
    how += f", chosen by {results['metric'].removeprefix('eval_')}." if results["metric"] else "."
    return f"{how}\n\n" + _table(["metric", "value"], values)


def _data(sets: dict[str, dict]) -> str:
    rows = [
        (
            name,
            _code(item["source"]),
            f"{item['documents']:,}",
            f"{item['median']:,} / {item['p95']:,} / {item['longest']:,}",
            f"{item['windowed']:,}",
            f"{item['truncated']:,}",
        )
        for name, item in sets.items()
    ]
    head = ["set", "source", "documents", "tokens: median / p95 / longest", "in windows", "cut off"]
    hashes = [
        f"- {name}: sha256 `{item['sha256']}`\n" for name, item in sets.items() if item["sha256"]
    ]
    return _table(head, rows) + "\n" + "".join(hashes)


def _limits(results: dict[str, Any]) -> str:
    train = results["data"]["train"]
    lines = [
        f"- Longer documents than {results['max_length']:,} tokens are read in windows whose "
        "answers are merged: nothing in one window sees the text of another.",
        f"- It was trained on {train['documents']:,} documents, the longest of "
        f"{train['longest']:,} tokens; what it does with longer or other text is not measured.",
    ]
    evaluated = results["data"].get("eval")
    if evaluated:
        count = evaluated["documents"]
        lines.append(
            f"- The results are of {count:,} documents that also chose the best step, so they "
            "are a little too good; a test set that was never looked at tells more."
        )
    if train["truncated"]:
        lines.append(f"- {train['truncated']:,} training documents were not read to their end.")
    return "\n".join(lines) + "\n"


def _table(head: list[str], rows) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(_cell(value) for value in row)} |\n" for row in lines)


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return _plain(text).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{_plain(text).replace('`', chr(39))}`"


def _plain(text: str) -> str:
    """On one line, without what would be HTML."""
    text = "".join(c if c.isprintable() else " " for c in text)
    return text.replace("&", "&amp;").replace("<", "&lt;")
