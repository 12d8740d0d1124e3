"""The files of examples/deploy fit together, and to the server: nothing is built here."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
ROOT = FOLDER.parents[1]
# Of text-embeddings-inference 1.9, whose names the server has.
COUNTERS = {f"te_request_{name}" for name in ("count", "success", "failure")}
COUNTERS |= {"te_predict_count", "te_predict_success"}
HISTOGRAMS = {
    f"te_{what}_{part}duration"
    for what in ("request", "predict")
    for part in ("", "tokenization_", "queue_", "inference_")
} | {"te_request_input_length", "te_batch_next_size", "te_batch_next_tokens"}
NAMES = {
    "te_queue_size",
    *COUNTERS,
    *(f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")),
}


def parsed(name):
    return yaml.safe_load((FOLDER / name).read_text("utf-8"))


def board():
    return json.loads((FOLDER / "grafana" / "ldt.json").read_text("utf-8"))


def instructions():
    """(word, rest) of each line of the Dockerfile."""
    text = (FOLDER / "Dockerfile").read_text("utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def test_every_metric_of_the_board_is_one_that_the_server_has():
    expressions = [target["expr"] for panel in board()["panels"] for target in panel["targets"]]
    found = set(re.findall(r"\bte_\w+", " ".join(expressions)))
    assert len(found) > 12
    assert found <= NAMES
    for expression in expressions:
        assert expression.count("(") == expression.count(")")
        for name in re.findall(r"rate\((\w+)\[", expression):
            assert name != "te_queue_size", "a gauge has no rate"


@pytest.mark.skipif(find_spec("ldt.serve.app") is None, reason="this version of ldt has no server")
def test_the_server_has_the_names_that_the_board_is_held_against():
    from ldt.serve.app import Metrics

    text = Metrics().text(0)
    assert {name for name in NAMES if f"# TYPE {re.sub('_(bucket|sum)$', '', name)} " in text}
    kinds = dict(re.findall(r"^# TYPE (te_\w+) (\w+)$", text, re.M))
    assert {name for name, kind in kinds.items() if kind == "histogram"} == HISTOGRAMS
    assert {name for name, kind in kinds.items() if kind == "counter"} == COUNTERS
    assert kinds["te_queue_size"] == "gauge"


def test_services_are_read_only_without_rights_and_on_this_machine_alone():
    compose = parsed("compose.yaml")
    for name, service in compose["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        assert set(service.get("secrets", ())) <= compose["secrets"].keys()
    ldt = compose["services"]["ldt"]
    assert ldt["read_only"] is True
    assert ldt["volumes"][0]["read_only"] is True
    assert (FOLDER / ldt["build"]["context"]).resolve() == ROOT
    assert (ROOT / ldt["build"]["dockerfile"]).is_file()


def test_files_that_are_mounted_are_there_and_targets_are_services():
    compose = parsed("compose.yaml")
    mounted = [
        volume.partition(":")[0]
        for service in compose["services"].values()
        for volume in service["volumes"]
        if isinstance(volume, str) and volume.startswith("./")
    ]
    assert len(mounted) == 4
    assert all((FOLDER / name).is_file() for name in mounted)
    (job,) = parsed("prometheus.yml")["scrape_configs"]
    host, _, port = job["static_configs"][0]["targets"][0].partition(":")
    assert host in compose["services"]
    assert compose["services"][host]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert parsed("grafana/datasources.yaml")["datasources"][0]["url"] == "http://prometheus:9090"


def test_the_image_copies_what_is_there_and_runs_as_nobody():
    lines = instructions()
    for word, rest in lines:
        if word == "COPY" and "--from" not in rest:
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources), rest
    words = [word for word, _ in lines]
    assert words.count("FROM") == 2
    assert dict(lines)["USER"] == "10001:10001"
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert "127.0.0.1:8080/health" in dict(lines)["HEALTHCHECK"]
    assert json.loads(dict(lines)["ENTRYPOINT"])[:2] == ["ldt", "serve"]


@pytest.mark.skipif(find_spec("ldt.cli.serve") is None, reason="this version has no ldt serve")
def test_the_options_of_the_image_are_those_of_ldt_serve():
    from inspect import signature

    from ldt.cli.serve import serve

    known = {f"--{name.replace('_', '-')}" for name in signature(serve).parameters}
    given = json.loads(dict(instructions())["ENTRYPOINT"]) + json.loads(dict(instructions())["CMD"])
    assert {word for word in given if word.startswith("--")} <= known
    text = (FOLDER / "README.md").read_text("utf-8")
    assert {"--api-key-file", "--runtime"} <= known & set(re.findall(r"--[a-z-]+", text))
