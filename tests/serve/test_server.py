"""The command: its address, its key, and how it ends."""

import json
import signal
import socket
import time

import pytest
from served import LONG
from typed import typed

pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
from serve_processes import Process  # noqa: E402
from serving import running  # noqa: E402

from ldt import system  # noqa: E402
from ldt.errors import UserError  # noqa: E402
from ldt.serve import server  # noqa: E402


def test_sigterm_lets_requests_end_and_exits_0(runs, tmp_path):
    gate, document = tmp_path / "gate", {"text": LONG * 4}
    with Process(runs("classification"), "--batch-tokens", 512, gate=gate) as here:
        with here.asking("POST", "/answer", document) as found:
            here.terminate()
            time.sleep(0.5)  # it looks ten times a second whether it may end
            status, body = here.ask("GET", "/health")
            assert status == 503
            assert json.loads(body) == {"error": "unhealthy", "error_type": "Unhealthy"}
            status, body = here.ask("POST", "/predict", {"inputs": "a"})
            assert (status, json.loads(body)["error_type"]) == (503, "Unhealthy")
            assert here.process.poll() is None
            assert not found
            gate.touch()
        assert found[0][0] == 200
        assert json.loads(found[0][1])["chunks"] > 20
        assert here.process.wait(30) == 0
        assert here.process.stderr.read() == ""


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(runs, tmp_path):
    with (
        Process(runs("classification"), gate=tmp_path / "never") as here,
        here.asking("POST", "/", {"inputs": "a"}),
    ):
        here.terminate()
        time.sleep(system.APART + 0.3)
        assert here.process.poll() is None
        here.process.send_signal(signal.SIGTERM)
        assert here.process.wait(10) == 143


@pytest.mark.slow
def test_what_has_no_end_is_left_behind_after_the_time_to_drain(runs, tmp_path):
    never = tmp_path / "never"
    with (
        Process(runs("classification"), "--drain-timeout", 0.2, gate=never) as here,
        here.asking("POST", "/", {"inputs": "a"}),
    ):
        here.process.send_signal(signal.SIGTERM)
        assert here.process.wait(30) == 0
        assert "stopped after 0.2 seconds with requests that had no answer" in (
            here.process.stderr.read()
        )


@pytest.mark.slow
def test_ctrl_c_drains_as_well_and_other_machines_need_the_key_of_the_environment(runs):
    with Process(runs("classification"), "--host", "0.0.0.0", LDT_API_KEY="s3cret") as here:
        given = {"Authorization": "Bearer s3cret"}
        assert here.ask("POST", "/predict", {"inputs": "a"})[:2] == (401, b"")
        assert here.ask("POST", "/predict", {"inputs": "a"}, given)[0] == 200
        assert here.ask("GET", "/health")[0] == 200
        here.process.send_signal(signal.SIGINT)
        assert here.process.wait(30) == 130


@pytest.mark.parametrize(
    "given",
    [None, "", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Basic secret", "secret"],
)
def test_without_the_key_there_is_no_answer(given, keyed):
    headers = {} if given is None else {"Authorization": given}
    for path in ("/info", "/openapi.json"):
        assert keyed.ask(path, headers=headers)[:2] == (401, b"")
    for path in ("/predict", "/answer", "/tokenize"):
        status, body, about = keyed.ask(path, {"inputs": "a"}, headers=headers)
        assert (status, body) == (401, b"")
        assert about["www-authenticate"] == "Bearer"


def test_with_the_key_there_is_one_under_any_host(keyed):
    headers = {"Authorization": "bearer secret", "Host": "models.example"}
    assert keyed.ask("/predict", {"inputs": "a"}, headers=headers)[0] == 200
    for path in ("/health", "/metrics", "/"):
        assert keyed.ask(path)[0] == 200


@pytest.fixture(scope="module")
def keyed(classifier):
    with running(classifier, key="secret") as here:
        yield here


@pytest.mark.parametrize(
    ("arguments", "environment", "line"),
    [
        (
            ["--host", "0.0.0.0"],
            {},
            "error: --host 0.0.0.0: other machines can reach it; --api-key-file FILE, or "
            "LDT_API_KEY, names the key that they must have",
        ),
        (["--host", "::"], {}, "error: --host ::: other machines"),
        ([], {"LDT_API_KEY": ""}, "error: LDT_API_KEY: a key is one word of ASCII characters"),
        (["--api-key-file", "missing"], {}, "error: --api-key-file missing: No such file"),
        (["--host", "host.invalid"], {"LDT_API_KEY": "k"}, "error: --host host.invalid --port"),
    ],
)
def test_what_cannot_be_served_is_one_line(arguments, environment, line, runs, cli):
    code, out, err = cli("serve", str(runs("classification")), *arguments, **environment)
    assert (code, out) == (2, "")
    assert err.startswith(line)
    assert err.count("\n") == 1


def test_a_port_that_is_taken_is_one_line(runs, cli):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, _, err = cli("serve", str(runs("classification")), "--port", str(port))
    assert code == 2
    assert err == f"error: --host 127.0.0.1 --port {port}: Address already in use\n"


def test_a_key_is_read_from_a_file(tmp_path):
    from ldt.cli.serve import _key

    file = tmp_path / "key"
    file.write_text("s3cret\n")
    assert _key(file) == "s3cret"
    for wrong in ("", "two words", "\u00e9", "a\x00"):
        file.write_text(wrong, "utf-8")
        with pytest.raises(UserError, match="--api-key-file"):
            _key(file)


@pytest.fixture
def cli(capfd, monkeypatch):
    """A function that runs a command here: (exit code, standard output, standard error)."""

    def run(*arguments, **environment):
        monkeypatch.delenv("LDT_API_KEY", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return typed(capfd, *arguments)

    return run


@pytest.mark.parametrize(
    ("host", "is_one"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.1", False),
    ],
)
def test_addresses_of_this_machine_alone(host, is_one):
    assert server.is_loopback(host) is is_one
