"""A server whose model is in several processes: its answers, and processes that die."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from served import LONG, assert_same, predicted
from served_workers import Fatal

for name in ("starlette", "uvicorn"):
    pytest.importorskip(name, reason=f"{name} is not installed")
from serve_processes import Process  # noqa: E402
from serving import running  # noqa: E402

from ldt.inference.executor import Seat  # noqa: E402
from ldt.serve import model  # noqa: E402
from ldt.serve.model import Served  # noqa: E402

TWO = [Seat("cpu", 1)] * 2
TEXTS = [LONG[: 11 * n] for n in range(1, 20)] + [LONG * 3, ""]


@pytest.fixture(scope="module")
def served(runs):
    """The server of a classifier in two processes, which die as `Fatal` has it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "ReplicaMaker", Fatal)
        made = Served(str(runs("classification")), places=TWO)
    with running(made) as here:
        yield here
    pids = processes()
    made.close()
    assert not any(map(psutil.pid_exists, pids))


def processes(parent=None):
    """Numbers of the processes that have a model, children of this one or another."""
    found = []
    for child in psutil.Process(parent).children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE and "spawn_main" in " ".join(child.cmdline()):
                found.append(child.pid)
        except psutil.Error:
            continue
    return found


def test_answers_are_those_of_predict_under_load(served, runs, tmp_path):
    records = [{"id": f"d{n}", "text": text} for n, text in enumerate(TEXTS)]
    expected = predicted(runs("classification"), records, tmp_path)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(2):
            replies = pool.map(lambda record: served.ask("/answer", record), records)
            for (status, found, _), right in zip(replies, expected, strict=True):
                assert status == 200, found
                assert_same(found | {"chunks": 0}, right | {"chunks": 0})


@pytest.mark.parametrize("options", [{"passages": 2}, {"chunks": True}, {"raw_scores": True}])
def test_processes_explain_and_take_the_options_of_a_request(options, served, runs, tmp_path):
    record = {"id": "a", "text": LONG}
    (right,) = predicted(runs("classification"), [record], tmp_path, **options)
    status, found, _ = served.ask("/answer", record | options)
    assert status == 200
    assert_same(found, right)
    status, found, _ = served.ask("/answer", record | {"n_best": 3})
    assert (status, found["error_type"]) == (422, "Validation")


@pytest.mark.slow
def test_a_process_that_dies_is_replaced_and_its_batch_is_run_again(served, tmp_path, caplog):
    before = set(processes())
    assert len(before) == 2
    status, found, _ = served.ask("/answer", {"id": f"once {tmp_path / 'mark'}", "text": LONG})
    assert status == 200
    assert found["chunks"] > 10
    (line,) = caplog.messages
    assert line.startswith("input 1: a worker process was ended by SIGKILL; another one takes its")
    after = set(processes())
    assert len(after) == 2
    assert len(before & after) == 1
    # One that dies while it has nothing to do.
    os.kill(min(after), signal.SIGKILL)
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda text: served.ask("/predict", {"inputs": text}), TEXTS))
    assert {status for status, *_ in replies} == {200}


@pytest.mark.slow
def test_a_second_death_fails_the_requests_of_its_batch_alone(served, caplog):
    before = len(processes())
    status, found, _ = served.ask("/answer", {"id": "die", "text": "the parties agree."})
    assert status == 500
    assert found == {
        "error": "two processes with the model, one after the other, have died with this request",
        "error_type": "Inference",
    }
    assert "input 1: two worker processes, one after the other, have died" in caplog.text
    assert "Traceback" not in caplog.text
    text = served.ask("/metrics")[1].decode()
    assert 'te_request_failure{err="inference"} 1' in text
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda text: served.ask("/predict", {"inputs": text}), TEXTS * 2))
    assert {status for status, *_ in replies} == {200}
    assert served.ask("/health")[0] == 200
    assert len(processes()) == before == 2


@pytest.mark.slow
def test_a_model_that_cannot_be_used_is_an_error_at_the_start(runs, tmp_path):
    import shutil

    from ldt.errors import UserError

    folder = shutil.copytree(runs("classification"), tmp_path / "run")
    (folder / "model.safetensors").write_bytes(b"no weights")
    before = set(processes())
    with pytest.raises(UserError):
        Served(str(folder), places=TWO)
    assert set(processes()) == before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_and_no_memory_stays_behind(number, runs):
    shared = set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()
    with Process(runs("classification"), "--workers", 2) as here:
        children = psutil.Process(here.process.pid).children(recursive=True)
        assert len(processes(here.process.pid)) == 2
        with here.asking("POST", "/answer", {"text": LONG * 10}) as found:
            time.sleep(0.3)
            here.process.send_signal(number)
        assert here.process.wait(60) == (0 if number == signal.SIGTERM else -9)
        assert psutil.wait_procs(children, 30)[1] == []
        if number == signal.SIGTERM:
            status, body = found[0]
            assert status == 200
            json.loads(body)
            assert here.process.stderr.read() == ""
    if shared:
        assert set(os.listdir("/dev/shm")) <= shared
