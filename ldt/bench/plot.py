"""Time and memory against length, as a picture. Needs matplotlib."""

from importlib.util import find_spec

from ldt.bench.table import KINDS, PEERS, label, machine_line, pattern_line
from ldt.errors import UserError
from ldt.files import temporary

SUFFIXES = (".png", ".svg", ".pdf")
# Colours that people tell apart who see no red or no green (Okabe and Ito).
COLOURS = {
    "ldt": "#0072B2",
    "poolingformer": "#CC79A7",
    "triton": "#0072B2",
    "blocked": "#56B4E9",
    "loop": "#CC79A7",
    "reference": "#999999",
    "longformer": "#D55E00",
    "sdpa": "#000000",
    "cudnn": "#555555",
    "roberta": "#000000",
    "flex": "#009E73",
    "flex-flash": "#009E73",
    "varlen": "#555555",
    "modernbert": "#E69F00",
}
GAP = 0.062  # of the height of a panel between two labels
STYLE = {
    "font.size": 11,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "ldt",  # the same bytes each time
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def check(path):
    """Refuse a picture that could not be drawn, before anything is measured.

    Raises:
        UserError: the ending is no kind of picture known here, or matplotlib is missing.
    """
    if path.suffix not in SUFFIXES:
        raise UserError(f"--plot {path}: the ending must be one of {', '.join(SUFFIXES)}")
    if find_spec("matplotlib") is None:
        raise UserError("--plot needs matplotlib; pip install matplotlib adds it")


def write(path, rows, about, setting):
    """Draw a row of panels for each pass: time and, where it was measured, memory.

    Args:
        path: the file; its ending decides the kind.
        rows: of `ldt.bench.run.Row`.
        about, setting: machine and `Setting`, for the title.
    """
    import matplotlib
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(row.kind for row in rows))
    values = {"time of a call, ms": _milliseconds}
    if any(row.mib is not None for row in rows):
        values["peak memory, MiB"] = lambda row: row.mib
    with matplotlib.rc_context(STYLE):
        size = 1 + 6.2 * len(values), 0.9 + 4.2 * len(kinds)
        figure = Figure(figsize=size, layout="constrained")
        figure.get_layout_engine().set(w_pad=0.15, h_pad=0.12, wspace=0.04, hspace=0.06)
        what = "encoder" if setting.layers else "attention"
        title = f"{machine_line(about, setting)}\n{what}: {pattern_line(setting)}"
        figure.suptitle(title, fontsize=12)
        panels = figure.subplots(len(kinds), len(values), squeeze=False)
        for line, kind in zip(panels, kinds, strict=True):
            mine = [row for row in rows if row.kind == kind]
            for axes, (name, value) in zip(line, values.items(), strict=True):
                axes.set_title(KINDS[kind], fontsize=11, loc="left", pad=14)
                axes.set_ylabel(name)
                _draw(axes, mine, value)
        for axes in panels[-1]:
            axes.set_xlabel("length, tokens")
        beside = temporary(path)
        try:
            # Without a date two pictures of the same figures are the same file.
            dated = {".svg": "Date", ".pdf": "CreationDate"}.get(path.suffix)
            metadata = {dated: None} if dated else None
            figure.savefig(beside, format=path.suffix[1:], dpi=150, metadata=metadata)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def _milliseconds(row):
    return None if row.seconds is None else 1000 * row.seconds


def _draw(axes, rows, value):
    """A line for each implementation, labelled at its end."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
    from matplotlib.transforms import ScaledTranslation, blended_transform_factory

    axes.set(xscale="log", yscale="log")
    ends = []
    for name in dict.fromkeys(row.name for row in rows):
        points = [(row.tokens, value(row)) for row in rows if row.name == name]
        points = [(x, y) for x, y in points if y is not None and y > 0]
        if points:
            colour = COLOURS.get(name, "#777777")
            width = 1.4 if name in PEERS else 2.4
            x, y = zip(*points, strict=True)
            axes.plot(x, y, color=colour, linewidth=width, marker="o", markersize=4)
            ends.append((*points[-1], label(name), colour))
    lengths = sorted({row.tokens for row in rows})
    axes.set_xticks(lengths, [f"{tokens:,}" for tokens in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    digits = (1, 2, 5) if high < 1000 * low else (1,)
    axes.yaxis.set_major_locator(LogLocator(subs=digits, numticks=20))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.6g}"))
    axes.grid(which="major", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    for (x, _, text, colour), height in zip(ends, _heights(axes, ends), strict=True):
        right, up = (8, 0) if x == lengths[-1] else (0, 7)  # points: beside the end, or above it
        move = ScaledTranslation(right / 72, up / 72, axes.figure.dpi_scale_trans)
        axes.text(
            x,
            height,
            text,
            transform=blended_transform_factory(axes.transData, axes.transAxes) + move,
            color=colour,
            ha="left" if right or x == lengths[0] else "center",
            va="center" if right else "bottom",
            fontsize=10,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
        )


def _heights(axes, ends):
    """Height of the label of each line's end, in parts of the panel's, none over another."""
    axes.get_ylim()  # settles the limits
    to_panel = axes.transScale + axes.transLimits
    wanted = [to_panel.transform(end[:2])[1] for end in ends]
    found = [0.0] * len(ends)
    for x in {end[0] for end in ends}:
        free = -1.0
        for i in sorted((i for i in range(len(ends)) if ends[i][0] == x), key=wanted.__getitem__):
            found[i] = max(wanted[i], free)
            free = found[i] + GAP
    return found
