"""Break lines of the source one at a time, drawn by a seed, and say which tier of tests notices.

    python tests/helpers/mutations.py --seed 1 --count 20

One run of the fast and the slow tier notes which tests reach which of the lines, those that other
processes execute included. Then each line is broken by itself, and its tests run, the fast ones
first, until one fails. Left out: lines outside of functions, kernels, and texts of messages.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PROBE = """import os
seen = set()
def reached(number):
    key = number, os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if key not in seen:
        seen.add(key)
        with open({file!r}, "a") as lines:
            lines.write(f"{{number}}\\t{{key[1]}}\\n")
"""
SWAPS = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//",
    ast.And: "or", ast.Or: "and",
}  # fmt: skip


class Mutation(NamedTuple):
    """A statement of ``path`` and what an expression of it becomes.

    ``probe`` is the line before which the statement can be noted, ``span`` the expression's place:
    line, column, end line, end column, as ast counts, columns in bytes.
    """

    path: Path
    probe: int
    span: tuple
    new: str


def place(node):
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def broken(node):
    """Source of a wrong expression or statement in place of ``node``; None if it has none."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
        return f"(({left}) {SWAPS[type(node.ops[0])]} ({right}))"
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        return f"(({ast.unparse(node.left)}) {SWAPS[type(node.op)]} ({ast.unparse(node.right)}))"
    if isinstance(node, ast.BoolOp):
        joined = f" {SWAPS[type(node.op)]} ".join(f"({ast.unparse(x)})" for x in node.values)
        return f"({joined})"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return f"({ast.unparse(node.operand)})"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        value = not node.value if isinstance(node.value, bool) else node.value + 1
        return repr(value)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return "pass"
    if isinstance(node, ast.Return) and node.value is not None:
        return "return None"
    return None


def mutations(path):
    """All mutations of the functions of a file."""
    tree = ast.parse(path.read_text("utf-8"))
    pending = [(node, None) for node in tree.body]
    while pending:
        node, probe = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if "jit" in "".join(map(ast.unparse, node.decorator_list)):
                continue
            docstring = ast.get_docstring(node) is not None
            pending += [(child, child.lineno) for child in node.body[docstring:]]
            continue
        if isinstance(node, ast.ClassDef):
            pending += [(child, None) for child in node.body]
            continue
        if isinstance(node, ast.JoinedStr | ast.Raise | ast.Lambda | ast.Assert):
            continue
        if probe is not None and (new := broken(node)) is not None:
            yield Mutation(path, probe, place(node), new)
        chained = isinstance(node, ast.If) and len(node.orelse) == 1
        for child in ast.iter_child_nodes(node):
            own = isinstance(child, ast.stmt) and probe is not None
            own = own and not (chained and child is node.orelse[0] and isinstance(child, ast.If))
            pending.append((child, child.lineno if own else probe))


def chosen(count, seed):
    """``count`` mutations of different lines, spread over the packages of ldt."""
    draw = random.Random(seed)
    packages = defaultdict(list)
    for path in sorted((ROOT / "ldt").rglob("*.py")):
        packages[path.relative_to(ROOT / "ldt").parts[0]].append(path)
    order = sorted(packages)
    draw.shuffle(order)
    picked, lines = [], set()
    while len(picked) < count:
        for package in order:
            by_line = defaultdict(list)
            for path in packages[package]:
                for mutation in mutations(path):
                    by_line[path, mutation.span[0]].append(mutation)
            free = sorted(by_line.keys() - lines)
            if free and len(picked) < count:
                line = draw.choice(free)
                lines.add(line)
                picked.append(draw.choice(by_line[line]))
    return picked


def changed(lines, mutation):
    """Lines of a file, as bytes with their ends, with the mutation."""
    first, column, last, end = mutation.span
    text = lines[first - 1][:column] + mutation.new.encode() + lines[last - 1][end:]
    return [*lines[: first - 1], text, *lines[last:]]


def copied(folder):
    files = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for name in filter(None, files.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def pytest(folder, *arguments, seconds=None):
    """(exit code, output) of the tests in a copy; 124 where they took longer."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    try:
        run = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return 124, ""
    return run.returncode, run.stdout


def reached(picked, folder):
    """For each mutation the ids of the tests that reach its statement, in the order of a run."""
    notes = folder / "reached.tsv"
    notes.touch()
    (folder / "ldt" / "_probe.py").write_text(PROBE.format(file=str(notes)))
    by_path = defaultdict(list)
    for number, mutation in enumerate(picked):
        by_path[mutation.path].append((mutation.probe, number))
    for path, probes in by_path.items():
        lines = path.read_text("utf-8").splitlines(keepends=True)
        for line, number in sorted(probes, reverse=True):
            text = lines[line - 1]
            indent = text[: len(text) - len(text.lstrip())]
            call = f"{indent}from ldt._probe import reached as _r; _r({number})\n"
            lines.insert(line - 1, call)
        (folder / path.relative_to(ROOT)).write_text("".join(lines), "utf-8")
    pytest(folder, "-m", "not nightly", "-n", "2", "--dist", "loadfile")
    tests = [{} for _ in picked]
    for line in notes.read_text().splitlines():
        number, _, test = line.partition("\t")
        if test:
            tests[int(number)][test] = None
    return [list(found) for found in tests]


def verdict(mutation, tests, fast, folder, seconds):
    """(tier that notices, first test that does) of a mutation made in a copy."""
    target = folder / mutation.path.relative_to(ROOT)
    lines = mutation.path.read_bytes().splitlines(keepends=True)
    right, wrong = mutation.path.read_bytes(), b"".join(changed(lines, mutation))
    tiers = ("fast", [x for x in tests if x in fast]), ("slow", [x for x in tests if x not in fast])
    for tier, names in tiers:
        while names:
            (folder / "names").write_text("\n".join(names))
            target.write_bytes(wrong)
            code, out = pytest(folder, "-x", "-m", "", "@names", seconds=seconds)
            target.write_bytes(right)
            if code == 0:
                break
            if code == 124:
                return tier, "takes too long"
            failed = [x for x in out.splitlines() if x.startswith(("FAILED", "ERROR"))]
            name = failed[0].partition(" ")[2].partition(" - ")[0] if failed else ""
            if name not in names or pytest(folder, "-m", "", name)[0] == 0:
                return tier, name or out.strip()[-80:]
            names.remove(name)  # it fails where nothing is broken
    return "none", ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, action="append", help="of the lines; may be repeated")
    parser.add_argument("--count", type=int, default=20, help="lines a seed")
    parser.add_argument("--seconds", type=float, default=900, help="limit of a broken line's tests")
    parser.add_argument("--list", action="store_true", help="show the lines and stop")
    options = parser.parse_args()
    seeds = options.seed or [0]
    picked = [mutation for seed in seeds for mutation in chosen(options.count, seed)]
    if options.list:
        for mutation in picked:
            print(shown(mutation))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folders = SimpleQueue()
        for name in ("probes", "one", "two"):
            (Path(temporary) / name).mkdir()
        for name in ("one", "two"):
            folders.put(copied(Path(temporary) / name))
        tests = reached(picked, copied(Path(temporary) / "probes"))
        fast = set(pytest(Path(temporary) / "one", "--collect-only")[1].splitlines())

        def judge(mutation, names):
            folder = folders.get()
            row = verdict(mutation, names, fast, folder, options.seconds)
            folders.put(folder)
            counts = len(fast.intersection(names)), len(set(names) - fast)
            print(shown(mutation), *counts, *row, sep="\t", flush=True)
            return row[0]

        with ThreadPoolExecutor(2) as pool:
            tiers = list(pool.map(judge, picked, tests))
    for place, seed in enumerate(seeds):
        own = tiers[place * options.count :][: options.count]
        print(f"seed {seed}:", ", ".join(f"{own.count(x)} {x}" for x in ("fast", "slow", "none")))


def shown(mutation):
    first, column, last, end = mutation.span
    lines = mutation.path.read_bytes().splitlines()[first - 1 : last]
    old = lines[0][column : end if first == last else None].decode()
    return f"{mutation.path.relative_to(ROOT)}:{first}\t{old} -> {mutation.new}"


if __name__ == "__main__":
    main()
