"""The files that a document and a recipe pass through, traced in the running code.

`trace` lists the files of ldt in the order in which they are first entered. The page lists those of
one JSON line through ``ldt predict`` and of one recipe through ``ldt finetune``.
"""

import ast
import contextlib
import importlib
import inspect
import io
import json
import os
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "ldt"
RECIPE = """\
task: {name: classification}
model: {path: longer, attention: blocked}
data: {train: train.jsonl, max_length: 64}
training: {output_dir: runs/walk, max_steps: 1, use_cpu: true}
"""


class Trace:
    """Files of ldt in the order in which their functions are first entered, in any thread.

    Args:
        begin: (file, function) from whose first entry on the trace records; None records from the
            start.
        end: file with whose first entry it stops.
    """

    def __init__(self, begin=None, end=None):
        self.begin, self.end = begin, end
        self.entered = {}  # file -> first function
        self._names = {}

    def __call__(self, frame, event, argument):
        code = frame.f_code
        if event != "call" or not code.co_flags & inspect.CO_OPTIMIZED:  # no module, no class body
            return
        name = self._names.get(code.co_filename)
        if name is None:
            path = Path(code.co_filename)
            inside = path.is_relative_to(SOURCE)
            name = path.relative_to(SOURCE).as_posix() if inside else ""
            self._names[code.co_filename] = name
        if not name or code.co_name.startswith("<"):
            return
        if self.begin == (name, code.co_name):
            self.begin = None
        if self.begin is None and self.end not in self.entered:
            self.entered.setdefault(name, code.co_name)

    def __enter__(self):
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)
        threading.setprofile(None)


def ldt(*arguments):
    """Run a command in this process, without its output.

    Raises:
        RuntimeError: it failed; the text is what it printed.
    """
    from ldt import cli
    from ldt.cli import console

    printed = io.StringIO()
    console.stdout.file = console.stderr.file = printed
    try:
        with contextlib.redirect_stdout(printed):
            cli.main(list(arguments))
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(printed.getvalue()) from stop
    finally:
        console.stdout.file = console.stderr.file = None  # the streams of the moment again


def walks():
    """Run a tiny job; return (files of the line, files of the recipe), each file -> function."""
    sys.path.insert(0, str(ROOT / "examples" / "demo"))
    demo, contracts = importlib.import_module("demo"), importlib.import_module("contracts")
    documents = contracts.contracts(range(8))
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            demo.make_small(Path("short"), [document["text"] for document in documents], seed=0)
            demo.write(Path("train.jsonl"), documents)
            Path("line.jsonl").write_text(json.dumps({"text": documents[0]["text"][:200]}) + "\n")
            Path("recipe.yaml").write_text(RECIPE)
            ldt("convert", "short", "longer", "--max-length", "1024", "--window", "32")
            with Trace() as recipe:
                ldt("finetune", "recipe.yaml")
            with Trace(("data/records.py", "lines"), "inference/answer_file.py") as line:
                ldt("predict", "line.jsonl", "--output", "answers.jsonl")
        finally:
            os.chdir(home)
    return line.entered, recipe.entered


def summary(path):
    """First line of a module's docstring."""
    text = ast.get_docstring(ast.parse((SOURCE / path).read_text("utf-8"))) or ""
    return text.partition("\n\n")[0]


def page():
    """The page of both walks."""
    from reference import table

    line, recipe = walks()
    rooms = list(dict.fromkeys(path.partition("/")[0] for path in line))
    text = [
        "# From line to answer, from recipe to run",
        "",
        "These lists are traced in the running code when the site is built.",
        "",
        "## A JSON line through `ldt predict`",
        "",
        "From the reading of the first record to the writing of its answer: "
        f"{len(line)} files of {len(rooms)} packages, in the order in which each is first entered.",
        "",
    ]
    text += table(["file", "first function", "holds"], rows(line))
    text += [
        "",
        "## A recipe through `ldt finetune`",
        "",
        f"The whole command: {len(recipe)} files, in the order in which each is first entered.",
        "",
    ]
    text += table(["file", "first function", "holds"], rows(recipe))
    return "\n".join(text) + "\n"


def rows(entered):
    """Rows of the table of a walk."""
    return [[f"`{path}`", f"`{name}`", summary(path)] for path, name in entered.items()]
