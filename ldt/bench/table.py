"""The figures of a comparison in words and tables."""

from rich.table import Table

from ldt.attention import BACKENDS

PEERS = {
    "longformer": "Longformer (HF)",
    "roberta": "RoBERTa (SDPA)",
    "modernbert": "ModernBERT (HF)",
    "sdpa": "full (SDPA)",
    "cudnn": "full (cuDNN)",
    "flex": "FlexAttention",
    "flex-flash": "FlexAttention (FLASH)",
    "varlen": "windows alone (FlashAttention)",
}
KINDS = {"forward": "forward", "training": "forward and backward"}


def label(name):
    """Name of an implementation in a table."""
    return PEERS.get(name, name if name == "ldt" else f"ldt {name}")


def machine_line(about, setting):
    """``AMD EPYC 9R14, 2 threads``, or the GPU."""
    threads = f"{about['threads']} thread{'s' * (about['threads'] != 1)}"
    return about["gpu"] if setting.device == "cuda" else f"{about['cpu']}, {threads}"


def pattern_line(setting):
    """``fp32, batch 1, 12 heads of 64, window 512, first token global``."""
    parts = [setting.dtype, f"batch {setting.batch}"]
    if setting.layers:
        parts.append(f"{setting.layers} layers")
    parts += [f"{setting.heads} heads of {setting.dim}", f"window {setting.window}"]
    if setting.dilation > 1:
        parts.append(f"dilation {setting.dilation}")
    parts.append("causal" if setting.causal else "first token global")
    return ", ".join(parts)


def heading(about, setting, chosen):
    """Lines to print before anything is measured.

    Args:
        chosen: (name, why) of the backend that ``auto`` takes.
    """
    yield f"{machine_line(about, setting)}; torch {about['torch']}"
    yield f"{'encoder' if setting.layers else 'attention'}: {pattern_line(setting)}"
    yield f"auto takes {chosen[0]}: {chosen[1]}"


def progress(rows):
    """One line on a length: ``forward, 512 tokens: ldt blocked 5.1 ms, ...``."""
    times = [f"{label(row.name)} {milliseconds(row.seconds)} ms" for row in rows if row.seconds]
    start = f"{KINDS[rows[0].kind]}, {rows[0].tokens:,} tokens"
    return f"{start}: {', '.join(times) or 'nothing could run'}"


def tables(rows, base):
    """(title, table) of times, and of memory if there is any, for each pass.

    Args:
        base: the implementation that the others are compared with.
    """
    for kind in dict.fromkeys(row.kind for row in rows):
        mine = [row for row in rows if row.kind == kind]
        times = {(row.name, row.tokens): row.seconds for row in mine}
        title = f"{KINDS[kind]}: milliseconds"
        if any(row.seconds for row in mine if row.name == base):
            title += f", and times those of {label(base)}"
        yield title, _table(mine, lambda row, t=times: _time(row, t.get((base, row.tokens))))
        if any(row.mib is not None for row in mine):
            yield f"{KINDS[kind]}: peak memory, MiB", _table(mine, _mib)


def _table(rows, cell):
    """Implementations down, lengths across; none of those that have no figure at all."""
    lengths = sorted({row.tokens for row in rows})
    table = Table("tokens")
    for tokens in lengths:
        table.add_column(f"{tokens:,}", justify="right")
    for name in dict.fromkeys(row.name for row in rows):
        cells = [cell(row) for row in rows if row.name == name]
        if any(cells):
            table.add_row(label(name), *cells)
    return table


def _time(row, base):
    if row.seconds is None:
        return ""
    ratio = f" ({row.seconds / base:.1f})" if base and row.seconds != base else ""
    return milliseconds(row.seconds) + ratio


def _mib(row):
    return "" if row.mib is None else f"{row.mib:,.0f}" if row.mib >= 10 else f"{row.mib:.1f}"


def milliseconds(seconds):
    """Three digits: ``0.0123``, ``5.12``, ``1,230``."""
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def reasons(rows):
    """Why figures are missing, a line for each implementation and reason."""
    found = {}
    for row in rows:
        for what, why in (("time", row.why_no_time), ("memory", row.why_no_memory)):
            if why:
                places = found.setdefault((what, label(row.name), why), {})
                places.setdefault(KINDS[row.kind], []).append(f"{row.tokens:,}")
    everywhere = len({(row.kind, row.tokens) for row in rows})
    for (what, name, why), places in found.items():
        where = [f"{kind} at {', '.join(lengths)}" for kind, lengths in places.items()]
        some = sum(map(len, places.values())) < everywhere
        yield f"no {what}: {name}{' ' if some else ''}{'; '.join(where) if some else ''}: {why}"


def base(rows, chosen):
    """The implementation that others are compared with: ldt, or the backend ``auto`` takes."""
    names = {row.name for row in rows if row.seconds}
    for name in ("ldt", chosen, *BACKENDS):
        if name in names:
            return name
    return None
