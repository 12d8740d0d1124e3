"""Files that predict, evaluate and convert write, whatever comes in between."""

import errno
import json
import os
import re
import shutil
import signal

import pytest
from faults import contracts, lines, sample
from zygote import Fault

COMMANDS = {
    "predict": "predict new.jsonl --model runs/done --output a.jsonl",
    "skip": "predict bad.jsonl --model runs/done --output a.jsonl --on-error skip",
    "evaluate": "evaluate --format squad --gold gold.json --pred pred.json --json e.json",
    "perplexity": "evaluate characters --part eval --json p.json",
    "convert": "convert short other --max-length 512 --window 16",
}
CODES = {
    "kill": -signal.SIGKILL,
    errno.ENOSPC: 6,
    errno.EDQUOT: 6,
    errno.EIO: 6,
    errno.ESTALE: 6,
    errno.EMFILE: 6,
    errno.EROFS: 2,
    errno.EACCES: 2,
}
# Too many file events of any of the commands: a fault that does not come makes no difference.
MOST = 20
CASES = [(name, at, how) for name in COMMANDS for at in range(1, MOST) for how in CODES]
PREDICT = COMMANDS["predict"].split()


@pytest.fixture(scope="module")
def full(made, tmp_path_factory):
    """A folder as `made`, with all that the commands need."""
    folder = tmp_path_factory.mktemp("full") / "home"
    shutil.copytree(made, folder, symlinks=True)
    lines(folder / "bad.jsonl", contracts(4, seed=2))
    with open(folder / "bad.jsonl", "a") as file:
        file.write("nonsense\n")
    questions = [
        {"id": f"q{place}", "question": "?", "answers": [{"text": word, "answer_start": 2 * place}]}
        for place, word in enumerate("ab")
    ]
    paragraph = {"context": "a b c", "qas": questions}
    gold = {"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]}
    (folder / "gold.json").write_text(json.dumps(gold))
    (folder / "pred.json").write_text('{"q0": "a", "q1": "c"}')
    return folder


@pytest.fixture
def home(full, tmp_path):
    folder = tmp_path / "home"
    shutil.copytree(full, folder, symlinks=True)
    return folder


@pytest.fixture(scope="module")
def whole(ldt, full, tmp_path_factory):
    """Gives a command's files, number of events and exit code where nothing comes in between."""
    known = {}

    def whole(name):
        if name not in known:
            folder = tmp_path_factory.mktemp("whole") / "home"
            shutil.copytree(full, folder, symlinks=True)
            outcome = ldt(*COMMANDS[name].split(), cwd=folder)
            known[name] = files(folder), outcome.events, outcome.code
        return known[name]

    return whole


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.parametrize(("name", "at", "how"), sample(CASES, 25))
def test_a_command_comes_to_the_same_files_after_any_fault(ldt, home, whole, name, at, how):
    wanted, events, code = whole(name)
    at = 1 + (at - 1) % len(events)
    fault = Fault(at=at, number=how) if how == "kill" else Fault(at=at, errno=how)
    fault = Fault(at=at, number=signal.SIGKILL) if how == "kill" else fault
    before = files(home)
    command = COMMANDS[name].split()
    first = ldt(*command, cwd=home, fault=fault)
    assert not first.bug, first.err
    left = files(home)
    # What is gone or there already need not be removed or made.
    optional = how != "kill" and events[at - 1].split()[0] in ("os.remove", "os.mkdir")
    assert first.code == CODES[how] or (optional and first.code == code)
    if first.code == code:
        assert {path: left[path] for path in wanted} == wanted
    else:
        assert before.items() <= left.items()
        if first.code > 0:
            assert not [path for path in left if ".tmp-" in path or ".lock" in path]
            assert first.err.splitlines()[-1].startswith("error: ")
        resumed = ["--resume"] * bool(left.get("a.jsonl.partial"))
        if not wanted.keys() <= left.keys():
            assert ldt(*command, *resumed, cwd=home).code == code
            assert files(home) == wanted


def plant_link(path, other):
    path.symlink_to(other.name)


def plant_second_name(path, other):
    os.link(other, path)


def plant_pipe(path, other):
    os.mkfifo(path)


def plant_folder(path, other):
    path.mkdir()


def plant_foreign(path, other):
    path.write_text("")
    os.chown(path, 4321, 4321)


@pytest.mark.parametrize("name", ["a.jsonl.partial", "a.jsonl.run.partial", "a.jsonl.lock.partial"])
@pytest.mark.parametrize(
    "plant", [plant_link, plant_second_name, plant_pipe, plant_folder, plant_foreign]
)
def test_what_is_planted_where_predict_writes_is_not_followed(ldt, home, name, plant):
    if plant is plant_foreign and os.geteuid():
        pytest.skip("only root makes files of other users")
    other = home / "text.txt"
    before = other.read_bytes()
    plant(home / name, other)
    outcome = ldt(*PREDICT, cwd=home, limit=30)
    assert other.read_bytes() == before
    assert outcome.code in (0, 2), outcome.err
    assert not outcome.bug
    if outcome.code:
        assert outcome.err.count("\n") == 1
        assert f"{name}: not a file that ldt has left" in outcome.err
    else:
        assert name != "a.jsonl.partial"  # the answers do not go where somebody else pointed
        assert (home / "a.jsonl").read_text().count("\n") == 12


def test_the_answers_before_a_planted_link_are_not_touched_on_resuming(ldt, home):
    link = home / "a.jsonl.partial"
    link.symlink_to("text.txt")
    before = (home / "text.txt").read_bytes()
    outcome = ldt(*PREDICT, "--resume", cwd=home)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert link.is_symlink()
    assert (home / "text.txt").read_bytes() == before


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("predict new.jsonl --model runs/done --output loop", "loop: a link that leads back to"),
        ("evaluate --format squad --gold gold.json --pred pred.json --json loop", "loop: a link"),
        ("evaluate characters --part eval --json loop", "loop: a link that leads back"),
        ("predict new.jsonl --model runs/done --output same", "same: this is the input"),
        ("predict pipe --model runs/done --output pipe", "pipe: this is the input"),
        ("evaluate characters --gold text.txt --json text.txt", "a file that is read"),
    ],
)
def test_loops_of_files_are_one_line(ldt, home, command, line):
    (home / "loop").symlink_to("loop")
    (home / "same").symlink_to("new.jsonl")
    os.mkfifo(home / "pipe")
    before = files(home)
    outcome = ldt(*command.split(), cwd=home, limit=30)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome.err
    assert line in outcome.err
    assert files(home) == before


@pytest.mark.parametrize("name", ["evaluate", "perplexity"])
def test_a_device_gets_a_result_and_stays_a_device(ldt, home, name):
    command = re.sub(r"\w.json$", "null", COMMANDS[name])
    (home / "null").symlink_to("/dev/null")
    assert ldt(*command.split(), cwd=home).code == 0
    assert os.readlink(home / "null") == "/dev/null"
    assert not os.path.isfile("/dev/null")


@pytest.mark.parametrize("size", sample([1500, 4096, 20000, 100000], 2))
@pytest.mark.parametrize("name", COMMANDS)
def test_a_limit_on_the_size_of_files_is_one_line(ldt, home, whole, name, size):
    wanted, _, code = whole(name)
    before = files(home)
    outcome = ldt(*COMMANDS[name].split(), cwd=home, fault=Fault(file_size=size))
    assert not outcome.bug, outcome.err
    assert outcome.code in (code, 6)
    if outcome.code == 6:
        assert "File too large" in outcome.err.splitlines()[-1]
        assert not [path for path in files(home).keys() - before.keys() if ".tmp-" in path]
    else:
        assert files(home) == wanted
