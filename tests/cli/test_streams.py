import io
import os
import signal
import subprocess
import sys

import pytest
from processes import ldt

from ldt import __version__
from ldt.cli import console


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
