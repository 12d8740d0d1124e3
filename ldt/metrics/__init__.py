"""Prediction file and gold file to the published metric: no model, no torch."""

import json as json_text
import logging
import sys
from pathlib import Path

from ldt.data import json_file
from ldt.errors import UserError
from ldt.files import check_target, write_whole
from ldt.metrics import conll, hotpotqa, prediction_files, report, squad, triviaqa, wikihop
from ldt.metrics.result import Result

log = logging.getLogger("ldt")

FORMATS = {
    "triviaqa": triviaqa.evaluate,
    "squad": squad.evaluate,
    "squad2": squad.evaluate2,
    "wikihop": wikihop.evaluate,
    "hotpotqa": hotpotqa.evaluate,
    "conll": conll.evaluate,
}
_GOLD = {"conll": conll.gold}  # read gold files that are not JSON
OPTIONS = {"domain": "triviaqa", "evidence": "triviaqa", "na_prob": "squad2"}  # and their format


def evaluate(
    gold: str,
    pred: str,
    *,
    format: str,
    domain: str | None = None,
    evidence: Path | None = None,
    na_prob: str | None = None,
    json: str | None = None,
) -> Result:
    """Score a prediction file, warn of ids that do not meet, print the figures or write them.

    Args:
        gold, pred, na_prob: JSON files, the gold one of conll excepted; "-", standard input, for at
            most one of them.
        format: a key of `FORMATS`.
        domain, evidence: see `ldt.metrics.triviaqa.evaluate`.
        na_prob: see `ldt.evaluate.squad.evaluate2`.
        json: a file for everything at full precision; "-" prints that instead of the figures.

    Raises:
        UserError: an option that the format does not have, a file that is not there or cannot be
            written.
        DataError: a file that is no JSON, of another layout, or without questions.
    """
    given = {"domain": domain, "evidence": evidence, "na_prob": na_prob}
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if OPTIONS[name] != format:
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} is an option of --format {OPTIONS[name]}, not of {format}")
    if [gold, pred, na_prob].count("-") > 1:
        raise UserError("standard input can be one file only; name the other")
    if json and json != "-":
        check_target(Path(json))
        if Path(json).resolve() in {Path(file).resolve() for file in (gold, pred, na_prob) if file}:
            raise UserError(f"--json {json}: a file that is read; name another")
    if format in _GOLD:
        truth = _GOLD[format](gold)
    else:
        truth = json_file.read(gold)
        prediction_files.check_gold(truth, format)
    predictions = json_file.read(pred)
    if na_prob:
        given["na_prob"] = json_file.read(na_prob)
    result = FORMATS[format](truth, predictions, **given)
    for line in report.warnings(result, predictions.name):
        log.warning("%s", line)
    text = json and json_text.dumps(report.as_json(result), ensure_ascii=False, indent=2)
    if json == "-":
        sys.stdout.write(f"{text}\n")
        return result
    report.show(result)
    if json:
        write_whole(Path(json), f"{text}\n")
        log.info("%s: written", json)
    return result
