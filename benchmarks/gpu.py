"""The GPU suite: correctness and speed of the kernels, costs of the host, whole encoders, tests.

    python benchmarks/gpu.py                    # on a CUDA GPU, at most 480 s
    python benchmarks/gpu.py --rest --seconds 300   # what an earlier run left out
    python benchmarks/gpu.py --only right sweep chosen
    python benchmarks/gpu.py --dry-run          # the same on the CPU, tiny, to try the suite itself

Each job is a process of its own with a time limit: one that crashes or hangs loses nothing but
itself, and becomes a row. Every row is a line of OUT/gpu-rows.jsonl, on the disk as soon as it is
there; at the end the rows are merged by job into OUT/gpu-NAME.json, NAME being that of the GPU
(`--merge` does so for the rows of a run that was killed). OUT is benchmarks/results, of a dry run a
temporary folder unless --out names one; its figures mean nothing, for kernels are interpreted.

Peers that were timed before on the same GPU with the same torch are taken from the results. Exit
code 1 where a row is wrong or failed. Needs torch, transformers, typer, rich, pyyaml and pydantic,
for the tests pytest and hypothesis, and no network.
"""

import argparse
import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

# Children get what the parent has imported, and the GPU must be theirs alone: asked for by CUDA in
# the parent, it would be of no use to them.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
if "--dry-run" in sys.argv:  # before anything imports Triton
    os.environ["TRITON_INTERPRET"] = "1"

import gpu_jobs
import torch
from gpu_jobs import FULL, TINY
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
HELPERS = Path(__file__).parents[1] / "tests" / "helpers"
SECONDS = 480  # of a run
TAIL = 15  # lines that a process that died left behind
console = Console()
fork = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Step:
    """Jobs of one kind, `wide` of them at a time."""

    name: str
    jobs: object
    wide: int = 1


# Stages, one after the other; the steps of a stage run side by side.
STAGES = (
    (Step("facts", gpu_jobs.facts),),
    (Step("right", gpu_jobs.right, 6), Step("compile", gpu_jobs.compiled, 8)),
    (Step("launch", gpu_jobs.launch),),
    (Step("kernels", gpu_jobs.kernels),),
    (Step("sweep", gpu_jobs.sweep),),
    (Step("chosen", gpu_jobs.chosen, 4),),
    (Step("encoder", gpu_jobs.encoder),),
    (
        Step("tests", gpu_jobs.tests),
        Step("finetune", gpu_jobs.finetune),
        Step("others", gpu_jobs.others, 2),
    ),
    (Step("reach", gpu_jobs.reach),),
)
NAMES = [step.name for stage in STAGES for step in stage]


@dataclass
class Run:
    """One call of the suite: where rows go, and until when."""

    sizes: object
    out: Path
    end: float
    about: dict
    known: set = field(default_factory=set)  # (step, job) that earlier results have

    @property
    def file(self):
        return self.out / "gpu-rows.jsonl"

    def write(self, step, job, row):
        """A row of a job, on the disk when this returns."""
        line = json.dumps({"step": step, "job": job, **row, **self.about}, default=str)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rows(self):
        """The rows so far."""
        return read(self.file)

    def stage(self, steps, only):
        """Run the jobs of steps, each as wide as it may be."""
        waiting = {}
        for step in (step for step in steps if step.name in only):
            jobs = step.jobs(self.sizes, self.rows())
            waiting[step] = [job for job in jobs if (step.name, job.name) not in self.known]
        running = []
        while running or any(waiting.values()):
            for step, jobs in waiting.items():
                while jobs and sum(child.step is step for child in running) < step.wide:
                    job = jobs.pop(0)
                    if time.monotonic() > self.end:
                        self.write(step.name, job.name, {"left_out": "the time of the run is over"})
                    else:
                        running.append(Child(self, step, job))
            time.sleep(0.05)
            running = [child for child in running if not child.ended()]


class Child:
    """The process of a job."""

    def __init__(self, run, step, job):
        self.run, self.step, self.job = run, step, job
        self.begin = time.monotonic()
        self.end = min(self.begin + job.seconds, run.end + 20)  # a started job may end
        self.said = tempfile.TemporaryFile()  # noqa: SIM115, its output, read when it has ended
        self.process = fork.Process(target=self._work)
        self.process.start()

    def _work(self):
        os.setsid()
        for stream in (1, 2):
            os.dup2(self.said.fileno(), stream)
        self.run.about["clocks"] = gpu_jobs.smi("clocks.sm", "clocks.max.sm")
        try:
            for row in self.job.run():
                self.run.write(self.step.name, self.job.name, row)
        except BaseException as error:
            traceback.print_exc()
            why = f"{type(error).__name__}: {str(error)[:500]}"
            self.run.write(self.step.name, self.job.name, {"failed": why, "tail": self._tail()})
            os._exit(1)
        os._exit(0)  # what CUDA does at the end of a process may hang

    def ended(self):
        """True when the process is gone, and its last row is written."""
        code, late = self.process.exitcode, time.monotonic() > self.end
        if code is None and not late:
            return False
        seconds = time.monotonic() - self.begin
        row = {"done": code == 0, "seconds": round(seconds, 1)}
        if code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.join()
            row |= {"failed": f"killed after {seconds:.0f} s", "tail": self._tail()}
        elif code < 0:
            row |= {"failed": f"died of {signal.Signals(-code).name}", "tail": self._tail()}
        elif code > 1:
            row |= {"failed": f"ended with {code}", "tail": self._tail()}
        self.run.write(self.step.name, self.job.name, row)
        self.said.close()
        mark = "" if row["done"] else f"[bold red]{row.get('failed', 'failed')}[/]"
        console.print(f"{self.step.name}: {self.job.name}: {seconds:.0f} s", mark)
        return True

    def _tail(self):
        self.said.seek(0)
        return self.said.read().decode(errors="replace").splitlines()[-TAIL:]


def read(file):
    """The rows of a file of JSON lines, whose last one may be cut off."""
    rows = []
    if file.exists():
        for line in file.read_text("utf-8").splitlines():
            with suppress(json.JSONDecodeError):
                rows.append(json.loads(line))
    return rows


def finished(rows, gpu, peers_of=None):
    """(step, job) of the rows that ended well on a GPU.

    Args:
        peers_of: a version of torch; only jobs of that one count.
    """
    return {
        (row["step"], row["job"])
        for row in rows
        if row.get("done") and row["gpu"] == gpu and peers_of in (None, row["torch"])
    }


def merge(rows, folder):
    """Rows of a run in the results of their GPU, in place of earlier ones of the same job."""
    for gpu in {row["gpu"] for row in rows}:
        file = results_of(gpu, folder)
        new = [row for row in rows if row["gpu"] == gpu and "left_out" not in row]
        jobs = {(row["step"], row["job"]) for row in new}
        kept = [row for row in known(gpu, folder) if (row["step"], row["job"]) not in jobs]
        lines = ",\n".join(json.dumps(row) for row in kept + new)
        file.write_text(f'{{"gpu": {json.dumps(gpu)}, "rows": [\n{lines}\n]}}\n', "utf-8")
        console.print(f"{file}: {len(new)} rows of this run, {len(kept)} of earlier ones")


def known(gpu, *folders):
    """The rows of earlier runs on a GPU, of the first folder that has any."""
    for folder in folders:
        file = results_of(gpu, folder)
        if file.exists():
            return json.loads(file.read_text("utf-8"))["rows"]
    return []


def results_of(gpu, folder):
    """The file of a GPU's results."""
    slug = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).removeprefix("nvidia-").strip("-")
    return folder / f"gpu-{slug}.json"


def bad(rows):
    """Rows that are wrong, or of what failed."""
    return [row for row in rows if row.get("ok") is False or "failed" in row]


def show(rows, dry):
    """Print figures by step, the tiles that won, and what is bad."""
    title = "DRY RUN, figures mean nothing" if dry else rows[0]["gpu"]
    table = Table("step", "what", "tokens", "pass", "dropout", "figures", title=title)
    for row in rows:
        figures = {key: row[key] for key in row if key in FIGURES}
        if figures:
            where = (str(row.get(key, "")) for key in ("tokens", "pass", "dropout"))
            text = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
            table.add_row(
                row["step"], str(row.get("what", row.get("tile", row["job"]))), *where, text
            )
    console.print(table)
    for row in (row for row in rows if row["step"] == "chosen" and "tile" in row):
        gain = 1 - row["ms"] / row["table_ms"]
        verdict = f"{gain:.0%} faster, {'right' if row['ok'] else 'WRONG'}"
        console.print(f"{row['kernel']}, dropout {row['dropout']}: {row['tile']}: {verdict}")
    checked = [row for row in rows if "operation" in row]
    console.print(f"right: {sum(row['ok'] for row in checked)} of {len(checked)}")
    for row in rows:
        if "summary" in row:
            console.print("tests:", row["summary"])
        if "left_out" in row:
            console.print(f"left out: {row['step']}: {row['job']}")
    for row in bad(rows):
        brief = {key: value for key, value in row.items() if key != "tail"}
        console.print("[bold red]bad[/]", brief, markup=True)
        for line in row.get("tail", []):
            console.print("   ", line, markup=False)


FIGURES = {"ms", "tflops", "wall_ms", "enqueue_ms", "busy_ms", "kernels", "mib", "wall_us"}
FIGURES |= {"thread_us", "tokens_per_second"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--rest", action="store_true", help="jobs that the results do not have")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="after which none begins")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--merge", type=Path, help="a file of rows to merge; nothing is run")
    args = parser.parse_args()
    if args.merge:
        return merge(read(args.merge), args.out or RESULTS)
    name = (gpu_jobs.smi("name") or ["none"])[0]
    if name == "none" and not args.dry_run:
        sys.exit("no CUDA device here; --dry-run tries the suite on the CPU")
    if args.dry_run:
        name = "none"
        sys.path.append(str(HELPERS))
        import interpreted

        interpreted.install()
    with tempfile.TemporaryDirectory() as temporary:
        out = args.out or (Path(temporary) if args.dry_run else RESULTS)
        out.mkdir(parents=True, exist_ok=True)
        run = Run(TINY if args.dry_run else FULL, out, time.monotonic() + args.seconds, {})
        run.about = {"gpu": name, **versions()}
        earlier = known(name, out, RESULTS)
        run.known = finished(earlier, name) if args.rest else set()
        every = [job for stage in STAGES for step in stage for job in peers(step, run.sizes)]
        run.known |= finished(earlier, name, torch.__version__) & set(every)
        run.file.unlink(missing_ok=True)
        try:
            for stage in STAGES:
                run.stage(stage, args.only)
        finally:
            rows = run.rows()
            merge(rows, out)
            show(rows, args.dry_run)
    sys.exit(1 if bad(rows) else 0)


def peers(step, sizes):
    """(step, job) of a step's jobs that time other libraries alone."""
    return [(step.name, job.name) for job in step.jobs(sizes, []) if job.peer]


def versions():
    """What figures depend on besides the GPU."""
    from importlib import metadata

    found = {"date": time.strftime("%Y-%m-%d"), "torch": torch.__version__}
    with suppress(metadata.PackageNotFoundError):
        found["triton"] = metadata.version("triton")
    return found


if __name__ == "__main__":
    main()
