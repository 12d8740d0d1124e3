"""How much the server takes, how long, and of whom: slow callers, too many, and those who leave."""

import socket
import threading

import pytest

pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
from serve_processes import until  # noqa: E402
from serving import post, running  # noqa: E402

from ldt.serve import server  # noqa: E402
from ldt.serve.limits import ServerLimits  # noqa: E402
from ldt.serve.model import Served  # noqa: E402

ONE = post("/predict", b'{"inputs": "a"}')
PART = post("/predict", b'{"inp', "Content-Length: 15")


def test_a_head_that_comes_a_letter_at_a_time_is_cut_off(classifier, monkeypatch):
    monkeypatch.setattr(server, "IDLE", 1)
    with running(classifier) as other:
        with socket.create_connection(("127.0.0.1", other.port), timeout=0.1) as connection:
            for _ in range(300):  # 30 seconds
                try:
                    connection.sendall(b"X")
                    if connection.recv(1) == b"":
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
            else:
                raise AssertionError("still open")
        assert other.ask("/predict", {"inputs": "a"})[0] == 200


def test_slow_callers_do_not_hold_up_others(serve):
    here = serve("classification")
    slow = []
    for _ in range(50):
        slow.append(socket.create_connection(("127.0.0.1", here.port), timeout=30))
        slow[-1].sendall(PART)
    assert here.ask("/predict", {"inputs": "a"})[0] == 200
    for each in slow:
        each.close()


class Held:
    """A model that waits until it may go on."""

    def __init__(self, served):
        self.right, self.go, self.begun = served.predictor.outputs, threading.Event(), 0

    def __call__(self, features):
        self.begun += 1
        assert self.go.wait(60)
        return self.right(features)


@pytest.fixture
def held(runs):
    """A server whose model waits, and what lets it go on."""
    served = Served(str(runs("classification")))
    model = Held(served)
    served.predictor.outputs = model
    with running(served, ServerLimits(places=4, documents=4, body=1000, bodies=2500)) as server:
        yield server, model
        model.go.set()


def test_more_than_it_takes_is_told_at_once(held):
    here, model = held
    found = []
    asking = [
        threading.Thread(target=lambda: found.append(here.ask("/predict", {"inputs": "a"})[0]))
        for _ in range(4)
    ]
    for each in asking:
        each.start()
    until(lambda: here.app.scheduler.unanswered == 4)
    assert "te_queue_size 4" in here.ask("/metrics")[1].decode().splitlines()
    status, said, _ = here.ask("/predict", {"inputs": "a"})
    assert (status, said["error_type"]) == (429, "Overloaded")
    assert "4 of 4 places are taken" in said["error"]
    assert here.ask("/health")[0] == 200
    model.go.set()
    for each in asking:
        each.join()
    assert found == [200] * 4
    assert here.ask("/predict", {"inputs": [["a"]] * 4})[0] == 200
    assert 'te_request_failure{err="overloaded"} 1' in here.ask("/metrics")[1].decode()


def test_bodies_that_are_here_have_a_size_together(held):
    here, model = held
    threads = [
        threading.Thread(target=here.ask, args=("/predict", {"inputs": "a " * 450}))
        for _ in range(2)
    ]
    for each in threads:
        each.start()
    until(lambda: here.app.scheduler.unanswered == 2)
    status, said, _ = here.ask("/predict", {"inputs": "a " * 450})
    assert (status, said["error_type"]) == (429, "Overloaded")
    model.go.set()
    for each in threads:
        each.join()
    assert here.app.door._bytes == 0


def test_callers_that_leave_free_their_place_and_are_not_answered(held):
    here, model = held
    gone = []
    for _ in range(4):
        gone.append(socket.create_connection(("127.0.0.1", here.port), timeout=30))
        gone[-1].sendall(ONE)
    until(lambda: here.app.scheduler.unanswered == 4)
    for each in gone:
        each.close()
    until(lambda: here.app.scheduler.unanswered == 0)
    begun = model.begun
    model.go.set()
    assert here.ask("/predict", {"inputs": "a"})[0] == 200
    assert model.begun == begun + 1  # those that waited were not run
    assert 'te_request_failure{err="dropped"} 4' in here.ask("/metrics")[1].decode()


def test_where_one_document_fails_nobody_waits_for_the_others(held):
    here, model = held
    status, said, _ = here.ask("/answer", {"documents": [{"text": "a"}, {"text": 1}]})
    assert (status, said["error_type"]) == (422, "Validation")
    until(lambda: here.app.scheduler.unanswered == 0)  # though the model is not let go on


def test_a_request_has_a_time(runs):
    served = Served(str(runs("classification")))
    model = Held(served)
    served.predictor.outputs = model
    with running(served, ServerLimits(seconds=0.3)) as here:
        status, said, _ = here.ask("/predict", {"inputs": "a"})
        assert (status, said["error_type"]) == (503, "Overloaded")
        assert here.app.scheduler.unanswered == 0
        model.go.set()
        until(lambda: here.ask("/predict", {"inputs": "a"})[0] == 200)


def test_numbers_that_are_not_finite_are_424_and_bugs_say_nothing(runs, caplog):
    served = Served(str(runs("classification")))
    right = served.predictor.outputs

    def wrong(features):
        found = right(features)
        for each in found:
            each["logits"] = each["logits"] * float("nan")
        return found

    with running(served) as here:
        served.predictor.outputs = wrong
        status, said, _ = here.ask("/predict", {"inputs": "a"})
        assert (status, said["error_type"]) == (424, "Backend")
        assert "not finite" in said["error"]

        def bug(features):
            raise RuntimeError(f"secret of {runs('classification')}")

        served.predictor.outputs = bug
        status, said, _ = here.ask("/predict", {"inputs": "a"})
        assert (status, said["error_type"]) == (424, "Backend")
        assert "secret" not in str(said)
        assert "RuntimeError: secret of" in caplog.text  # for who runs the server
        served.predictor.outputs = right
        assert here.ask("/predict", {"inputs": "a"})[0] == 200
