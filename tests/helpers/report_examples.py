"""Reports made by hand for the tests of their page."""

import random

from ldt.report.charts import Bars, Lines, Matrix
from ldt.report.model import ANSWER, GOLD, PASSAGE, Document, Figure, Mark, Report, Rows

# A tag's end, a comment, an attribute's end, a right-to-left override, a zero width space, NUL.
HOSTILE = "</script><!--<script>alert(1)</script>\"'&amp;<img src=x onerror=alert(2)>\u202e\u200b\0"
CLASSES = ["lease", "loan", "licence"]
CLAUSE = "This Agreement shall be governed by the laws of Delaware, without regard to conflicts."
WORDS = "the party shall hold any information in confidence unless law requires otherwise".split()


def prose(count, seed=0):
    """So many words, the same ones each time."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def charts():
    return [
        Lines("Loss", "step", "loss", {"train": [(0, 2.0), (50, 1.0)], "eval": [(50, 1.2)]}),
        Lines("Reliability", "sure", "right", {"": [(0.2, 0.1), (0.9, 0.8)]}, diagonal=True),
        Lines("By place", "place", "F1", {"": [(0.1, 1.0), (0.7, 0.0)]}, points=True),
        Bars("By length", "words", "F1", {"short": 80.0, "long": 40.0}, {"short": 3, "long": 1}),
        Matrix("Confusion", CLASSES, CLASSES, [[5, 1, 0], [2, 7, 0], [0, 0, 3]]),
    ]


def documents(count=120):
    """Questions on contracts: every third answer is wrong, every tenth label doubtful."""
    found = []
    for i in range(count):
        text = f"{prose(400, i)}. {CLAUSE} {prose(600, i + 1)}"
        start = text.index("Delaware")
        gold = Mark(start, start + 8, GOLD, "gold")
        at = text.index("laws of") if i % 3 == 0 else start
        answer = Mark(at, start + 8, ANSWER, "answer", 0.8)
        passage = Mark(text.index(CLAUSE), text.index(CLAUSE) + len(CLAUSE), PASSAGE, "evidence")
        found.append(
            Document(
                f"contract-{i}",
                f"gold.jsonl:{i + 1}",
                text,
                {"question": "Which law governs?"},
                "Delaware",
                text[at : start + 8],
                i % 3 != 0,
                {"f1": 0.5 if i % 3 == 0 else 1.0},
                (i * 37 % 100) / 100,
                1000 + i,
                [passage, answer, gold],
                0.9 if i % 10 == 0 else None,
                ["not read to its end"] if i % 7 == 0 else [],
            )
        )
    return found


def example(**changes):
    """A report with some of everything."""
    return Report(
        **{
            "title": "contracts",
            "sentence": "Two of three answers are right.",
            "facts": {"task": "squad", "model": "runs/contracts"},
            "figures": [
                Figure("f1", 83.3, (76.0, 90.0), 12.5, "the first words"),
                Figure("ece", 0.0412),
                Figure("documents", 120),
            ],
            "charts": charts(),
            "tables": [Rows("By class", [{"class": "lease", "f1": 91.5, "documents": 12}])],
            "documents": documents(),
            "warnings": ["17 documents were not read to their end."],
        }
        | changes
    )


def hostile():
    """A report in which every text is `HOSTILE`."""
    h = HOSTILE
    mark = Mark(0, len(h), ANSWER, h, 0.5)
    document = Document(h, h, h, {h: h}, h, h, False, {h: 0.5}, 0.5, 3, [mark], 0.5, [h])
    return Report(
        h,
        h,
        {h: h},
        [Figure(h, 50.0, (40.0, 60.0), 10.0, h)],
        h,
        [
            Lines(h, h, h, {h: [(0, 1), (1, 0)], h + h: [(0, 0)]}),
            Bars(h, h, h, {h: 1.0}, {h: 1}),
            Matrix(h, [h], [h], [[1]]),
        ],
        [Rows(h, [{h: h, "n": 1}])],
        [document],
        [h],
    )
