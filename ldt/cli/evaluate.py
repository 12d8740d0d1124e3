"""ldt evaluate: the published metric of a file of predictions."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def evaluate(
    gold: Annotated[
        str,
        typer.Option(metavar="FILE", help="Questions with their answers, in the published layout."),
    ],
    pred: Annotated[
        str, typer.Option(metavar="FILE", help="Predictions to score; - reads standard input.")
    ],
    format: Annotated[
        Literal["triviaqa", "squad", "squad2", "wikihop", "hotpotqa", "conll"],
        typer.Option(
            help="Published layout of both files, which also decides the metric; XQuAD has the "
            "layout squad."
        ),
    ],
    domain: Annotated[
        Literal["wikipedia", "web"] | None,
        typer.Option(
            help="Domain of a triviaqa file: wikipedia scores by question, web by page; by default "
            "the one in the gold file."
        ),
    ] = None,
    evidence: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of the documents of a triviaqa file, for scores by length of document.",
        ),
    ] = None,
    na_prob: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Probabilities of no answer for squad2, as JSON: {id: probability}.",
        ),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File for all scores at full precision, as JSON; - prints JSON instead of the "
            "table.",
        ),
    ] = None,
) -> None:
    """Score a file of predictions by its published metric.

    No model is needed. Each score has a bootstrap interval, and is also given by length of the
    document and by place of the answer.

    Example: ldt evaluate --format squad --gold dev.json --pred answers.json
    """
    from ldt.metrics import evaluate

    evaluate(
        gold, pred, format=format, domain=domain, evidence=evidence, na_prob=na_prob, json=json
    )
