"""Files beside an exported model: tokenizer, config, recipe, and instructions for use
without ldt."""

import json
import math
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ldt import __version__
from ldt.data.tokenization import pair_separators, special_id
from ldt.export.graph import GraphInterface
from ldt.inference.agreement import TOLERANCE, OutputCheck
from ldt.inference.runtimes import Exported
from ldt.metrics.calibrators import Beta, Platt, Temperature
from ldt.model.config import layer_windows
from ldt.recipe.recipe import RECIPE, Recipe, dump
from ldt.tasks.deciding import Calibrated

TEMPLATE = Path(__file__).with_name("readme.md.jinja")
GLOBALS = {  # what a graph does, in words
    "none": "none",
    "first": "the first real token of each row, found in the graph",
    "question": "all before the first separator of each row, found in the graph",
    "given": "those of the input global_attention_mask",
}


def write(
    folder: Path,
    source: Path,
    recipe: Recipe,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    interface: GraphInterface,
    format: Exported,
    checks: Sequence[OutputCheck],
) -> None:
    """Write the files beside a graph: config, tokenizer, recipe, and a README of how to use it.

    Args:
        folder: folder of the graph.
        source: folder of the run, whose recipe is copied.
        recipe: recipe of the run.
        config, tokenizer: config and tokenizer of the model.
        interface: inputs and outputs of the graph.
        format: format of the graph.
        checks: results of the proof, of which the README names the worst.

    Raises:
        OSError: the disk is full or failed.
    """
    config.save_pretrained(folder)
    file = folder / "config.json"
    values = json.loads(file.read_text("utf-8"))
    # Other programs look for them; two labels without names are left out of it.
    values |= {"id2label": config.id2label, "num_labels": len(config.id2label)}  # type: ignore[arg-type]
    file.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8")
    longest = recipe.data.max_length or tokenizer.model_max_length
    tokenizer.save_pretrained(folder)
    between = pair_separators(tokenizer) if recipe.task.answers.kind == "ranking" else 1
    complete_tokenizer(folder / "tokenizer.json", tokenizer, longest, between)
    if recipe.path is None:  # of a folder of sentence-transformers
        (folder / RECIPE).write_text(dump(recipe), "utf-8")
    else:
        shutil.copyfile(recipe.path, folder / RECIPE)
    text = _readme(source, recipe, config, tokenizer, interface, format, checks, longest)
    (folder / "README.md").write_text(text, "utf-8")


def append(folder: Path, line: str) -> None:
    """Add a paragraph to the README in a folder, before its first second-level heading."""
    file = folder / "README.md"
    before, mark, after = file.read_text("utf-8").partition("\n## ")
    file.write_text(f"{before.rstrip()}\n\n{line}\n{mark}{after}", "utf-8")


def complete_tokenizer(
    file: Path, tokenizer: PreTrainedTokenizerBase, longest: int, between: int = 1
) -> None:
    """Make a file tokenizer.json itself add special tokens, truncate and pad as ldt does.

    Args:
        file: file of the tokenizer, which is changed.
        tokenizer: tokenizer that it was saved from.
        longest: longest input in tokens.
        between: number of separators between two texts.
    """
    copy = Tokenizer.from_file(str(file))
    ids = {role: special_id(tokenizer, role) for role in ("cls", "sep")}
    first, last = (tokenizer.convert_ids_to_tokens(id) for id in ids.values())
    pairs = tokenizer("a", "b", return_token_type_ids=True)["token_type_ids"]
    kind = max(pairs)
    copy.post_processor = TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {' '.join([last] * between)} $B:{kind} {last}:{kind}",  # type: ignore[list-item]
        special_tokens=list(zip((first, last), ids.values(), strict=True)),
    )
    copy.enable_truncation(longest)
    copy.enable_padding(pad_id=tokenizer.pad_token_id, pad_token=tokenizer.pad_token)
    copy.save(str(file))


def _readme(
    source: Path,
    recipe: Recipe,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    interface: GraphInterface,
    format: Exported,
    checks: Sequence[OutputCheck],
    longest: int,
) -> str:
    task = recipe.task
    policy = task.policy(config) if isinstance(task, Calibrated) else None
    calibrator = policy and policy.calibrator
    thresholds = [] if policy is None or policy.thresholds is None else policy.thresholds.tolist()
    template = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATE.parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    ).get_template(TEMPLATE.name)
    return template.render(
        run=source.resolve().name,
        task=task,
        config=config,
        windows=_windows(config, longest),
        longest=longest,
        interface=interface,
        format=format,
        globals=GLOBALS[interface.globals_],
        worst=max(checks, key=lambda check: check.relative),
        tolerance=TOLERANCE,
        policy=policy,
        # What makes probabilities of logits, where it is one factor and one summand a label.
        temperature=calibrator.temperature if isinstance(calibrator, Temperature) else None,
        platt=calibrator.weights if isinstance(calibrator, Platt) else None,
        beta=isinstance(calibrator, Beta),
        thresholds=thresholds,
        # Of answers with one class, the number of the class that has a threshold, and this.
        first=next(((n, t) for n, t in enumerate(thresholds) if not math.isnan(t)), None),
        ids={role: special_id(tokenizer, role) for role in ("cls", "sep")},
        ldt=__version__,
        versions={name: version(name) for name in ("torch", *format.writes, format.package)},
    )


def _windows(config: Any, longest: int) -> str:
    windows = sorted(set(layer_windows(config)))
    sizes = ", ".join(str(window) for window in windows if window < 2 * longest)
    sizes = f"windows of {sizes} tokens" if sizes else ""
    full = "full layers, whose memory grows with the square of the length"
    return " and ".join(filter(None, (sizes, windows[-1] >= 2 * longest and full)))
