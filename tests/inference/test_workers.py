"""Groups answered by several processes; most of them have a model that imports no torch."""

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from classified import lines_of, make_run, write
from streaming import Sink, answer_all
from worker_models import Lengths, Other, documents

from ldt.attention import matmul
from ldt.errors import ResourceError, UserError
from ldt.inference import engine
from ldt.inference import executor as module
from ldt.inference.agreement import PrecisionCheck
from ldt.inference.engine import ModelMaker, read_recipe
from ldt.inference.executor import Seat, Workers
from ldt.inference.options import PredictOptions
from ldt.inference.predict import predict
from ldt.inference.stream import Answering
from ldt.io.records import Example

TWO = [Seat("cpu", 1)] * 2
HELPERS = str(Path(__file__).parents[1] / "helpers")


def alone(records, **options):
    """The groups that one process writes, and what it counts."""
    sink = Sink()
    counts = answer_all(records, Lengths("."), sink, batch_tokens=8, **options)
    return sink.groups, counts


def told(counts):
    return counts.documents, counts.chunks, counts.tokens, counts.labels


@pytest.fixture
def sink():
    return Sink()


@pytest.fixture(params=[False, True], ids=["fresh", "forked"])
def can_fork(request, monkeypatch):
    """Whether processes go on from this one; those of these tests use no torch."""
    monkeypatch.setattr(module, "can_fork", lambda: request.param)


@pytest.fixture
def answered(tmp_path, sink, can_fork):
    """Answers records by two processes; returns what they count."""

    def answer(records, *, seats=TWO, begin="", **options):
        with Workers([Lengths(str(tmp_path), begin)] * len(seats), seats) as workers:
            workers.start()
            workers.load(workers.settings())
            return answer_all(
                records, Lengths("."), sink, batch_tokens=8, executor=workers, **options
            )

    yield answer
    assert gone(begun(tmp_path))


def begun(folder):
    """The processes that have begun."""
    return [int(path.name[4:]) for path in folder.glob("pid-*")]


def gone(pids):
    """True once all of the processes have ended."""
    deadline = time.monotonic() + 60
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))


def nothing_left(group):
    """True once all processes of a group have ended."""
    deadline = time.monotonic() + 60
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.02)
    return time.monotonic() < deadline


def alive(pid):
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_several_processes_give_the_groups_of_one_in_their_order(answered, sink, log, tmp_path):
    counts = answered(documents(300, n1="await", n20="mark"))  # 20 is of the third group
    groups, expected = alone(documents(300))
    assert (sink.groups, told(counts)) == (groups, told(expected))
    assert len(begun(tmp_path)) == 2
    assert log.messages.count("each warns") == 1


def test_a_worker_has_its_threads_and_processors_and_heeds_no_signal_of_the_terminal(
    tmp_path, can_fork, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("ldt"), "handlers", [logging.NullHandler()])
    (first, *_) = sorted(os.sched_getaffinity(0))
    with Workers([Lengths(str(tmp_path))], [Seat("cpu", 3, frozenset([first]))]) as workers:
        workers.start()
        found = workers.settings()
        memory = workers.memory
    files = found.pop("files")
    assert found == {"threads": ["3", "3"], "processors": [first], "heard": [], "handlers": 1}
    assert (files[0], files[1], files[memory]) == ("/dev/null", files[2], "/memfd:ldt (deleted)")


def test_a_group_whose_worker_dies_is_answered_by_a_fresh_one(answered, sink, log):
    counts = answered(documents(300, n49="nap", n50="die once", n90="die once"))
    groups, expected = alone(documents(300))
    assert (sink.groups, told(counts)) == (groups, told(expected))
    assert [line for line in log.messages if "SIGKILL" in line] == [
        f"docs.jsonl:{first}: a worker process was ended by SIGKILL; another one takes its place "
        f"and its 7 documents from id {first} on"
        for first in (49, 84)
    ]


def test_documents_that_no_worker_survives_are_named_and_the_answers_before_them_kept(
    answered, sink
):
    with pytest.raises(ResourceError) as error:
        answered(documents(300, n50="die"))
    assert str(error.value).startswith(
        "docs.jsonl:49: two worker processes, one after the other, have died with the 7 documents "
        "from id 49 on; the last one was ended by SIGKILL; "
    )
    assert sink.ids() == list(range(1, 49))


@pytest.mark.slow
def test_one_that_computes_may_take_any_time_and_one_that_stands_still_may_not(
    answered, sink, log, monkeypatch
):
    monkeypatch.setattr(module, "PATIENCE", 2)
    answered(documents(100, n10="count a while", n50="stop once"))
    (line,) = [line for line in log.messages if "worker" in line]
    assert "49: a worker process did not get on for 2 s and was ended; another" in line
    assert sink.ids() == list(range(1, 101))


def test_workers_that_die_before_they_have_a_model_end_the_run(answered, sink):
    with pytest.raises(ResourceError, match="two worker .* have died before they had the model"):
        answered(documents(10), begin="die")
    assert sink.groups == []


def test_one_that_dies_before_it_has_a_model_is_replaced(answered, sink):
    answered(documents(100), begin="die once")
    assert sink.groups == alone(documents(100))[0]


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("fail", ZeroDivisionError, "document 50"),
        ("odd", AttributeError, "pickle"),
        ("foreign", RuntimeError, "ForeignError: two words"),
    ],
)
def test_an_error_in_a_worker_is_raised_here_after_the_answers_before_it(
    answered, sink, what, kind, words
):
    with pytest.raises(kind, match=words) as error:
        answered(documents(100, n50=what))
    assert "in a worker process:\nTraceback" in error.value.__notes__[0]
    assert sink.ids() == list(range(1, 49))


def test_the_first_200_answers_are_compared_where_the_models_are(answered, sink):
    found, expected = [], []
    answered(documents(500, n100="die once"), agreement=PrecisionCheck(None, 0.1, found.append))
    exact = PrecisionCheck(Other("."), 0.1, expected.append)
    assert sink.groups == alone(documents(500), agreement=exact)[0]
    assert found == expected == [{"documents": 200, "changed": 20}]


PARENT = """
import sys
sys.path.insert(0, sys.argv[1])
from worker_models import Lengths, documents
from ldt.inference import executor
from ldt.inference.answer_file import AnswerStream
from ldt.inference.executor import Seat, Workers
from streaming import answer_all
if sys.argv[4:]:
    executor.can_fork = bool
workers = Workers([Lengths(sys.argv[2])] * 2, [Seat("cpu", 1)] * 2).__enter__()
workers.start()
workers.load(workers.settings())
records = documents(40, n1=sys.argv[3], n20=sys.argv[3])
sink = AnswerStream(sys.stdout.buffer)
answer_all(records, Lengths("."), sink, batch_tokens=8, executor=workers)
"""


def test_a_script_ends_that_has_no_main_part_and_leaves_no_context(tmp_path):
    """Its fresh workers do not run it again, nor import modules of the current folder."""
    for name, text in ("socket", "raise SystemExit"), ("folder/script", PARENT):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "folder/script.py", HELPERS, str(tmp_path), "die once"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    parent = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **streams)
    try:
        out, said = parent.communicate(timeout=120)
    finally:
        parent.kill()
    assert said.count(b"was ended by SIGKILL") == 2
    assert [json.loads(line)["id"] for line in out.splitlines()] == list(range(1, 41))
    assert nothing_left(parent.pid)


@pytest.mark.parametrize("what", [["sleep"], ["count"], ["count", "fresh"]], ids=" ".join)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_its_parent_whatever_it_is_doing(tmp_path, number, what):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, HELPERS, str(tmp_path), *what],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A job in the background ignores SIGINT, and so would all that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("act-*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert [alive(pid) for pid in begun(tmp_path)] == [True] * 2
        if number == signal.SIGINT:
            os.killpg(parent.pid, number)  # as a terminal sends it to all
        else:
            parent.kill()
        _, said = parent.communicate(timeout=60)
    finally:
        parent.kill()
    assert "worker process" not in said
    assert said.count("Traceback") == (number == signal.SIGINT)  # of the script
    assert nothing_left(parent.pid)


# -- the models of runs


@pytest.fixture
def one_library(monkeypatch):
    """For the same answers in each run, whichever library the clock would choose."""
    monkeypatch.setenv("LDT_ONEDNN", "0")


@pytest.mark.parametrize(
    ("precision", "explained"),
    [
        ("fp32", {"passages": 2, "passages_by": "occlusion", "chunks": True}),
        ("bf16", {}),
        ("int8", {}),
    ],
)
def test_a_model_that_was_sent_answers_as_the_one_here(
    fine_tuned, precision, explained, monkeypatch, one_library
):
    options = {"raw_scores": True, "device": "cpu", "batch_tokens": 256} | explained
    run = ModelMaker(fine_tuned, read_recipe(fine_tuned), PredictOptions.of(options))
    lines = enumerate(map(json.loads, lines_of(12)), 1)
    examples = [Example(line, line["name"], f"docs.jsonl:{n}") for n, line in lines]
    inputs = run.inputs()
    group = [(example, inputs.encode(example)) for example in examples]
    compared = 5 if precision == "int8" else 0
    model, exact = run.predictor(precision)
    (here,) = Answering(model, 256, exact).put(group, compared)
    sent, documents_sent = pickle.loads(pickle.dumps((run, group)))
    products = {kind: not taken for kind, taken in matmul.choices().items()}
    with ExitStack() as stack:
        monkeypatch.setattr(engine, "_stack", stack)
        assert sent.settings() == {"precision": "fp32", "arithmetic": matmul.choices()}
        sent.load({"precision": precision, "arithmetic": products})
        assert matmul._chosen == products
    with ExitStack() as stack:
        monkeypatch.setattr(engine, "_stack", stack)
        answers = sent.load(sent.settings() | {"precision": precision})
        assert answers(documents_sent, compared) == here
    assert len(here.exact) == compared
    assert inputs.max_length == model.max_length


@pytest.mark.slow
def test_a_model_that_no_worker_can_load_is_the_error_of_one_process(tmp_path, tiny_longformer):
    make_run(tiny_longformer, tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").write_bytes(b"no weights")
    source = write(tmp_path / "docs.jsonl", lines_of(3))
    errors = []
    for workers in (1, 2):
        with pytest.raises(UserError) as error:
            predict(source, model=str(tmp_path / "run"), device="cpu", workers=workers)
        errors.append((type(error.value), str(error.value)))
    assert errors[0] == errors[1]
