"""Snapshots of what a user sees of ldt, to compare before and after a change of its code.

``python tests/helpers/snapshots.py take FOLDER`` runs the commands of snapshot_data/commands.txt on
the made-up data beside it, asks `ldt.load` and servers, and writes a JSON file for each: exit code,
what was printed, and the files that were written. ``… compare OLD NEW`` prints what differs, and
ends with 1 if anything does; ``windows=chunks`` behind it renames in OLD before, by a regular
expression.

Only the command line, HTTP and `ldt.load` are used, so modules may change between the two.
"""

import contextlib
import difflib
import gc
import hashlib
import http.client
import importlib
import io
import json
import os
import pkgutil
import re
import runpy
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).with_name("snapshot_data")
LIMIT = 240  # seconds of a command
MISSING = "(missing)"
SERVED = ("classification", "token_classification", "squad", "wikihop", "summarization")
ENVIRONMENT = {
    **{"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "LDT_ONEDNN": "0", "TZ": "UTC"},
    **{"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    **{"COLUMNS": "100", "LC_ALL": "C.UTF-8", "NO_COLOR": "1", "CUDA_VISIBLE_DEVICES": ""},
    "PYTHONPATH": str(ROOT),
}

# What two runs of the same code have other values of, or what says nothing of it: key of JSON ->
# pattern of such values, and why.
ANY, HEX = ".*", '"([0-9a-f]{16}|[0-9a-f]{64})"'
VOLATILE = {
    **dict.fromkeys(("seconds", "tokens_per_second", "eval_runtime", "time"), (ANY, "duration")),
    **dict.fromkeys(("eval_samples_per_second", "eval_steps_per_second"), (ANY, "duration")),
    **dict.fromkeys(("training time (s)",), (ANY, "duration")),
    "memory": (ANY, "of a process that has loaded all modules"),
    "mtime_ns": (r"\d+", "time of a file"),
    "size": (r"\d+", "of a folder, in which durations have more or fewer digits"),
    **dict.fromkeys(("id", "session"), (HEX, "random, of a run")),
    "documents": (HEX, "hash of absolute paths"),
    **dict.fromkeys(("versions", "version", "transformers_version"), (ANY, "version")),
}
# The same in text: pattern, what stands in its place, why.
RULES = [
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?([.,]\d+)?(Z|[+]00:?00)?", "TIME", "the clock"),
    (r"[\d,.]+ tokens/s", "N tokens/s", "duration"),
    (r"(tokens in|(?<=tokens,)|s in) [\d.]+ s\b", r"\1 N s", "duration"),
    (r"(: |ETA |  )\d+:\d\d(?=;|$|  )", r"\1N:NN", "duration"),
    (r"[\d.]+ s on cpu", "N s on cpu", "duration"),
    (r"training time \(s\).*", "training time (s)", "duration"),
    (r"Writing model shards: .*", "Writing model shards", "duration"),
    (r"[\d.]+ GiB", "N GiB", "memory, as above"),
    (r"\d+ kB", "N kB", "size, as above"),
    (r"(?<=\S) {2,}", "  ", "columns are as wide as durations"),
    (r"\b(ldt|python|torch|transformers|accelerate|tokenizers) \d+\.\d[\w.+]*", r"\1", "version"),
    (r"\S*/ldt-\w{8}\.txt", "TRACEBACK", "a file with a random name"),
    (r"jsonl-[0-9a-f]{16}", "jsonl-HASH", "of an absolute path"),
]


class Snapshots:
    """Runs what a user can run, in the current folder, and keeps what it gives.

    Attributes:
        found: section -> name -> what was printed and written, and the exit code.
    """

    def __init__(self):
        self.found, self._seen = {}, {}
        self._changed()

    def ldt(self, name, line, stdin=""):
        """Run ``ldt LINE``; the name is ``section/name``."""
        self.call(name, partial(command, line), stdin, command=line)

    def call(self, name, function, stdin="", **about):
        """Run a function in a process forked from this one."""
        code, out, err = ended(started(function, stdin))
        self.keep(name, about | {"exit": code, "out": printed(out), "err": printed(err)})

    def keep(self, name, value):
        """Keep a value, and the files that came or changed."""
        section, _, name = name.partition("/")
        files = {scrubbed(str(path)): content(path) for path in self._changed()}
        self.found.setdefault(section, {})[name] = value | ({"files": files} if files else {})

    def _changed(self):
        before, paths = self._seen, sorted(each for each in Path().rglob("*") if each.is_file())
        self._seen = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}
        return [path for path in paths if before.get(path) != self._seen[path]]


def command(line):
    """Run ``ldt LINE`` in this process."""
    sys.argv = ["ldt", *shlex.split(line)]
    runpy.run_module("ldt", run_name="__main__", alter_sys=True)


def started(function, stdin=""):
    """Fork a process, the leader of its group, that runs a function: (id, files of its output)."""
    files = [os.memfd_create(name) for name in ("in", "out", "err")]
    os.write(files[0], stdin.encode())
    os.lseek(files[0], 0, os.SEEK_SET)
    child = os.fork()
    if child:
        os.close(files[0])
        return child, files[1:]
    code = 99
    try:
        os.setpgrp()
        for number, file in enumerate(files):
            os.dup2(file, number)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w", buffering=1)
        function()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
        finally:
            os._exit(code)


def ended(process):
    """(exit code, standard output, standard error) of such a process, which is killed if late."""
    child, files = process
    until = time.monotonic() + LIMIT
    while not (status := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.005)
    texts = []
    for file in files:
        os.lseek(file, 0, os.SEEK_SET)
        with os.fdopen(file, "rb") as stream:
            texts.append(stream.read().decode("utf-8", "replace"))
    return os.waitstatus_to_exitcode(status[1]), *texts


def parsed(text):
    """The value of a text that is an object or a list in JSON; else the text."""
    with contextlib.suppress(ValueError):
        return json.loads(text) if text[:1] in ("{", "[") else text
    return text


def printed(text):
    """What is kept of a text: the value if it is JSON, else its lines, each parsed alike."""
    whole = parsed(text)
    return scrubbed([parsed(line) for line in text.splitlines()] if whole is text else whole)


def scrubbed(value):
    """A value of JSON without what is volatile."""
    if isinstance(value, dict):
        return {scrubbed(key): "~" if volatile(key, x) else scrubbed(x) for key, x in value.items()}
    if isinstance(value, list):
        return [scrubbed(each) for each in value]
    if isinstance(value, str):
        value = value.replace(os.getcwd(), "WORK").replace(str(ROOT), "ROOT")
        for pattern, instead, _ in RULES:
            value = re.sub(pattern, instead, value)
    return value


def volatile(key, value):
    """True for a value of which no two runs have the same."""
    return key in VOLATILE and re.fullmatch(VOLATILE[key][0], json.dumps(value)) is not None


def content(path):
    """What is kept of a file: a text, of weights, tokenizers and long texts a hash."""
    data = path.read_bytes()
    if path.suffix in (".safetensors", ".parquet") or path.name.startswith("tokenizer"):
        return hashlib.sha256(data).hexdigest()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "binary"
    if path.suffix == ".html":
        return page(text)
    return printed(text) if len(text) < 50_000 else hashlib.sha256(data).hexdigest()


def page(text):
    """A page: the data in it, and its lines with hashes of pictures, scripts and styles."""
    found = {}

    def replaced(match):
        name, about, body = match.groups()
        if "json" in about:
            found[f"data {len(found)}"] = scrubbed(json.loads(body))
            return f"<{name}>"
        return f"<{name} {hashlib.sha256(scrubbed(body).encode()).hexdigest()[:16]}>"

    text = re.sub(r"<(script|style|svg)([^>]*)>(.*?)</\1>", replaced, text, flags=re.S)
    return found | {"page": [scrubbed(line.strip()) for line in text.splitlines() if line.strip()]}


def models():
    """Write a tiny random RoBERTa, BART and ModernBERT in transformers' layout, one tokenizer."""
    import torch
    import transformers
    from tokenizers import ByteLevelBPETokenizer

    transformers.utils.logging.disable_progress_bar()
    bpe, special = ByteLevelBPETokenizer(), ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    texts = [path.read_text() for path in sorted(Path("texts").iterdir())]
    bpe.train_from_iterator(texts, vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer = transformers.RobertaTokenizer(*bpe.save_model("."), model_max_length=128)
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "vocab_size": len(tokenizer)}
    sizes = {"layers": 2, "attention_heads": 2, "ffn_dim": 32}
    bart = {f"{part}_{key}": n for part in ("encoder", "decoder") for key, n in sizes.items()}
    bart |= {"d_model": 16, "init_std": 0.3, "max_position_embeddings": 64}
    both = {"hidden_size": 16, "intermediate_size": 32, "initializer_range": 0.3}
    both |= {"num_attention_heads": 2, "max_position_embeddings": 66}
    modern = {"local_attention": 8, "num_hidden_layers": 3, "cls_token_id": 0, "sep_token_id": 2}
    for name, head, config in (
        ("roberta", "RobertaForMaskedLM", {"num_hidden_layers": 2, "type_vocab_size": 1}),
        ("bart", "BartForConditionalGeneration", bart),
        ("modernbert", "ModernBertForMaskedLM", modern | {"classifier_pooling": "mean"}),
    ):
        torch.manual_seed(0)
        cls, config = getattr(transformers, head), ids | (both if name != "bart" else {}) | config
        cls(cls.config_class(**config)).save_pretrained(name)
        tokenizer.save_pretrained(name)


def commands(s):
    """Run the lines of commands.txt."""
    for line in (DATA / "commands.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            name, _, line = line.partition(": ")
            line, _, stdin = line.partition(" < ")
            s.ldt(name if "/" in name else f"{name}/{line}", line, stdin)


def records(run):
    """The first records that a run was trained on."""
    text = Path("runs", run, "recipe.yaml").read_text("utf-8")
    lines = Path(re.search(r"^  train: (.*)", text, re.M)[1]).read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines[:3]]


def load(s):
    """Ask `ldt.load` about a record, records and texts."""

    def answer(run, documents, **options):
        import ldt

        model = ldt.load(f"runs/{run}", **options)
        print(json.dumps([model(documents[0]), model(documents)]))

    for run in sorted(path.name for path in Path("runs").iterdir() if not path.is_symlink()):
        s.call(f"load/{run}", partial(answer, run, records(run)))
    texts = [each["text"] for each in records("classification")]
    s.call("load/texts", partial(answer, "classification", texts, passages=1))


def serve(s):
    """Send each body to each route of some runs' servers."""
    for run in SERVED:
        with socket.create_server(("127.0.0.1", 0)) as place:
            port = place.getsockname()[1]
        own = f"--port {port} --batch-tokens 64"  # a batch each: else what comes first may be alone
        process, answers = started(partial(command, f"serve runs/{run} {own}")), {}
        try:
            ask, until = partial(asked, port), time.monotonic() + LIMIT
            while ask("GET", "/health")["status"] != 200 and time.monotonic() < until:
                time.sleep(0.05)
            answers["the page"] = ask("GET", "/", accept="text/html")
            answers["the routes"] = ask("GET", "/openapi.json")
            for path, methods in answers["the routes"]["body"]["paths"].items():
                for method in methods:
                    for name, body in (bodies(run) if method == "post" else {"": None}).items():
                        found = ask(method.upper(), path.replace("{name}", run), body)
                        answers[f"{method} {path} {name}"] = found
        finally:
            os.kill(process[0], signal.SIGTERM)
            code, out, err = ended(process)
            answers |= {"exit": code, "out": printed(out), "err": printed(err)}
            s.keep(f"serve/{run}", json.loads(json.dumps(answers).replace(str(port), "PORT")))


def bodies(run):
    """Bodies of requests to the server of a run by name: those of all routes, and faulty ones."""
    answers = {"id", "n", "label", "answers", "answer", "summary", "group", "clauses", "tags"}
    line = {key: value for key, value in records(run)[1].items() if key not in answers}
    text = Path("texts/0.txt").read_text("utf-8")
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
    values = {
        "text": {"inputs": text},
        "batch": {"inputs": [["It ends."], [text]]},
        "object": {"inputs": line},
        "fields": line,
        "documents": {"documents": [line, line], "truncate": True},
        "options": line | {"passages": 1, "chunks": True},
        "tensors": {"inputs": [tensor]},
        "unknown": {"nonsense": 1},
    }
    return {name: json.dumps(value) for name, value in values.items()} | {"broken": '{"inputs": '}


def asked(port, method, path, body=None, accept="*/*"):
    """Send a request; returns status, type and body of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Accept": accept} | ({"Content-Type": "application/json"} if body else {})
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text, kind = answer.read().decode(), answer.headers.get("Content-Type", "")
    except OSError as error:
        return {"status": str(error)}
    finally:
        connection.close()
    if path == "/metrics":  # counts and durations
        text = "\n".join(line.rpartition(" ")[0] for line in text.splitlines())
    return {"status": answer.status, "type": kind} | {
        "body": page(text) if "html" in kind else printed(text)
    }


def helps(s, line="ldt"):
    """Ask a command, and each of its sub-commands, for its help."""
    s.ldt(f"help/{line}", f"{line.removeprefix('ldt')} --help")
    text = s.found["help"][line]["out"]
    heads = [number for number, each in enumerate(text) if each.lower().endswith("commands:")]
    for each in text[heads[0] :] if heads else []:
        if name := re.match(r"  (\S+)", each):
            helps(s, f"{line} {name[1]}")


def tests(s):
    """Collect the names of all tests, with their marks."""
    import pytest

    class Names:
        def pytest_collection_finish(self, session):
            self.names = [
                " ".join([item.nodeid, *sorted({mark.name for mark in item.iter_markers()})])
                for item in session.items
            ]

    def collect():
        os.chdir(ROOT)
        plugin, out = Names(), io.StringIO()
        with contextlib.redirect_stdout(out):
            options = ["--collect-only", "-q", "-m", "", "-p", "no:cacheprovider"]
            code = pytest.main(options, plugins=[plugin])
        print("\n".join(sorted(plugin.names)) if code == 0 else out.getvalue())
        sys.exit(code)

    s.call("tests/names", collect)


def take(folder):
    """Write the snapshots; returns 1 if a section could not be taken to its end."""
    target, failed = Path(folder).absolute(), 0
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="snapshots-") as place:
        shutil.copytree(DATA, f"{place}/work")
        for name in ("home", "work/runs", "work/answers", "work/new"):
            os.mkdir(f"{place}/{name}")
        os.environ["HOME"] = f"{place}/home"
        os.chdir(f"{place}/work")
        load_all()
        s = Snapshots()
        s.call("models/random", models)
        for section in (commands, load, serve, helps, tests):
            began = time.monotonic()
            try:
                section(s)
            except Exception:
                failed = 1
                s.keep(f"failed/{section.__name__}", {"error": printed(traceback.format_exc())})
                traceback.print_exc()
            print(f"{section.__name__}: {time.monotonic() - began:.0f} s", flush=True)
        for section, values in s.found.items():
            (target / section).mkdir(parents=True)
            for name, value in values.items():
                text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
                (target / section / f"{name.replace('/', ':')}.json").write_text(text, "utf-8")
        os.chdir("/")
    return failed


def load_all():
    """Import what commands import, so that forked processes need not."""
    import ldt

    with contextlib.redirect_stderr(io.StringIO()):
        for each in pkgutil.walk_packages(ldt.__path__, "ldt."):
            if not each.name.endswith("__main__"):
                with contextlib.suppress(Exception):
                    importlib.import_module(each.name)
    gc.freeze()


def compare(old, new, *renamed):
    """Print what differs between two folders of snapshots; returns 1 if anything does.

    Args:
        renamed: "PATTERN=NEW", a regular expression to replace in the old snapshots.
    """
    folders, count = (Path(old), Path(new)), 0
    if missing := [str(each) for each in folders if not each.is_dir()]:
        sys.exit(f"{missing[0]}: no such folder")
    names = {path.relative_to(each) for each in folders for path in each.rglob("*.json")}
    for name in sorted(names):
        files = [each / name for each in folders]
        texts = [each.read_text("utf-8") if each.exists() else f'"{MISSING}"' for each in files]
        for pattern, _, instead in (each.partition("=") for each in renamed):
            texts[0] = re.sub(pattern, instead, texts[0])
        for path, *pair in differences(*map(json.loads, texts)):
            count += 1
            print(f"{name}: {path}: {' -> '.join(map(shown, pair))}")
    print(f"{len(names)} snapshots, {count} differences")
    return int(count > 0)


def shown(value):
    """A value in one line of a bearable length."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 300 else f"{text[:300]}… ({len(text):,} characters)"


def differences(old, new, path=""):
    """Yield (path, old value, new value) wherever two values of JSON differ.

    Lists, and texts as lists of lines, are laid beside each other as diff does.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            yield from differences(old.get(key, MISSING), new.get(key, MISSING), f"{path}/{key}")
        if old.keys() == new.keys() and list(old) != list(new):
            yield f"{path} (order)", list(old), list(new)
    elif isinstance(old, list) and isinstance(new, list):
        texts = [[json.dumps(each) for each in value] for value in (old, new)]
        matcher = difflib.SequenceMatcher(None, *texts, autojunk=False)
        for kind, start, end, begin, stop in matcher.get_opcodes():
            for n in range(max(end - start, stop - begin) if kind != "equal" else 0):
                one = old[start + n] if start + n < end else MISSING
                other = new[begin + n] if begin + n < stop else MISSING
                yield from differences(one, other, f"{path}/{start + n}")
    elif json.dumps(old) != json.dumps(new):
        yield path, old, new


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["take", folder]:
            others = {k: v for k, v in os.environ.items() if not k.startswith("LDT_")}
            if (wanted := others | ENVIRONMENT) != os.environ:
                os.execve(sys.executable, [sys.executable, *sys.argv], wanted)
            sys.exit(take(folder))
        case ["compare", old, new, *renamed]:
            sys.exit(compare(old, new, *renamed))
        case _:
            sys.exit(__doc__)
