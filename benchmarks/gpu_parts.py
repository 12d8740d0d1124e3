"""Parts of the GPU suite: a training, the kernels' own tests, and what a dry run pretends."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

from ldt.bench import encoders
from ldt.bench.measure import medians

ROOT = Path(__file__).parents[1]
HELPERS = ROOT / "tests" / "helpers"
TEST_SECONDS = 150  # for the tests, most of which compile kernels
RECIPE = """
task: {name: classification}
model: {path: ./long}
data: {train: train.jsonl, eval: eval.jsonl}
training:
  output_dir: runs/gpu
  learning_rate: 1.0e-3
  per_device_train_batch_size: 8
  gradient_accumulation_steps: 1
  seed: 0
"""


def finetune(sizes):
    """Train a small classifier on contracts whose deciding clause stands far behind token 512."""
    sys.path.append(str(Path(__file__).parents[1] / "examples" / "demo"))
    from contracts import contracts
    from demo import make_small, write

    from ldt.convert import convert
    from ldt.recipe.recipe import load
    from ldt.training import train

    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        documents = contracts(range(sizes.documents), 0)
        write(Path("train.jsonl"), documents)
        write(Path("eval.jsonl"), contracts(range(10_000, 10_000 + sizes.documents // 4), 0))
        make_small(Path("small"), [document["text"] for document in documents], 0)
        convert("small", Path("long"), max_length=2048, window=128)
        Path("recipe.yaml").write_text(RECIPE, "utf-8")
        overrides = [f"training.num_train_epochs={sizes.epochs}"]
        start = time.perf_counter()
        metrics = train(load("recipe.yaml", overrides, command="finetune")).metrics
        found = json.loads(Path("runs/gpu/metrics.json").read_text("utf-8"))
        return {
            "documents": len(documents),
            "seconds": time.perf_counter() - start,
            "tokens_per_second": found["tokens_per_second"],
            "device": found["versions"]["device"],
            **metrics,
        }


def tests(sizes):
    """The tests of attention, whose kernels run on the GPU; a dry run has those that it skips.

    Returns:
        The line that sums them up, and the names of those that failed.
    """
    lacking = [name for name in ("pytest", "hypothesis") if find_spec(name) is None]
    if lacking:
        return {"left_out": f"not installed: {', '.join(lacking)}"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rf"]
    command += ["tests/attention"] if sizes.cuda else ["-m", "gpu", "tests/attention"]
    if sizes.cuda and find_spec("xdist"):
        command += ["-n", "8", "--dist", "loadfile"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TEST_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode(errors="replace")
        return {"cut_off": f"after {TEST_SECONDS} seconds", "output": output[-2000:]}
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()
    found = {"summary": lines[-1] if lines else "", "failed": failed}
    if done.returncode not in (0, 5) and not failed:  # 5: none was there to run
        found["failed"] = [f"pytest ended with {done.returncode}"]
    return found


def pretend():
    """Have Triton's kernels run on the CPU, as the tests do."""
    sys.path.append(str(HELPERS))
    import interpreted

    interpreted.install()


def recorded_row(captured, sizes):
    """A row of an encoder whose graph is recorded on the CPU, its kernels interpreted.

    Args:
        captured: `gpu.captured`.
    """
    from recorded import RecordedGraphs

    from ldt.model import graphs

    setting = sizes.setting(layers=1, window=16)
    lengths = [24, 9]
    model = encoders.build("triton", max(lengths), setting)
    batch = encoders.inputs("triton", lengths, setting)
    with patch.object(graphs, "LEAST", 32), patch.object(graphs, "SPARE", 16):
        run = captured(model, batch, RecordedGraphs())
        seconds = medians({"ldt as a recorded graph": run}, sizes.rounds)
    return {
        "tokens": max(lengths),
        "batch": len(lengths),
        "lengths": lengths,
        "pass": "forward",
        "seconds": seconds,
        "mib": {},
        "failed": {},
    }
