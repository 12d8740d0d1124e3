import json
import re
from pathlib import Path

import pytest
from processes import ldt
from rich.console import Console

from ldt.cli.curves import curves
from ldt.errors import UserError
from ldt.report.terminal import HEIGHT, chart

FALLING = [(step, 10.0 - step) for step in range(11)]


def drawn(lines, width=60, colour=False):
    return [text.plain for text in chart("loss", lines, width=width, colour=colour)]


def dots(row):
    """Columns with a dot, and the row of dots (from the top) of the first of them."""
    return [
        column for column, mark in enumerate(row) if "\u2800" < mark <= "\u28ff" or mark in "ab"
    ]


@pytest.mark.parametrize("width", [30, 60, 120])
def test_a_straight_line_goes_from_corner_to_corner_in_every_column(width):
    title, *rows = drawn({"r": FALLING}, width)
    assert title == "loss"
    chart, (axis, labels, legend) = rows[:HEIGHT], rows[HEIGHT:]
    assert chart[0].startswith("10 ┤")
    assert chart[HEIGHT // 2].startswith(" 5 ┤")
    assert chart[-1].startswith(" 0 ┤")
    columns = [column for row in chart for column in dots(row)]
    assert sorted(set(columns)) == list(range(4, width))
    assert [dots(row)[0] for row in chart] == sorted(dots(row)[0] for row in chart)
    assert (dots(chart[0])[0], dots(chart[-1])[-1]) == (4, width - 1)
    assert axis == f"   └{'─' * (width - 4)}"
    assert labels.split() == ["0", "step", "10"]
    assert all(len(row) <= width for row in rows[:-1])
    assert legend == "● r: first 10.0000, last 0.0000, lowest 0.0000, highest 10.0000"


def test_the_highest_value_is_above_the_lowest_by_the_share_of_its_size():
    _, *rows = drawn({"r": [(0, 0.0), (1, 100.0), (2, 25.0)]}, 42)
    first, last = rows[0], rows[HEIGHT - 1]
    assert abs(dots(first)[0] - 23) <= 1  # the middle of columns 5 to 41
    assert dots(last)[0] == 5
    heights = [number for number, row in enumerate(rows[:HEIGHT]) if 41 in dots(row)]
    assert heights == [round(0.75 * (HEIGHT - 1))]


def test_values_that_are_not_finite_break_the_line_and_are_counted():
    gap = [(step, None if 3 < step < 8 else 1.0) for step in range(12)]
    rows = drawn({"r": gap}, 40)
    columns = {column for row in rows[1 : 1 + HEIGHT] for column in dots(row)}
    assert columns
    assert not columns & set(range(16, 27))
    assert rows[-1] == "● r: first 1.0000, last 1.0000, lowest 1.0000, highest 1.0000; 4 not finite"
    assert drawn({"r": [(1, None)]}) == []


def test_one_point_is_a_dot_in_the_middle():
    rows = drawn({"r": [(7, 2.5)]}, 40)
    marks = [(number, dots(row)) for number, row in enumerate(rows[1 : 1 + HEIGHT]) if dots(row)]
    assert len(marks) == 1
    assert len(marks[0][1]) == 1
    assert marks[0][0] in (HEIGHT // 2 - 1, HEIGHT // 2)
    assert rows[-1] == "● r: 2.5000"


def test_lines_are_told_apart_by_colours_and_without_them_by_letters():
    rising = [(x, 10.0 - y) for x, y in FALLING]
    lines = {"one": FALLING, "two": rising}
    plain = drawn(lines)
    assert plain[1][4] == "a"
    assert plain[HEIGHT][4] == "b"
    assert [row[:6] for row in plain[-2:]] == ["a one:", "b two:"]
    made = chart("loss", lines, width=60, colour=True)
    assert {span.style for span in made[1].spans} == {"blue", "red"}
    assert [made[-2].spans[0].style, made[-1].spans[0].style] == ["blue", "red"]


def test_names_cannot_steer_a_terminal():
    assert not any("\x1b" in row for row in drawn({"\x1b[31mr": FALLING}))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, scale in (("a", 1.0), ("b", 2.0)):
        rows = [{"step": step, "loss": scale * value, "epoch": step} for step, value in FALLING]
        rows.append({"step": 10, "eval_loss": 1.0, "eval_f1": scale, "eval_runtime": 9.0})
        write(name, "".join(json.dumps(row) + "\n" for row in rows))
    write("new", "")
    return tmp_path


def write(name, log):
    folder = Path("runs", name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text('{"identity": {}}')
    (folder / "metrics.jsonl").write_text(log)


def titles(out):
    lines = out.decode().splitlines()
    return [
        line
        for line in lines
        if line in ("loss", "eval_loss", "eval_f1", "eval_em", "epoch", "grad_norm")
    ]


def test_the_command_draws_the_losses_and_a_metric_of_the_evaluation(place):
    done = ldt("curves", "runs/a", env={"COLUMNS": "60"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert titles(done.stdout) == ["loss", "eval_loss", "eval_f1"]
    assert max(map(len, done.stdout.decode().splitlines())) <= 70  # of the legend
    assert b"\x1b" not in done.stdout


def test_the_metric_that_a_run_goes_by_is_drawn_before_others(place):
    write("a", '{"step": 1, "eval_em": 1.0, "eval_f1": 2.0, "eval_loss": 3.0}\n')
    assert titles(ldt("curves", "runs/a").stdout) == ["eval_loss", "eval_em"]
    Path("runs/a/run.json").write_text('{"identity": {}, "metric": "f1"}')
    assert titles(ldt("curves", "runs/a").stdout) == ["eval_loss", "eval_f1"]


def test_runs_overlie_and_a_metric_is_named_as_people_do(place):
    done = ldt("curves", "runs/a", "runs/b", "--metric", "f1")
    assert titles(done.stdout) == ["eval_f1"]
    legend = done.stdout.decode().splitlines()[-2:]
    assert legend == ["a runs/a: 1.00", "b runs/b: 2.00"]
    done = ldt("curves", "runs/a", "--metric", "los")
    assert done.returncode == 2
    line = b"error: --metric los: nothing of that name was logged, did you mean 'loss'?\n"
    assert done.stderr == line


def test_a_training_that_has_just_begun_is_no_error(place):
    done = ldt("curves", "runs/new", "runs/a")
    assert (done.returncode, done.stderr) == (0, b"runs/new: nothing is logged yet\n")
    assert titles(done.stdout) == ["loss", "eval_loss", "eval_f1"]
    done = ldt("curves", "runs/new", "--metric", "f1")
    assert (done.returncode, done.stdout) == (0, b"")


def test_lines_that_are_no_log_are_passed_over(place):
    write("a", '{"step": 1, "loss": NaN}\nnull\n[]\n{"loss": 2}\n\n{"step": 3, "lo')
    done = ldt("curves", "runs/a")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"loss: no value is finite\n", b"")


@pytest.mark.parametrize(
    ("run", "why"), [("runs", "no metrics.jsonl there"), ("x", "no such folder")]
)
def test_what_is_no_run_is_said(place, run, why):
    done = ldt("curves", run)
    assert done.returncode == 2
    assert done.stderr.decode() == (
        f"error: {run}: {why}; ldt curves takes run folders, which ldt runs lists\n"
    )


def test_a_pipe_cannot_be_followed(place):
    done = ldt("curves", "runs/a", "--follow")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--follow draws on a terminal" in done.stderr


def test_a_run_is_followed_until_nobody_trains_it(place, monkeypatch, capsys):
    console = Console(force_terminal=True, width=60, highlight=False)
    monkeypatch.setattr("ldt.cli.curves.stdout", console)
    looks = []

    def holder(folder):
        looks.append(folder)
        return {"pid": 1} if len(looks) < 3 else None

    def sleep(seconds):
        step = len(looks) + 10
        with open("runs/a/metrics.jsonl", "a") as file:
            file.write(json.dumps({"step": step, "loss": -step}) + "\n")

    monkeypatch.setattr("ldt.files.holder", holder)
    monkeypatch.setattr("time.sleep", sleep)
    curves(["runs/a"], ["loss"], follow=True)
    shown = re.findall(r"last (-?[\d.]+)", capsys.readouterr().out)
    assert list(dict.fromkeys(shown)) == ["0.0000", "-11.0000", "-12.0000"]


def test_a_name_that_does_not_exist_raises_before_anything_is_drawn(place):
    with pytest.raises(UserError, match="runs/none: no such folder"):
        curves(["runs/none"], [], follow=False)
