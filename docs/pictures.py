"""Draw the pictures of the docs: ``python docs/pictures.py`` writes docs/pictures/*.svg.

The figures come from benchmarks/results and from the table of the demo in README.md.
"""

import json
import re
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("svg")
# The same input gives the same file; text stays text.
matplotlib.rcParams |= {"svg.hashsalt": "ldt", "svg.fonttype": "none", "font.size": 10}

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.colors import ListedColormap  # noqa: E402

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
COLORS = {"ldt": "#3949ab", "longformer": "#8d6e63", "roberta": "#e07b39", "modernbert": "#43a047"}
NAMES = {"ldt": "ldt", "longformer": "Longformer", "roberta": "RoBERTa", "modernbert": "ModernBERT"}


def save(figure, name):
    """Write a figure without the date, so that a new drawing of the same data is the same file."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight", facecolor="white")
    plt.close(figure)
    text = path.read_text("utf-8")
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", "utf-8")


def cells(is_global, window):
    """2 where the token of a row or column is global, 1 where a window reaches, else 0."""
    place, marked = np.arange(len(is_global)), np.array(is_global)
    near = abs(place[:, None] - place) <= window // 2
    return np.where(marked[:, None] | marked, 2, near.astype(int))


def grid(axes, seen):
    """Which token sees which, as `cells` says, in squares."""
    axes.imshow(seen, cmap=ListedColormap(["#f2f2f2", "#9fa8da", "#3949ab"]), vmax=2)
    place = np.arange(len(seen))
    axes.set_xticks(place - 0.5, minor=True)
    axes.set_yticks(place - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="both", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def pattern(length=24, radius=3, first=2):
    """Which token sees which: a window, and `first` global tokens."""
    figure, axes = plt.subplots(figsize=(7.2, 2.9))
    grid(axes, cells([number < first for number in range(length)], 2 * radius))
    axes.tick_params(which="both", labelbottom=False, labelleft=False)
    axes.set_xlabel("token that is seen")
    axes.set_ylabel("token that sees")
    notes = (
        ("#3949ab", 4, "global tokens: see all tokens,\nand all tokens see them"),
        ("#9fa8da", 11, "window: each token sees\nits neighbours on both sides"),
        ("#dddddd", 18, "not computed: cost grows with the\nlength, not with its square"),
    )
    for color, row, text in notes:
        axes.text(length + 1, row, "■", color=color, va="center", fontsize=16)
        axes.text(length + 3.5, row, text, va="center")
    save(figure, "pattern")


def question(radius=3):
    """The same with the tokens of a question global, beside words."""
    asked = "[cls] who pays ? [sep]".split()
    text = "the supplier and the customer agree that the fees are borne by the latter [sep]".split()
    words = [*asked, *text]
    is_global = [number < len(asked) - 1 for number in range(len(words))]
    figure, axes = plt.subplots(figsize=(7.2, 4.2))
    grid(axes, cells(is_global, 2 * radius))
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(words)), words, rotation=90)
    axes.set_yticks(range(len(words)), words)
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        for label, marked in zip(labels, is_global, strict=True):
            label.set_color("#3949ab" if marked else "#444444")
            label.set_fontweight("bold" if marked else "normal")
    notes = (
        (
            "#3949ab",
            3,
            "[cls] and the question: each word of\nthe text sees what is asked, and the\n"
            "question sees every word",
        ),
        ("#9fa8da", 9, "window: each word sees\nits neighbours on both sides"),
        ("#dddddd", 14, "not computed: these words meet\nthrough the question alone"),
    )
    for color, row, note in notes:
        axes.text(len(words) + 1, row, "■", color=color, va="center", fontsize=16)
        axes.text(len(words) + 2.6, row, note, va="center")
    save(figure, "question")


def length():
    """Time of a layer and peak memory in a forward pass, from results/cpu-encoder.json."""
    data = json.loads((ROOT / "benchmarks/results/cpu-encoder.json").read_text("utf-8"))
    cases = [
        case
        for case in data["cases"].values()
        if case["pass"] == "forward" and case["dtype"] == "fp32" and isinstance(case["tokens"], int)
    ]
    cases.sort(key=lambda case: case["tokens"])
    for case in cases:  # the longer ones were measured with fewer layers
        case["seconds"] = {name: s / case["layers"] for name, s in case["seconds"].items()}
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.1), layout="constrained")
    labels = ("seconds for each layer", "peak memory, MiB")
    for panel, key, label in zip(axes, ("seconds", "mib"), labels, strict=True):
        for name, color in COLORS.items():
            points = [(case["tokens"], case[key][name]) for case in cases if name in case[key]]
            panel.plot(*zip(*points, strict=True), "o-", color=color, label=NAMES[name])
        panel.set(xlabel="tokens", ylabel=label, ylim=0)
        panel.set_xticks([case["tokens"] for case in cases if case["tokens"] != 512])
        panel.tick_params(axis="x", rotation=45)
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    save(figure, "length")


def demo():
    """Accuracy of the two runs of the demo, from the table in README.md."""
    rows = re.findall(r"^│ (the .+?) +│ +([\d.]+) │", (ROOT / "README.md").read_text("utf-8"), re.M)
    names, values = [name for name, _ in rows], [float(value) for _, value in rows]
    figure, axes = plt.subplots(figsize=(6.4, 1.5))
    bars = axes.barh(names, values, color=[COLORS["roberta"], COLORS["ldt"]], height=0.6)
    axes.bar_label(bars, [f"{value:.0f}" for value in values], padding=4)
    axes.axvline(50, color="#999999", linestyle=":", linewidth=1, zorder=0)
    axes.text(51, 0.5, "chance", va="center", color="#777777", fontsize=8)
    axes.set(xlabel="accuracy on new contracts", xlim=(0, 110))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, "demo")


PICTURES = {"pattern": pattern, "question": question, "length": length, "demo": demo}

if __name__ == "__main__":
    for draw in PICTURES.values():
        draw()
