import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from training_runs import documents, train

from ldt.training.model_card import (
    GLOBAL,
    NOTHING,
    POOLED,
    SIDE,
    WINDOW,
    cells,
    draw_pattern,
    picture,
)


def by_hand(is_global, window, pooled, count):
    """The highest of all pairs of tokens of two cells."""
    size = len(is_global)
    place = np.arange(size)
    apart = abs(place[:, None] - place)
    seen = np.where(apart <= window // 2, WINDOW, np.where(apart <= pooled // 2, POOLED, NOTHING))
    # A window that is in reach tells more than a pooled one; a global token more than both.
    rank = np.array([0, 2, 1, 3])
    flags = np.array(is_global)
    seen = np.where(flags[:, None] | flags, GLOBAL, seen)
    edges = [number * size // count for number in range(count + 1)]
    made = []
    for a, b in zip(edges, edges[1:], strict=False):
        row = []
        for c, d in zip(edges, edges[1:], strict=False):
            block = seen[a:b, c:d].ravel()
            row.append(int(block[rank[block].argmax()]))
        made.append(row)
    return made


@pytest.mark.parametrize("size", [1, 5, 16, 17, 100])
@pytest.mark.parametrize(("window", "pooled"), [(0, 0), (2, 0), (8, 0), (8, 40), (400, 0)])
def test_a_cell_has_what_any_pair_of_its_tokens_has(size, window, pooled):
    is_global = [number in (0, 41) for number in range(size)]
    assert cells(is_global, window, pooled, most=16) == by_hand(
        is_global, window, pooled, min(size, 16)
    )


def test_the_picture_has_a_box_for_each_stretch_of_a_row():
    root = ElementTree.fromstring(picture([[3, 3, 3], [3, 1, 1], [3, 1, 0]], "says so"))
    boxes = [
        tuple(int(box.get(key, 0)) // SIDE for key in ("x", "y", "width"))
        for box in root.iter("{http://www.w3.org/2000/svg}rect")
    ]
    assert boxes == [(0, 0, 3), (0, 0, 3), (0, 1, 1), (1, 1, 2), (0, 2, 1), (1, 2, 1)]
    assert root.find("{http://www.w3.org/2000/svg}title").text == "says so"


def test_a_model_without_windows_has_no_picture():
    feature = {"global_attention_mask": np.array([1, 0, 0])}
    assert draw_pattern(feature, SimpleNamespace()) is None
    config = SimpleNamespace(attention_window=[2, 4], pooling_layers=[0], pooling_window=6)
    svg, facts = draw_pattern(feature, config)
    assert svg.count("<rect") == 1 + 1 + 2 + 2
    assert facts == {"tokens": 3, "window": 4, "global": 1, "pooling_window": 6}


def test_a_run_has_the_picture_of_its_first_input_and_its_metric_by_length(recipe):
    documents("dev.jsonl", 7, 1)
    text = [json.loads(line) for line in Path("dev.jsonl").read_text().splitlines()]
    for number, row in enumerate(text):
        row["text"] = " ".join([row["text"]] * (100 if number % 2 else 1))
    Path("dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in text))
    metrics = train(recipe("training.max_steps=2"))
    results = json.loads(Path("runs/r/metrics.json").read_text())
    card = Path("runs/r/README.md").read_text()
    assert results["pattern"]["window"] == 8
    assert results["pattern"]["global"] == 1
    assert f"{results['pattern']['tokens']} tokens sees a window of 8" in card
    ElementTree.parse("runs/r/pattern.svg")
    assert re.search(r"\]\(pattern\.svg\)", card)
    rows = results["by_length"]
    assert len(rows) > 1
    assert sum(row["documents"] for row in rows) == 7
    right = sum(row["documents"] * row["metrics"]["accuracy"] for row in rows) / 7
    assert right == pytest.approx(metrics["eval_accuracy"])
    train(recipe("training.max_steps=1"), overwrite=True)
    assert json.loads(Path("runs/r/run.json").read_text())["files"].count("pattern.svg") == 1
