"""Files with gaps, all combinations of them: figures where they are defined, never a bug."""

import json
import re
from itertools import chain, product

import pytest
from typed import typed, write_lines

from ldt.metrics import result

TEXTS = ["one two three", "four five", "six seven eight nine", "ten"]
ABSENT, SILENT = "absent", "silent"


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch, tmp_path):
    monkeypatch.setattr(result, "RESAMPLES", 20)
    monkeypatch.chdir(tmp_path)


def classification():
    """Classes that gold has or lacks, answers and scores that are there, silent or missing."""
    every = "a b c".split()
    for several, size, gold, said, gap, scored in product(
        (False, True),
        (1, 4),
        (["a"], ["a", "b"], ["b", "stranger"], []),
        (["a"], ["b", "a"], ["c"], []),
        ([], [ABSENT], [SILENT], [SILENT] * 4, [ABSENT, SILENT]),
        ("none", "all", "some", "one class", "no probabilities"),
    ):
        if not several and not gold or size == 1 and gap in ([ABSENT], [ABSENT, SILENT]):
            continue

        def label(names, n, several=several):
            one = names[n % len(names)] if names else None
            return ([one] if one else []) if several else one

        rows, answers = [], []
        for n in range(size):
            rows.append({"text": TEXTS[n], "label": label(gold, n)})
            given = {"id": n + 1, "label": label(said, n)}
            names = every[:1] if scored == "one class" else every
            scores = {name: 1.0 if several else 1 / len(names) for name in names}
            if scored == "no probabilities":
                scores = dict.fromkeys(names, -3.5)
            if scored != "none" and not (scored == "some" and n % 2):
                given["scores"] = scores
            if gap[n : n + 1] == [SILENT]:
                given |= {"label": None, "abstained": True}
            if gap[n : n + 1] != [ABSENT]:
                answers.append(given | {"chunks": 1})
        keys = [f"task.problem={'multi' if several else 'single'}_label"]
        yield "classification", rows, answers, keys


def others():
    """Choices, numbers and entities, of which answers and scores are missing."""
    for size, gap, scored in product((1, 3), ([], [ABSENT], [SILENT], [SILENT] * 3), (0, 1, 2)):
        if size == 1 and gap == [ABSENT]:
            continue
        kinds = ("multiple_choice", "regression", "token_classification")
        made: dict[str, tuple[list, list]] = {kind: ([], []) for kind in kinds}
        for n in range(size):
            gone, silent = gap[n : n + 1] == [ABSENT], gap[n : n + 1] == [SILENT]
            with_scores = scored == 1 or scored == 2 and n % 2 == 0
            question = {"context": TEXTS[n], "question": "?", "choices": ["x", "y"]}
            choice = {"id": n + 1, "choice": None if silent else n % 2}
            choice |= {"scores": [0.5, 0.5]} if with_scores else {}
            entity = {"start": 0, "end": 3, "label": "T"}
            found = entity | ({"score": 0.7} if with_scores else {})
            lines = {
                "multiple_choice": (question | {"label": 0}, choice),
                "regression": (
                    {"text": TEXTS[n], "label": n / 2},
                    {"id": n + 1, "label": None if silent else n / 3},
                ),
                "token_classification": (
                    {"text": TEXTS[n], "entities": [entity] if scored else []},
                    {"id": n + 1, "entities": [] if silent else [found]},
                ),
            }
            for name, (right, answer) in lines.items():
                made[name][0].append(right)
                if not gone:
                    made[name][1].append(answer | {"chunks": 1})
        for name, (gold, answers) in made.items():
            yield name, gold, answers, []


CASES = list(chain(classification(), others()))
COMMANDS = {
    "evaluate": ("evaluate", "--gold", "gold", "--pred", "a.jsonl"),
    "json": ("evaluate", "--gold", "gold", "--pred", "a.jsonl", "--json", "-"),
    "compare": ("report", "a.jsonl", "b.jsonl", "--gold", "gold"),
    "report": ("report", "a.jsonl", "--gold", "gold"),
}
# Of so many cases one is tried; of a prime number, so that all gaps come.
EVERY = {"evaluate": 13, "json": 23, "compare": 29, "report": 97}


@pytest.mark.parametrize(
    ("command", "every"),
    [*EVERY.items(), *(pytest.param(name, 1, marks=pytest.mark.nightly) for name in EVERY)],
)
def test_any_gap_leaves_the_figures_that_are_defined(capsys, tmp_path, command, every):
    codes = set()
    for format, gold, answers, keys in CASES[::every]:
        write_lines(tmp_path / "gold", gold)
        write_lines(tmp_path / "a.jsonl", answers)
        write_lines(tmp_path / "b.jsonl", answers[1:] or answers)
        code, out, err = typed(capsys, *COMMANDS[command], "--format", format, *keys)
        codes.add(code)
        if command == "report" and code == 0:
            out += (tmp_path / "a.html").read_text("utf-8").partition("<script")[0]
        # No label in common without scores to tell the classes is taken for another set of labels.
        assert code == 0 or (code == 4 and "no label of it is in the gold file" in err), err
        assert not re.search(r"\b(None|nan|NaN)\b", out), (gold, answers, out)
        if command == "json" and code == 0:
            assert json.loads(out)["metrics"]
    assert 0 in codes
