"""The files that a document and a recipe pass through, traced in the running code.

``python docs/site/walk.py`` traces one JSON line through ``ldt predict``, one recipe through
``ldt finetune`` and one request through ``ldt serve``, and writes the lists into
docs/architecture.md; a test compares them.
"""

import ast
import importlib
import inspect
import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "ldt"
PAGE = ROOT / "docs" / "architecture.md"
GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
BEGIN = "<!-- traced by docs/site/walk.py -->\n"
RECIPE = """\
task: {name: classification}
model: {path: longer, attention: blocked}
data: {train: train.jsonl, max_length: 64}
training: {output_dir: runs/walk, max_steps: 1, use_cpu: true}
"""


class Trace:
    """Files of ldt in the order in which their functions are first entered, in any thread.

    Args:
        begin: pairs (file, function) that are entered in this order, the last one being where the
            trace begins to record; none records from the start.
        end: pair (file, function) with whose first entry it stops.
    """

    def __init__(self, begin=(), end=None):
        self.begin, self.end, self.ended = list(begin), end, False
        self.entered = {}  # file -> first function
        self._names = {}

    def __call__(self, frame, event, argument):
        code = frame.f_code
        if event != "call" or not code.co_flags & inspect.CO_OPTIMIZED:  # no module, no class body
            return
        if code.co_flags & GENERATORS and code.co_code[frame.f_lasti + 1] & 3:
            return  # it goes on behind a yield or an await, and was entered before
        name = self._names.get(code.co_filename)
        if name is None:
            path = Path(code.co_filename)
            inside = path.is_relative_to(SOURCE)
            name = path.relative_to(SOURCE).as_posix() if inside else ""
            self._names[code.co_filename] = name
        if not name or code.co_name.startswith("<"):
            return
        if self.begin[:1] == [(name, code.co_name)]:
            self.begin.pop(0)
        if not self.begin and not self.ended:
            self.entered.setdefault(name, code.co_name)
            self.ended = self.end == (name, code.co_name)

    def __enter__(self):
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)
        threading.setprofile(None)


def ldt(*arguments):
    """Run a command in this process.

    Raises:
        SystemExit: it failed.
    """
    from ldt import cli

    try:
        cli.main(list(arguments))
    except SystemExit as stop:
        if stop.code:
            raise


def answered(text):
    """Have a server of the last run answer for a text twice; return the files of the second time,
    file -> function."""
    from ldt.serve import server
    from ldt.serve.app import App
    from ldt.serve.model import Served

    with Trace(begin=[("", "later")]) as trace:  # threads that begin here are traced
        app, place = App(Served()), server.bound("127.0.0.1", 0)
        served = server.Server(server.config(app), app, draining=30)
        thread = threading.Thread(target=served.run, kwargs={"sockets": [place]})
        thread.start()
        address = f"http://127.0.0.1:{place.getsockname()[1]}/answer"
        while not served.started:
            thread.join(0.01)
        body, head = json.dumps({"text": text}).encode(), {"Content-Type": "application/json"}
        for begin in (trace.begin, []):
            trace.begin = begin
            with urlopen(Request(address, body, head)) as answer:
                answer.read()
        entered = dict(trace.entered)
        app.draining = True
        thread.join()
        app.close()
    return entered


def walks():
    """Run a tiny job; return (files of the line, of the recipe, of the request), each file ->
    function."""
    sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "demo")]
    demo, contracts = importlib.import_module("demo"), importlib.import_module("contracts")
    documents = contracts.contracts(range(8))
    home = Path.cwd()
    os.environ["LDT_THREADS"] = "1"  # else the load of the machine decides what else is called
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
            # The first record is read before the model is loaded, and then anew.
            begin = [("inference/stream.py", "answer"), ("io/records.py", "lines")]
            with Trace(begin, ("inference/answer_file.py", "write")) as line:
                ldt("predict", "line.jsonl", "--output", "answers.jsonl")
            request = answered(documents[0]["text"][:200])
        finally:
            os.chdir(home)
    return line.entered, recipe.entered, request


def summary(path):
    """First paragraph of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse((SOURCE / path).read_text("utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def lists(line, recipe, request):
    """The walks as Markdown."""
    packages = {path.partition("/")[0] for path in line if "/" in path}
    text = [
        "### A JSON line through `ldt predict`",
        "",
        f"From the reading of the first record to the writing of its answer, {len(line)} files in "
        f"{len(packages)} packages:",
        "",
        *table(line),
        "",
        "### A request through `ldt serve`",
        "",
        f"From the check of its sender to its answer, as the server's second one, {len(request)} "
        "files:",
        "",
        *table(request),
        "",
        "### A recipe through `ldt finetune`",
        "",
        f"The whole command, {len(recipe)} files:",
        "",
        *table(recipe),
    ]
    return "\n".join(text) + "\n"


def table(entered):
    """Lines of the Markdown table of a walk."""
    rows = [f"| `{path}` | `{name}` | {summary(path)} |" for path, name in entered.items()]
    return ["| file | first function | holds |", "| --- | --- | --- |", *rows]


def traced():
    """The part of docs/architecture.md that is traced, as it stands there."""
    return PAGE.read_text("utf-8").partition(BEGIN)[2]


if __name__ == "__main__":
    head = PAGE.read_text("utf-8").partition(BEGIN)[0]
    PAGE.write_text(head + BEGIN + lists(*walks()), "utf-8")
