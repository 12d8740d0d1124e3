"""Label Studio's own server takes what ldt exports and gives back what ldt reads.

``pip install label-studio`` into an environment of its own, and name its command in LABEL_STUDIO.
"""

import itertools
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ldt.benchmarks.formats import read
from ldt.data.options import DataSection
from ldt.inference import label_tools
from ldt.io import records

COMMAND = os.environ.get("LABEL_STUDIO") or shutil.which("label-studio")
TOKEN = "0123456789abcdef0123456789abcdef01234567"
PLANTED = ["😀", "👨‍👩‍👧‍👦", "🇫🇷", "Cafe\u0301", "𝐀", "\r\n\r\n", "\n  \t", "\u2028", '<b>"&']

pytestmark = pytest.mark.skipif(
    not COMMAND, reason="Label Studio is not installed; LABEL_STUDIO names its command"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Asks a Label Studio on the loopback: a path and what to send -> what it answers."""
    folder = tmp_path_factory.mktemp("label-studio")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "LABEL_STUDIO_BASE_DATA_DIR": str(folder),
        "LABEL_STUDIO_ENABLE_LEGACY_API_TOKEN": "true",
        "COLLECT_ANALYTICS": "0",
    }
    environment.pop("PYTHONPATH", None)
    where = ["--internal-host", "127.0.0.1", "--port", str(port), "--no-browser"]
    user = ["--username", "a@example.com", "--password", "a-password", "--user-token", TOKEN]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [COMMAND, "start", *where, *user], env=environment, stdout=output, stderr=output
        )

    def ask(path, body=None):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Token {TOKEN}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()

    try:
        for _ in range(180):
            try:
                ask("/health")
                break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None, log.read_text()[-2000:]
                time.sleep(1)
        yield ask
    finally:
        process.terminate()
        process.wait(30)


def planted(number, words):
    """An answer for words with what is hard to count between them, some of it in entities."""
    text, entities = "", []
    for place, word in enumerate(words):
        start = len(text)
        text += word
        if place % 7 == 0:
            text += PLANTED[(number + place) % len(PLANTED)]
        if place % 21 == 0:
            text += "Ltd."
            found = {"start": start, "end": len(text), "text": text[start:]}
            entities.append(found | {"label": f"L{place % 2}"})
        text += " "
    return {"id": f"contract-{number}", "text": text, "entities": entities}


def test_offsets_come_back_through_the_server(server, tmp_path):
    check(
        server, tmp_path, [planted(n, f"Clause {n} is binding. ".split() * 50) for n in range(50)]
    )


def test_offsets_of_contracts_come_back(server, tmp_path, shared_data):
    examples = records.read(shared_data / "cuad" / "cuad.train.jsonl.gz")
    texts = [example.fields["text"] for example in itertools.islice(examples, 50)]
    check(server, tmp_path, [planted(n, text.split(" ")) for n, text in enumerate(texts)])


def check(server, tmp_path, made):
    """Export answers, accept all that Label Studio imported, and read its export."""
    answers, target = tmp_path / "answers.jsonl", tmp_path / "tasks.json"
    answers.write_text("".join(json.dumps(each) + "\n" for each in made), encoding="utf-8")
    tasks, interface = label_tools.export(str(answers), "label-studio", target)
    config = Path(interface).read_text("utf-8")
    project = json.loads(server("/api/projects", {"title": "contracts", "label_config": config}))[
        "id"
    ]
    server(f"/api/projects/{project}/import", json.loads(tasks.read_text("utf-8")))
    listed = server(f"/api/tasks?project={project}&page_size=100&fields=all")
    for task in json.loads(listed)["tasks"]:
        (prediction,) = task["predictions"]
        server(f"/api/tasks/{task['id']}/annotations", {"result": prediction["result"]})
    export = tmp_path / "export.json"
    exported = server(f"/api/projects/{project}/export?exportType=JSON")
    export.write_text(exported, encoding="utf-8")
    found = list(read(str(export), DataSection.model_validate({"format": "label-studio"})))
    by_id = {example.id: example.fields for example in found}
    assert len(by_id) == 50
    for each in made:
        assert by_id[each["id"]]["text"] == each["text"]
        assert by_id[each["id"]]["entities"] == each["entities"]
