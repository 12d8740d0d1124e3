"""Model card: README.md of a run, for people and for the hub."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedConfig

from ldt.io.sources import is_hub_set
from ldt.metrics.decisions import in_words
from ldt.metrics.numbers import columns, is_defined, is_share, metric_text
from ldt.model.config import HEADS
from ldt.model.weights import UNNAMED
from ldt.tasks.base import AnyTask, Task, settings_of
from ldt.tasks.classification import REGRESSION
from ldt.tasks.deciding import Calibrated
from ldt.training.evaluation import no_better_than

TEMPLATE = Path(__file__).with_name("model_card.md.jinja")
SHOWN = (  # of the training section, in this order, where set
    "learning_rate num_train_epochs max_steps per_device_train_batch_size "
    "gradient_accumulation_steps warmup_steps lr_scheduler_type weight_decay bf16 fp16 "
    "early_stopping_patience seed"
).split()
# What Markdown reads as more than a character; of underscores those beside a space.
_MARKDOWN = re.compile(r"[\\`*\[\]|]|(?<![^\W_])_|_(?![^\W_])")
_ENTITIES = re.compile(r":(?=//)|(?<=www)\.|[~$]", re.IGNORECASE)  # addresses and the like
# Name of a head's class -> what the hub calls its task; "other" for the rest.
HUB_TASKS = {
    "LdtForCausalLM": "text-generation",
    "LdtForConditionalGeneration": "summarization",
    "LdtForCoreference": "token-classification",
    "LdtForEmbedding": "sentence-similarity",
    "LdtForEvidenceAnswering": "question-answering",
    "LdtForEvidenceClassification": "text-classification",
    "LdtForEvidenceGeneration": "question-answering",
    "LdtForMaskedLM": "fill-mask",
    "LdtForMultipleChoice": "multiple-choice",
    "LdtForPassageAnswering": "question-answering",
    "LdtForQuestionAnswering": "question-answering",
    "LdtForSequenceClassification": "text-classification",
    "LdtForTokenClassification": "token-classification",
}


def card(
    task: AnyTask,
    results: dict[str, Any],
    config: PreTrainedConfig,
    training: dict[str, Any],
    name: str,
) -> str:
    """Model card as text in Markdown, with metrics in its metadata as the hub displays them.

    Args:
        task: task of the model.
        results: content of metrics.json.
        config: config of the model.
        training: training section with defaults.
        name: name of the model.
    """
    labels = [str(label) for label in (getattr(config, "id2label", None) or {}).values()]
    if all(label.startswith(UNNAMED) for label in labels) or results["problem"] == REGRESSION:
        labels = []
    table = results["table"]
    # What the evaluation set decided, so that its figures are no longer those of unseen documents.
    chosen = bool(results["metric"] and training.get("load_best_model_at_end"))
    decided = ["the best step"] if chosen else []
    if isinstance(task, Task):
        metrics = {key.removeprefix("eval_"): v for key, v in results["metrics"].items()}
        decided += map(_code, settings_of(task, metrics))
    decisions = getattr(config, "decisions", {})
    page = ModelCard.from_template(
        _metadata(task, results, name),
        template_path=str(TEMPLATE),
        kind=task.reads.kind,
        results=results,
        config=config,
        problem=(results["problem"] or results["task"]).replace("_", " "),
        labels=[_code(label) for label in labels],
        windows=_windows(task, config),
        metrics=_metrics(results),
        chosen=chosen,
        decided=" and ".join(decided),
        trivial=no_better_than(task, results),
        decides=in_words(decisions),
        calibrated=task.probability
        if isinstance(task, Calibrated) and "calibration" in decisions
        else "",
        reliability=_reliability(results) if "calibration" in decisions else "",
        rows=_table(columns(table), _figures(table)) if table else "",
        by_length=_by_length(results),
        head=task.head().__name__,
        auto=_auto(task, config),
        data=_data(task.reads.kind, results),
        settings=_table(
            ["setting", "value"],
            [(_code(key), training[key]) for key in _decisive(training)],
        ),
        versions=", ".join(f"{name} {value}" for name, value in results["versions"].items()),
        number=lambda value: f"{value:,}",
        plain=_plain,
        code=_code,
    )
    return page.content.rstrip() + "\n"


def _auto(task: AnyTask, config) -> str | None:
    """Auto class of transformers that loads the model without ldt; None if there is none.

    There is none for LED, since transformers applies global attention there only if told so.
    """
    head = task.head().__name__.removeprefix("Ldt")
    stock = config.to_diff_dict()["model_type"] != config.model_type  # in config.json
    return f"AutoModel{head}" if stock and head in HEADS else None


def _decisive(training: dict[str, Any]) -> list[str]:
    """Keys of `SHOWN` that are set and effective: of epochs and steps only one."""
    idle = "num_train_epochs" if (training.get("max_steps") or 0) > 0 else "max_steps"
    return [key for key in SHOWN if training.get(key) is not None and key != idle]


def _metrics(results: dict[str, Any]) -> str:
    head, baselines = ["metric", "value"], results["baseline"]
    rows = [[name.removeprefix("eval_"), value] for name, value in results["metrics"].items()]
    if not baselines:
        rows = [[name, metric_text(name, value)] for name, value in rows]
    else:
        head.append("without reading")
        for row in rows:
            trivial = baselines.get(row[0])
            figure = metric_text(row[0], trivial["value"]) if trivial else ""
            row[1:] = [metric_text(*row), f"{figure} ({trivial['answer']})" if trivial else ""]
    return _table(head, rows)


def _figures(rows: Sequence[dict[str, Any]]) -> list[list[Any]]:
    return [
        [
            metric_text(name, value) if isinstance(value, float) and is_defined(value) else value
            for name, value in ((name, row.get(name)) for name in columns(rows))
        ]
        for row in rows
    ]


def _metadata(task: AnyTask, results: dict[str, Any], name: str) -> ModelCardData:
    evaluations = []
    if "eval" in results["data"]:
        source = results["data"]["eval"]["source"]
        hub_id = source.removeprefix("hf:").partition(":")[0] if is_hub_set(source) else None
        for key, value in results["metrics"].items():
            if key.startswith("eval_") and math.isfinite(value):
                metric = key.removeprefix("eval_")
                evaluations.append(
                    EvalResult(
                        task_type=HUB_TASKS.get(task.head().__name__, "other"),
                        dataset_type=hub_id or "custom",
                        dataset_name=source,
                        metric_type=metric,
                        metric_name=metric,
                        metric_value=float(value),
                    )
                )
    return ModelCardData(
        library_name="ldt",
        base_model=None if task.reads.kind == "characters" else results["base_model"],
        model_name=name,
        eval_results=evaluations or None,
    )


def _reliability(results: dict[str, Any]) -> str:
    rows = results["decisions"]["calibration"]["reliability"]
    cells = [(f"{row['answers']:,}", row["probability"], row["right"]) for row in rows]
    return _table(["answers", "mean probability", "share that is right"], cells)


def _by_length(results: dict[str, Any]) -> str:
    """Main metric by document length, with a bar if it is a share; empty if unknown."""
    name = (results["metric"] or "").removeprefix("eval_")
    rows = [row for row in results.get("by_length", ()) if name in row["metrics"]]
    if not rows:
        return ""
    table = []
    for row in results["by_length"]:
        value = row["metrics"].get(name)
        known = value is not None and math.isfinite(value)  # a correlation of one document is not
        bar = "█" * round(value / 5) if known and is_share(name) else ""
        text = metric_text(name, value) if known else ""
        most = row["most_tokens"]
        least = most // 2 + 1 if most > 512 else 1
        table.append((f"{least:,} to {most:,}", f"{row['documents']:,}", text, bar))
    return _table(["tokens", "documents", name, ""], table)


def _windows(task: AnyTask, config) -> str:
    windows = getattr(config, "attention_window", [])
    windows = windows if isinstance(windows, list) else [windows]
    if task.reads.kind != "characters":
        windows = sorted(set(windows))
    return ", ".join(f"{size:,}" for size in windows)


def _data(kind: str, results: dict[str, Any]) -> str:
    sets = results["data"]
    cells: list[tuple[str, ...]]
    if kind == "examples":
        head = ["documents", "tokens: median / p95 / longest", "in chunks", "cut off"]
        cells = [
            (
                f"{item['documents']:,}",
                f"{item['median']:,} / {item['p95']:,} / {item['longest']:,}",
                f"{item['windowed']:,}",
                f"{item['truncated']:,}",
            )
            for item in sets.values()
        ]
    else:
        heads = {"documents": "documents", "tokens": "tokens", "bytes": "bytes"}
        heads["rejected"] = "not readable"
        if kind == "characters":
            heads = {"characters": f"{results['unit']}s", "bytes": "bytes"}
        head = [*heads.values()]
        cells = [
            tuple(f"{item[key]:,}" if key in item else "" for key in heads)  # a stream has none
            for item in sets.values()
        ]
    rows = [
        (name, _code(item["source"]), *row)
        for (name, item), row in zip(sets.items(), cells, strict=True)
    ]
    return _table(["set", "source", *head], rows)


def _table(head: Sequence[str], rows: Iterable[Iterable]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(value) for value in row)} |" for row in lines)


class _Code(str):
    """Text in Markdown backticks."""


def _cell(value: Any) -> str:
    value = value if is_defined(value) else ""
    if isinstance(value, _Code):
        return re.sub(r"\\*\|", r"\\|", value)  # a bar behind two backslashes would end the cell
    return _plain(f"{value:.4g}" if isinstance(value, float) else str(value))


def _code(text: str) -> _Code:
    return _Code(f"`{_without_html(text).replace('`', chr(39))}`")


def _plain(text: str) -> str:
    """Text on one line with HTML, Markdown and links escaped."""
    text = _MARKDOWN.sub(r"\\\g<0>", _without_html(text))
    return _ENTITIES.sub(lambda found: f"&#{ord(found[0])};", text)


def _without_html(text: str) -> str:
    text = "".join(c if c.isprintable() else " " for c in text)
    return text.replace("&", "&amp;").replace("<", "&lt;")
