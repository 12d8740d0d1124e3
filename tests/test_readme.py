"""What README.md and the guide tell to type works: their commands run here, on tiny stand-ins.

The commands of a page run in its order, on files with the names of the page; `make` targets, links
and options are looked up.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import demo
import pytest
import torch

from ldt import cli, errors
from ldt.cli import failures
from ldt.inference import measure

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
DOCS = {path.stem: path.read_text("utf-8") for path in (ROOT / "docs").glob("*.md")}
OWN = README.partition("## Your own file\n")[2].partition("\n## ")[0]
PAGES = {"README": README.replace(OWN, ""), "guide": DOCS["guide"]}


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.S | re.M)


def commands(page):
    """What a page tells to type, in its order."""
    lines = "".join(blocks(page, "console")).splitlines()
    return [line[2:] for line in lines if line[:2] == "$ "]


RECIPE = blocks(README, "yaml")[0]


def ldt(command):
    """Run ``ldt …`` in this process and return its exit code."""
    with pytest.raises(SystemExit) as stop:
        cli.main(shlex.split(command)[1:])
    return stop.value.code


@pytest.fixture
def folder(tmp_path, tokenizer_folder, monkeypatch):
    """What ``.demo`` holds, tiny: a short model, contracts, new ones; and the README's recipe.

    Beside them a question with its prediction.
    """
    from transformers import AutoTokenizer, RobertaConfig, RobertaModel

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    tokenizer.save_pretrained(tmp_path / "short")
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=514,
        type_vocab_size=1,
    )
    RobertaModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "short")
    for name in ("contracts", "new"):
        with (tmp_path / f"{name}.jsonl").open("w") as file:
            for i in range(10):
                line = {"id": f"{name}-{i}", "text": f"party {i}", "label": "ab"[i % 2]}
                file.write(json.dumps(line) + "\n")
    spans = [{"id": f"new-{i}", "spans": [{"start": 0, "end": 5}]} for i in range(10)]
    (tmp_path / "spans.jsonl").write_text("\n".join(map(json.dumps, spans)))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    qa = {"id": "q", "question": "Who?", "answers": [{"text": "party 1", "answer_start": 0}]}
    data = [{"paragraphs": [{"context": "party 1", "qas": [qa]}]}]
    (tmp_path / "dev.json").write_text(json.dumps({"version": "1.1", "data": data}))
    (tmp_path / "predictions.json").write_text('{"q": "party 1"}')
    program = tmp_path / "bin" / "ldt"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m ldt "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.fast("README")
@pytest.mark.parametrize("page", PAGES)
def test_the_main_job_runs_as_it_is_written(page, folder, capfd):
    typed = [c for c in commands(PAGES[page]) if re.search(r"\bldt (?!bench|init$)", c)]
    verbs = {command.split()[1] for command in typed if "|" not in command}
    further = {"check", "doctor", "evaluate", "init", "labels", "report"}
    further |= {"recipes", "--version"}
    assert verbs - further == {"convert", "finetune", "predict"}
    for command in typed:
        if "|" in command:
            subprocess.run(["bash", "-c", f"set -e; {command}"], check=True)
        else:
            codes = [errors.EXIT_OK, *([errors.EXIT_DATA] if " check " in command else [])]
            assert ldt(command) in codes, (command, capfd.readouterr().err)
    answers = [json.loads(line) for line in (folder / "answers.jsonl").open()]
    assert [answer["id"] for answer in answers] == [f"new-{i}" for i in range(10)]
    piped = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line[0] == "{"]
    assert [answer["id"] for answer in piped] in ([], ["new-0", "new-1", "new-2"])
    run = (folder / "runs/latest").resolve()
    assert run == folder / ("runs/seed-1" if page == "guide" else "runs/contracts")
    for line in re.findall(r"^{.*}$", PAGES[page], re.M):  # the answer that is shown
        keys = [key for key in re.findall(r'"(\w+)":', line) if key not in demo.LABELS]
        assert keys == list(answers[0])[: len(keys)]


def test_the_recipe_is_the_one_that_the_demo_writes():
    assert demo.recipe(demo.MINILM) == RECIPE


def test_the_readme_can_be_read_in_one_sitting():
    assert len(README.splitlines()) <= 200


def anchors(page):
    """The headings of a page, as links within it name them."""
    headings = re.findall(r"^#+ (.*)", re.sub(r"^```.*?^```", "", page, flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_headings_of_the_checkout():
    for name, page in {"README": README, **DOCS}.items():
        for link in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", page):
            file, _, anchor = link.partition("#")
            there = ROOT / ("" if name == "README" else "docs") / file
            assert there.exists(), (name, link)
            text = there.read_text("utf-8") if file and anchor else page
            assert not anchor or anchor in anchors(text), (name, link)


def test_the_first_screen_has_three_commands():
    screen = "\n".join(README.splitlines()[:45])
    verbs = [command.split()[1] for command in commands(screen) if command.startswith("ldt")]
    assert verbs == ["convert", "finetune", "predict"]
    assert commands(screen)[0] == "make demo"


def test_your_own_file_goes_as_it_is_written(folder, tiny_longformer, capfd):
    (folder / "recipe.yaml").unlink()
    rows = [f"Treaty {n};{'x' if n % 2 else ''};{'x' if n % 3 else ''};x" for n in range(12)]
    for name in ("my", "new"):
        table = "\n".join(["Volltext;Kündigung;Haftung;Parteien", *rows])
        (folder / f"{name}.csv").write_text(table, "utf-8-sig")
    given = f" --model {tiny_longformer} --max-length 16 --yes"  # answers to the questions
    for command in commands(OWN):
        code = ldt(command + (given if command == "ldt init my.csv" else ""))
        allowed = {errors.EXIT_OK, errors.EXIT_DATA if " check " in command else errors.EXIT_OK}
        assert code in allowed, (command, capfd.readouterr().err)
    with (folder / "answers.csv").open(encoding="utf-8") as file:
        assert len(file.readlines()) == 13
    assert (folder / "runs/my/report.html").exists()
    said = capfd.readouterr().err
    assert "label: Kündigung, Haftung, 2 classes: Haftung (8), Kündigung (6)" in said
    assert "left out: Parteien" in said


def test_the_encoder_is_measured_as_it_is_written_but_tiny(folder, capfd, monkeypatch):
    monkeypatch.setattr(measure, "fresh", lambda call, *arguments: call(*arguments))
    monkeypatch.setattr(measure, "SECONDS", 0.0)
    typed = [command for command in commands(DOCS["guide"]) if command.startswith("ldt bench")]
    assert typed
    for command in typed:
        assert ldt(f"{command} --length 8") == errors.EXIT_OK, capfd.readouterr().err
    rows = json.loads((folder / "bench.json").read_text())["rows"]
    assert {row["encoder"] for row in rows} == {"ldt", "roberta"}
    if not torch.cuda.is_available():
        text = DOCS["guide"].partition("## Measure on your machine")[2]
        shown = text.split("```")[3].strip().splitlines()
        assert shown
        assert set(shown) <= set(capfd.readouterr().out.splitlines())


def test_the_model_loads_as_the_python_block_says(folder):
    assert ldt("ldt convert short short-2048 --max-length 2048 --window 128") == errors.EXIT_OK
    names = {}
    exec(next(b for b in blocks(DOCS["python"], "python") if "LdtModel" in b), names)
    assert names["model"].config.attention_window == [128, 128]


def test_the_error_that_is_shown_is_the_one_that_comes(folder, capfd):
    (folder / "recipe.yaml").write_text(RECIPE.replace("path:", "pth:"))
    assert ldt("ldt finetune recipe.yaml") == errors.EXIT_RECIPE
    shown = re.findall(r"^recipe\.yaml:\d+: .*$", DOCS["guide"], re.M)
    assert shown
    assert capfd.readouterr().err.splitlines() == [f"error: {line}" for line in shown]


def test_make_knows_the_targets():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    pages = "\n".join((README, *DOCS.values()))
    named = set(re.findall(r"(?:`|\$ )make ([a-z]+)", pages))
    assert {"demo", "test", "check", "bench", "docs", "gpu", "help"} <= named & targets
    assert named <= targets


def test_no_command_of_another_kind_goes_untested():
    others = {
        "python3 -m venv .venv",
        "source .venv/bin/activate",
        "pip install -c constraints.txt -e .",
    }
    others |= {"source .venv/bin/activate && cd .demo", "make demo"}
    rest = {c for page in PAGES.values() for c in commands(page) if not re.search(r"\bldt ", c)}
    assert rest == others
    assert (ROOT / "constraints.txt").exists()


def test_every_option_that_is_named_exists(capfd):
    # Of torchrun, make gpu, tensorboard; scripts in benchmarks/, docker, cp.
    there = {"--nproc-per-node", "--only", "--logdir"}
    there |= {
        "--profile",
        "--needles",
        "--every",
        "--train-every",
        "--deletion",
        "--threads",
        "--cpus",
        "--cpuset-cpus",
        "--remove-destination",
    }
    for command in ("", *cli.COMMANDS, "labels export"):
        assert ldt(f"ldt {command} --help") == errors.EXIT_OK
        help = capfd.readouterr().out
        there |= set(re.findall(r"--[a-z][a-z-]*", help))
        if command in cli.COMMANDS:  # the help of all has the first line of each
            assert f" {cli.COMMANDS[command]} " in f"{' '.join(help.split())} "
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", "\n".join((README, *DOCS.values()))))
    assert named
    assert named <= there


def test_the_exit_codes_are_those_of_the_program():
    table = DOCS["runs"].partition("## Exit codes")[2].partition("\n## ")[0]
    listed = {
        int(code) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.M) for code in row.split(",")
    }
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert listed == codes | {failures.EXIT_SIGPIPE}
