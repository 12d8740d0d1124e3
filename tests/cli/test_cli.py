import errno
import logging
import re
import subprocess
import sys
import time
from types import ModuleType, SimpleNamespace

import pytest
from processes import ldt
from typed import typed

from ldt import __version__, cli, errors
from ldt.cli.options import files_and_keys
from ldt.cli.predict import FLAGS
from ldt.inference.options import meanings

HEAVY = "{'torch', 'transformers', 'datasets', 'numpy'}"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs `ldt convert a` in this process, where convert does what it is given."""

    def run(convert, *arguments):
        module = ModuleType("ldt.convert")
        module.convert = convert
        monkeypatch.setitem(sys.modules, "ldt.convert", module)
        return typed(capsys, "convert", *(arguments or ["a"]))

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
    heavy = HEAVY if len(arguments) > 1 else f"{HEAVY} | {{'ldt.cli.options'}}"
    code = (
        "import sys\n"
        "from ldt.cli import main\n"
        "try:\n"
        f"    main({arguments})\n"
        "finally:\n"
        f"    print(sorted(({heavy}) & set(sys.modules)), file=sys.stderr)\n"
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


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_help_of_a_command_ends_its_text_with_an_example_of_its_options(name, capsys):
    text, _, options = typed(capsys, name, "--help")[1].partition("Options:")
    (example,) = re.findall(rf"^  Example: ldt {name} (.+)$", text, re.M)
    used = re.findall(r"--[a-z-]+", example)
    assert set(used) <= set(re.findall(r"^  (--[a-z-]+)", options, re.M))


@pytest.mark.parametrize("width", ["80", "120"])
def test_no_line_of_the_list_of_commands_is_cut_short(width):
    listed = ldt("--help", env={"COLUMNS": width}).stdout.decode().partition("Main commands:")[2]
    assert "..." not in listed
    main, more = (part.splitlines() for part in listed.split("\n\nMore commands:"))
    assert [line.split()[0] for line in main[1:]] == list(cli.MAIN)
    assert {*cli.MAIN, *(line.split()[0] for line in more[1:])} == {*cli.COMMANDS}
    assert len(main + more) == len(cli.COMMANDS) + 2


def test_what_has_a_key_is_no_file_unless_it_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.text=a").touch()
    files = ["a.jsonl", "data.text=a", "s3://b/year=1/c", "year=2/*.csv", "-", "hf:a/b:c=d"]
    keys = ["data.id=a.b", "text=b", "trainin.seed="]
    mixed = [keys[0], *files[:3], *keys[1:], *files[3:]]
    assert files_and_keys(mixed) == (files, keys)


def test_the_shell_completes_commands():
    env = {"_LDT_COMPLETE": "complete_bash", "COMP_WORDS": "ldt f", "COMP_CWORD": "1"}
    assert ldt(env=env).stdout.decode().split() == ["finetune"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["conver"], "no such command 'conver'. Did you mean 'convert'?; see 'ldt --help'"),
        (["train"], "no such command 'train', write ldt finetune; see 'ldt finetune --help'"),
        (["compare", "a", "b"], "no such command 'compare', write ldt report A B; see 'ldt rep"),
        (["convert"], "missing argument 'SOURCE'; see 'ldt convert --help'"),
        (["predict"], "missing argument 'FILE' (or option '--input'); see 'ldt predict --help'"),
        (["predict", "a", "--input", "b"], "FILE 'a' and --input 'b' both name the documents"),
        (["convert", "a", "--windw", "8"], "--windw"),
        (["convert", "a", "--window", "x"], "invalid value for '--window': "),
        (["convert", "a", "--max-length", "0"], "invalid value for '--max-length': "),
        (["predict", "--input", "a", "--on-error", "x"], "'x' is not one of 'stop', 'skip'"),
        (["evaluate", "--gold", "a"], "missing option '--pred', or MODEL; see 'ldt evaluate "),
        (["finetune", "a", "--seed", "1"], "no such option: --seed, write training.seed=VALUE"),
        (["finetune", "a", "--max-seq-length", "1"], "write data.max_length=VALUE; see"),
        (["finetune", "a", "--data.text=x"], "write data.text=VALUE; see"),
        (["finetune", "a", "--do_train"], "--do_train; a training evaluates on data.eval; "),
        (["finetune", "a", "--foo"], "no such option: --foo; see 'ldt finetune --help'"),
        (["predict", "a", "--learning_rate", "1"], "--learning_rate; see 'ldt predict --help'"),
        (["evaluate", "a", "b"], "'a', 'b': one model is evaluated; ldt report compares several"),
        (["evaluate", "m", "--pred", "p"], "--pred: no option of a language model"),
        (
            ["evaluate", "m", "--choose-thresholds", "--length", "8"],
            "--length: no option of a choice of thresh",
        ),
        (["finetune", "missing.yaml"], "missing.yaml: No such file or directory"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(arguments, line, capsys):
    code, out, err = typed(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
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
        (
            MemoryError(),
            "error: out of memory; free some, or let ulimit -v allow more; ",
        ),
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


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--text", "body"], "no such option: --text, write data.text=VALUE; see 'ldt predict -"),
        (["--raw-scores"], "no such option: --raw-scores, write raw_scores=VALUE; "),
        (["passage=2"], "passage: no such option, did you mean 'passages'?"),
        (["text=body"], "text: no such option, did you mean 'data.text'?"),
        (["data.txt=body"], "data.txt: no such option, did you mean 'data.text'?"),
        (["label_sets=2"], "label_sets: expected less than 1, got 2"),
        (["raw_scores=maybe"], "raw_scores: expected a valid boolean"),
        (["--workers", "0"], "--workers: expected greater than or equal to 1"),
        (["--workers", "all"], "--workers: expected "),
        (
            ["address=ray://x", "--executor", "ray", "--shard", "1/2"],
            "--shard 1/2: not with --exec",
        ),
        (["--merge", "answers.jsonl"], "FILE docs.jsonl: not with --merge"),
    ],
)
def test_an_option_of_predict_is_named_as_it_was_given(arguments, line, capsys):
    code, _, err = typed(capsys, "predict", "docs.jsonl", *arguments)
    assert code == 2
    assert err.startswith(f"error: {line}")


def test_help_lists_what_is_given_as_key_and_value(capsys):
    code, out, _ = typed(capsys, "predict", "--help")
    assert code == 0
    text = " ".join(out.split())
    for name, meaning in meanings().items():
        shown = f"--{name.replace('_', '-')}" if name in FLAGS else f"{name}=VALUE"
        assert shown in text
        assert " ".join(meaning.split()[:4]) in text


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
