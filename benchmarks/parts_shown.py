"""Tables and the picture of benchmarks/parts.py."""

from itertools import product

from rich.table import Table
from setting import PASSES

DTYPES = ("fp32", "bf16")
MAPS = (
    "query",
    "key",
    "value",
    "attention output",
    "feed-forward in",
    "feed-forward out",
)
OTHERS = ("band", "global rows", "GELU", "norms", "computed again")
BAND = ("products", "softmax", "copies and masks")
STYLE = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}  # of pictures
MANY = (8, 16, 64)  # threads that Amdahl's law is asked about
COLOURS = {
    "linear maps": "#0072B2",
    "band: products": "#D55E00",
    "band: softmax": "#E69F00",
    "band: copies and masks": "#F0E442",
    "global rows": "#CC79A7",
    "GELU": "#009E73",
    "norms": "#56B4E9",
    "computed again": "#999999",
}


def show(found, console):
    """Print tables of the cases, profiles and threads found."""
    for kind, dtype in product(PASSES, DTYPES):
        rows = [r for r in found["cases"].values() if (r["pass"], r["dtype"]) == (kind, dtype)]
        rows.sort(key=lambda row: row["tokens"])
        if rows:
            console.print(table_of(f"{kind}, {dtype}: ms of one layer (% of it)", rows))
    for name, operators in found["profile"].items():
        console.print(profile_table(name, operators))
    for name, rows in found["threads"].items():
        console.print(threads_table(name, rows))


def table_of(title, rows):
    table = Table(title=title)
    table.add_column("tokens")
    for row in rows:
        table.add_column(f"{row['tokens']:,}", justify="right")

    def add(name, value):
        table.add_row(name, *map(value, rows))

    def part(name):
        return lambda row: f"{row['ms'][name]:.1f} ({row['ms'][name] / row['ms']['layer']:.0%})"

    def inner(name):
        return lambda row: f"{row['ms']['band'] * row['band'][name]:.1f} ({row['band'][name]:.0%})"

    def rate(name):
        return lambda row: f"{row['ms'][name]:.1f}, {row['gflops'][name]:.0f} GFLOP/s"

    add("layer", lambda row: f"{row['ms']['layer']:.1f}")
    add("linear maps", part("maps"))
    for name in MAPS:
        add(f"  {name}", rate(name))
    for name in OTHERS:
        if name in rows[0]["ms"]:
            add(name, part(name))
        for within in BAND if name == "band" else ():
            add(f"  {within}, of it", inner(within))
    add("rest; below 0: parts run together", part("rest"))
    add("limit: maps, the fastest exact way", lambda row: f"{row['limit_ms']:.1f}")
    add("layer / limit", lambda row: f"{row['layer_to_limit']:.2f}")
    add("model with embeddings / limit", lambda row: f"{row['model_to_limit']:.2f}")
    add("embeddings, once a pass", lambda row: f"{row['ms']['embeddings']:.1f}")
    return table


def profile_table(name, found):
    calls, regions = found["working"].values()
    caption = f"{calls:.0f} calls a layer compute or copy, {regions:.0f} in the thread that calls"
    table = Table(title=f"{name}: operators", caption=caption)
    for title in ("operator", "% of time", "calls a layer"):
        table.add_column(title, justify="left" if title == "operator" else "right")
    for operator, row in list(found["operators"].items())[:20]:
        table.add_row(operator, f"{row['share']:.1%}", f"{row['calls_a_layer']:.1f}")
    return table


def threads_table(name, found):
    count = found["threads"]
    table = Table(
        title=f"{name}: 1 and {count} threads; serial: in one thread, by wall time (by CPU time)",
        caption="Amdahl's law alone: nothing of memory that threads share",
    )
    titles = ("part", "ms, 1", f"ms, {count}", "times", "CPU ms", "serial ms", "serial %")
    titles += (*(f"ms, {n}" for n in MANY), f"serial at {MANY[-1]}")
    for title in titles:
        table.add_column(title, justify="left" if title == "part" else "right")

    def both(row, value):
        return f"{value(row['by_wall'])} ({value(row['by_cpu'])})"

    for part, row in found["rows"].items():
        cells = [f"{1000 * row['one']:.1f}", f"{1000 * row['all']:.1f}"]
        cells += [f"{row['one'] / row['all']:.2f}", f"{1000 * row['cpu']:.1f}"]
        cells.append(both(row, lambda by: f"{1000 * by['serial']:.1f}"))
        cells.append(both(row, lambda by: f"{by['share']:.1%}"))
        cells += [both(row, lambda by, n=n: f"{1000 * by['seconds'][str(n)]:.1f}") for n in MANY]
        cells.append(both(row, lambda by: f"{by['serial_share'][str(MANY[-1])]:.0%}"))
        table.add_row(part, *cells)
    return table


def draw(result, path):
    """Time a token of one layer by part, against length: a panel for each pass and dtype."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = result["cases"].values()
    panels = [
        (kind, dtype)
        for kind, dtype in product(PASSES, DTYPES)
        if any((row["pass"], row["dtype"]) == (kind, dtype) for row in rows)
    ]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1 + 3.6 * len(panels), 5), layout="constrained")
        about = result["machine"]
        figure.suptitle(f"one layer by part, {about['cpu']}, {about['threads']} threads")
        for axes, panel in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            mine = [row for row in rows if (row["pass"], row["dtype"]) == panel]
            _bars(axes, sorted(mine, key=lambda row: row["tokens"]))
            axes.set_title(", ".join(panel), fontsize=11, loc="left")
            axes.set_xlabel("length, tokens")
        figure.axes[0].set_ylabel("time of a layer, µs a token")
        # The last panel has all parts that there are.
        handles = figure.axes[-1].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=5, frameon=False, fontsize=10)
        figure.savefig(path, dpi=150)


def _bars(axes, rows):
    places, below = range(len(rows)), [0.0] * len(rows)

    def a_token(milliseconds):
        return [1000 * ms / row["tokens"] for ms, row in zip(milliseconds, rows, strict=True)]

    for name, colour in COLOURS.items():
        if not all(_part(row, name) for row in rows):
            continue
        heights = a_token([_part(row, name) for row in rows])
        axes.bar(places, heights, bottom=below, color=colour, label=name, width=0.75)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    layers = a_token([row["ms"]["layer"] for row in rows])
    axes.plot(places, layers, "D", color="black", markersize=5, label="the layer")
    limits = a_token([row["limit_ms"] for row in rows])
    for place, limit in zip(places, limits, strict=True):
        label = "limit" if not place else None
        axes.plot([place - 0.45, place + 0.45], [limit, limit], "k--", linewidth=1.5, label=label)
    axes.set_xticks(places, [f"{row['tokens']:,}" for row in rows], fontsize=9)
    axes.set_ylim(bottom=0)


def _part(row, name):
    """Milliseconds of a part as `COLOURS` names it, None where the pass has no such part."""
    ms = row["ms"]
    if name.startswith("band: "):
        return ms["band"] * row["band"][name.removeprefix("band: ")]
    return ms["maps"] if name == "linear maps" else ms.get(name)
