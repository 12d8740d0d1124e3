import errno
import io
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from ldt import __version__, cli, errors
from ldt.cli import console

HEAVY = "{'torch', 'transformers', 'datasets', 'numpy'}"


def ldt(*arguments, **options):
    """The finished process of a command."""
    environment = dict(os.environ) | {"PYTHONUNBUFFERED": ""} | options.pop("env", {})
    command = [sys.executable, "-m", "ldt", *arguments]
    options = {"capture_output": True, "timeout": 120} | options
    return subprocess.run(command, env=environment, **options)


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs `ldt convert a` in this process, where convert does what it is given."""

    def run(convert, *arguments):
        module = ModuleType("ldt.convert")
        module.convert = convert
        monkeypatch.setitem(sys.modules, "ldt.convert", module)
        with pytest.raises(SystemExit) as ended:
            cli.main(["convert", *(arguments or ["a"])])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def raising(error):
    def convert(*_, **__):
        raise error

    return convert


@pytest.mark.parametrize(
    "arguments",
    [
        *([], ["-h"], ["--help"], ["--version"]),
        *([command, "-h"] for command in ("predict", "evaluate", "bench")),
    ],
)
def test_help_and_version_import_nothing_heavy_and_are_quick(arguments):
    code = (
        "import sys\n"
        "from ldt.cli import main\n"
        "try:\n"
        f"    main({arguments})\n"
        "finally:\n"
        f"    print(sorted({HEAVY} & set(sys.modules)), file=sys.stderr)\n"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    seconds = time.perf_counter() - start
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert done.stdout.startswith("ldt " if arguments == ["--version"] else "Usage: ldt ")
    assert seconds < 10  # 0.15 to 0.3 on a quiet machine


def test_version_and_commands_are_told():
    assert ldt("--version").stdout.decode() == f"ldt {__version__}\n"
    help = ldt().stdout.decode()
    for words in (
        "convert ",
        "finetune ",
        "predict ",
        "evaluate ",
        "bench ",
        "--install-completion",
        "-h, --help",
    ):
        assert words in help


def test_the_shell_completes_commands():
    env = {"_LDT_COMPLETE": "complete_bash", "COMP_WORDS": "ldt f", "COMP_CWORD": "1"}
    assert ldt(env=env).stdout.decode().split() == ["finetune"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["conver"], "no such command 'conver'. Did you mean 'convert'?; see 'ldt --help'"),
        (["convert"], "missing argument 'SOURCE'; see 'ldt convert --help'"),
        (["predict"], "missing option '--input'; see 'ldt predict --help'"),
        (["convert", "a", "--windw", "8"], "--windw"),
        (["convert", "a", "--window", "x"], "invalid value for '--window': "),
        (["convert", "a", "--max-length", "0"], "invalid value for '--max-length': "),
        (["predict", "--input", "a", "--on-error", "x"], "'x' is not one of 'stop', 'skip'"),
        (["evaluate", "--gold", "a"], "missing option '--pred'; see 'ldt evaluate --help'"),
        (["finetune", "a", "--seed", "1"], "no such option: --seed"),
        (["finetune", "missing.yaml"], "missing.yaml: No such file or directory"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(arguments, line, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert line in err


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.UserError, 2),
        (errors.RecipeError, 3),
        (errors.DataError, 4),
        (errors.ModelError, 5),
        (errors.ResourceError, 6),
        (errors.TrainingDiverged, 8),
    ],
)
def test_each_user_error_has_its_exit_code_and_no_traceback(run, kind, code):
    assert run(raising(kind("a.yaml:1: x\na.yaml:2: y"))) == (
        code,
        "",
        "error: a.yaml:1: x\nerror: a.yaml:2: y\n",
    )


def test_text_of_users_neither_styles_nor_steers_the_terminal(run):
    text = "[/ent] [bold]x[/bold] \x1b[31mred\x1b[0m \x1b]0;title\x07\x9b2J :smile: \u202eabc\r\0"
    code, _, err = run(raising(errors.DataError(text)))
    assert (code, err) == (4, "error: [/ent] [bold]x[/bold] red 2J :smile: abc\n")


def test_long_lines_are_not_wrapped(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    assert run(raising(errors.DataError("word " * 40)))[2] == "error: " + "word " * 40 + "\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "error: out of memory; a smaller data.max_length"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), "error: out of mem"),
        (OSError(errno.ENOSPC, "No space left on device", "a/b"), "error: a/b: the disk is full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "error: the disk is full"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "error: the disk is"),
    ],
)
def test_too_little_memory_or_disk_is_exit_code_6(run, error, line):
    code, _, err = run(raising(error))
    assert code == 6
    assert err.startswith(line)
    assert err.count("\n") == 1


def test_too_little_memory_of_a_gpu_is_exit_code_6(run):
    torch = pytest.importorskip("torch")
    assert run(raising(torch.OutOfMemoryError("CUDA out of memory. Tried")))[0] == 6


def test_a_forbidden_path_is_exit_code_2(run):
    error = PermissionError(errno.EACCES, "Permission denied", "/secret/x")
    assert run(raising(error)) == (2, "", "error: /secret/x: Permission denied\n")


@pytest.mark.parametrize("error", [TypeError("a\nb [/ent]"), EOFError("a"), ValueError("a")])
def test_a_bug_is_one_line_that_names_the_file_of_its_traceback(run, error, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, out, err = run(raising(error))
    (file,) = tmp_path.iterdir()
    kind = type(error).__name__
    assert (code, out) == (1, "")
    assert err.lstrip() == f"bug: {kind}: a; traceback in {file}\n"  # typer begins a line for EOF
    assert f"ldt {__version__}" in file.read_text()
    assert "in raising" in file.read_text() or "in convert" in file.read_text()
    assert file.read_text().endswith(f"{kind}: {error}\n")


def test_a_traceback_is_printed_where_it_is_asked_for_or_no_file_can_be(run, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert "Traceback (most recent call last)" in run(raising(TypeError("a")))[2]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("LDT_TRACEBACK", "1")
    code, _, err = run(raising(TypeError("a")))
    assert code == 1
    assert err.endswith("TypeError: a\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141),
        (SystemExit(143), 143),
        (SystemExit(0), 0),
    ],
)
def test_an_interruption_is_quiet(run, error, code):
    assert run(raising(error)) == (code, "", "")


def test_convert_passes_its_options_and_prints_the_report(run):
    seen = []

    def convert(*arguments, **options):
        seen.append((arguments, options))
        return SimpleNamespace(lines=lambda: ["read a", "wrote [/b] \x1b[1mx" + "-" * 100])

    assert run(convert, "a") == (0, "read a\nwrote [/b] x" + "-" * 100 + "\n", "")
    long = ["--max-length", "8", "--window", "4", "--architecture", "poolingformer"]
    long += ["--positions", "random", "--check", "text.txt"]
    run(convert, "a", "b", *long, "--overwrite")
    options = {"architecture": "longformer", "max_length": 4096, "window": None}
    options |= {"positions": "tile", "check": None}
    others = {"architecture": "poolingformer", "max_length": 8, "window": 4}
    others |= {"positions": "random", "check": "text.txt"}
    assert seen == [
        (("a", None), options | {"overwrite": False}),
        (("a", Path("b")), others | {"overwrite": True}),
    ]


def test_predict_passes_its_options_and_its_exit_code(monkeypatch):
    seen = []
    module = ModuleType("ldt.inference.predict")
    module.predict = lambda *arguments, **options: seen.append((arguments, options)) or 7
    monkeypatch.setitem(sys.modules, "ldt.inference.predict", module)
    given = ["--model", "m", "--output", "o", "--on-error", "skip", "--resume", "--text", "t"]
    given += ["--format", "squad", "--evidence", "e", "--n-best", "3"]
    given += ["--batch-tokens", "9", "--max-line-bytes", "8", "--id", "i", "--device", "cpu"]
    for arguments in (["--input", "-"], ["--input", "a", *given]):
        with pytest.raises(SystemExit) as ended:
            cli.main(["predict", *arguments])
        assert ended.value.code == 7
    (first, defaults), (second, options) = seen
    assert (first, second) == (("-",), ("a",))
    assert defaults == {
        **{"model": None, "output": None, "on_error": "stop", "resume": False, "text": None},
        **{"batch_tokens": 16384, "max_line_bytes": 256 << 20, "id": None, "device": "auto"},
        **{"precision": "fp32", "format": None, "evidence": None, "n_best": None},
    }
    assert options == {
        **{"model": "m", "output": "o", "on_error": "skip", "resume": True, "text": "t"},
        **{"batch_tokens": 9, "max_line_bytes": 8, "id": "i", "device": "cpu"},
        **{"precision": "fp32", "format": "squad", "evidence": "e", "n_best": 3},
    }


def test_predict_has_the_parameters_that_the_command_passes():
    import inspect

    from ldt.inference.predict import predict

    command = inspect.signature(cli.predict).parameters
    function = inspect.signature(predict).parameters
    assert list(function)[1:] == list(command)[1:]
    for name in list(command)[1:]:
        assert function[name].default == command[name].default


def test_finetune_gets_the_recipe_with_its_overrides(monkeypatch, tmp_path):
    seen = []
    module = ModuleType("ldt.training.finetune")
    module.finetune = lambda recipe, **options: seen.append((recipe, options))
    monkeypatch.setitem(sys.modules, "ldt.training.finetune", module)
    file = tmp_path / "r.yaml"
    file.write_text("task: {name: classification}\nmodel: {path: m}\ndata: {train: t}\n")
    with pytest.raises(SystemExit) as ended:
        cli.main(["finetune", str(file), "training.seed=3", "--dry-run", "data.stride=2"])
    assert ended.value.code == 0
    ((recipe, options),) = seen
    assert (recipe.training, recipe.data.stride, recipe.path) == ({"seed": 3}, 2, file)
    assert options == {"resume": False, "overwrite": False, "dry_run": True}


def test_finetune_prints_all_problems_of_a_recipe(tmp_path, capsys):
    file = tmp_path / "r.yaml"
    file.write_text("task: {name: classification}\nmodel: {pth: m}\ntraining: {lr: 1}\n")
    with pytest.raises(SystemExit) as ended:
        cli.main(["finetune", str(file)])
    lines = capsys.readouterr().err.split("\n")
    assert ended.value.code == 3
    assert lines[0] == f"error: {file}: data: train: missing, a file of training examples"
    assert lines[1].startswith(f"error: {file}:2: model: pth: unknown key, did you mean 'path'?")
    assert lines[3].startswith(f"error: {file}:3: training: lr: unknown key, did you mean 'learn")
    assert len(lines) == 5


def test_log_records_are_lines_of_standard_error(run, monkeypatch):
    def convert(*_, **__):
        log = logging.getLogger("ldt.model")
        log.debug("not this")
        log.info("new head %s", "[/classifier]")
        log.warning("slow\nfile \x1b[2J")
        return SimpleNamespace(lines=list)

    expected = "new head [/classifier]\nwarning: slow\nwarning: file \n"
    assert run(convert) == (0, "", expected)
    assert run(convert) == (0, "", expected)  # a second time it is not said twice


def test_libraries_are_told_to_be_quiet_before_they_are_imported(monkeypatch):
    for name in cli.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    code = (
        "import os, sys\nfrom ldt import cli\n"
        f"assert not {HEAVY} & set(sys.modules)\n"
        "cli.app = lambda *_, **__: print(*map(os.environ.get, sorted(cli.ENVIRONMENT)))\n"
        "cli.main([])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ) | {"TRANSFORMERS_VERBOSITY": "info"},
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = cli.ENVIRONMENT | {"TRANSFORMERS_VERBOSITY": "info"}
    assert done.stdout.split() == [wanted[name] for name in sorted(wanted)]


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "cp1252"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "ascii:strict", "COLUMNS": "20", "NO_COLOR": "1"},
        {"TERM": "dumb", "COLUMNS": "1"},
    ],
)
def test_any_locale_width_and_encoding_is_enough(env, tmp_path):
    assert ldt("convert", "--help", env=env).returncode == 0
    done = ldt("finetune", "é☃\udcff.yaml", env=env, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"error: ")
    assert done.stderr.endswith(b".yaml: No such file or directory\n")
    assert b"\x1b" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_results_are_written_in_any_encoding(encoding):
    code = (
        "import sys, types\n"
        "from ldt.cli import main\n"
        "module = sys.modules['ldt.convert'] = types.ModuleType('ldt.convert')\n"
        "lines = ['é ☃ \\udcff']\n"
        "module.convert = lambda *_, **__: types.SimpleNamespace(lines=lambda: lines)\n"
        "main(['convert', 'a'])\n"
    )
    env = dict(os.environ) | {"PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True)
    expected = "é ☃ \udcff\n".encode(encoding, errors="backslashreplace")
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, b"")


def test_colours_are_for_terminals_that_want_them(monkeypatch):
    def shown():
        screen = io.StringIO()
        terminal = console.Console(file=screen, force_terminal=True)
        console.say("x", "error: ", "bold red", terminal)
        return screen.getvalue()

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert shown() == "\x1b[1;31merror: \x1b[0mx\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert "31m" not in shown()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["convert", "--help"]])
def test_a_reader_that_has_gone_ends_a_command_quietly(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    done = ldt(*arguments, capture_output=False, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_reader_that_leaves_in_the_middle_ends_a_command_quietly():
    code = (
        "import sys, types\n"
        "from ldt.cli import main\n"
        "module = sys.modules['ldt.convert'] = types.ModuleType('ldt.convert')\n"
        "lines = (str(i) for i in range(10**6))\n"
        "module.convert = lambda *_, **__: types.SimpleNamespace(lines=lambda: lines)\n"
        "main(['convert', 'a'])\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe) as process:
        assert process.stdout.readline() == b"0\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_full_disk_behind_standard_output_is_one_line():
    with open("/dev/full", "w") as full:
        done = ldt("--version", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (6, b"error: the disk is full; free space on it\n")


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_do_not_matter(redirection):
    command = f'"{sys.executable}" -m ldt --version {redirection}'
    done = subprocess.run(["sh", "-c", command], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == (f"ldt {__version__}\n".encode() if redirection == "2>&-" else b"")


def test_an_interrupt_from_the_keyboard_ends_with_130():
    code = (
        "import signal, sys, time, types\n"
        "from ldt.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores it
        "module = sys.modules['ldt.convert'] = types.ModuleType('ldt.convert')\n"
        "module.convert = lambda *_, **__: [print('ready', flush=True), time.sleep(60)]\n"
        "main(['convert', 'a'])\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert (process.stderr.read(), process.wait(60)) == (b"", 130)
