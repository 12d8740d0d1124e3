"""Prediction file and gold file to the published metric: no model, no torch."""

from inspect import signature
from pkgutil import resolve_name
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ldt.data.options import DataSection
    from ldt.io.sources import Names
    from ldt.metrics.result import Result

# Of each published layout the function that scores it, imported when it is asked for. Its module
# has ``read_gold(sources, format, data)``, ``read_predictions(sources)``, ``published(answers)``,
# which makes such predictions of ldt's own, and ``baselines(gold, evaluate)`` too, the last with
# those options, and the predictions, that it wants; the function's keywords are options of that
# layout alone.
METRICS = {
    "triviaqa": "ldt.metrics.triviaqa:evaluate",
    "squad": "ldt.metrics.squad:evaluate",
    "squad2": "ldt.metrics.squad:evaluate2",
    "wikihop": "ldt.metrics.wikihop:evaluate",
    "hotpotqa": "ldt.metrics.hotpotqa:evaluate",
    "conll": "ldt.metrics.conll:evaluate",
    "nq": "ldt.metrics.nq:evaluate",
    "tydiqa": "ldt.metrics.tydiqa:evaluate",
    "cuad": "ldt.metrics.cuad:evaluate",
    "contractnli": "ldt.metrics.contractnli:evaluate",
    "qasper": "ldt.metrics.qasper:evaluate",
    "lexglue": "ldt.metrics.lexglue:evaluate",
    "summarization": "ldt.metrics.summarization:evaluate",
}

# Answers in ldt's own layout, which `ldt.inference.evaluate` scores: how their gold files are read
# is a matter of tasks.
OWN = ("classification", "token_classification", "regression", "multiple_choice")


def evaluate(
    gold: "Names",
    pred: "Names",
    *,
    format: str,
    na_prob: str | None = None,
    task: str | None = None,
    text_evidence_only: bool | None = None,
    no_stemmer: bool | None = None,
    data: "DataSection | None" = None,
) -> "Result":
    """Score a prediction file, and answers that are given without reading.

    The result has warnings of ids that do not meet, and of figures that are no better than those.

    Args:
        gold, pred: files, several where the layout has shards; the predictions may be JSON lines
            of `ldt predict` too. "-", standard input, for at most one of them and of
        na_prob: a JSON file, see `ldt.metrics.squad.evaluate2`.
        format: a key of `METRICS`.
        task: see `ldt.metrics.lexglue.evaluate`.
        text_evidence_only: see `ldt.metrics.qasper.evaluate`.
        no_stemmer: see `ldt.metrics.summarization.evaluate`.
        data: encoding of the gold file and what else says how it is read, its domain and evidence
            too; None for the defaults.

    Raises:
        UserError: an option that the format does not have, a file that is not there.
        DataError: a file that is no JSON, of another layout, or without questions.
    """
    from ldt.data.options import DEFAULTS
    from ldt.errors import UserError
    from ldt.io import strict_json
    from ldt.io.sources import each
    from ldt.metrics import own_lines
    from ldt.metrics.baseline import no_better
    from ldt.metrics.result import unmatched

    options: dict[str, Any] = {
        **{"na_prob": na_prob, "task": task},
        **{"text_evidence_only": text_evidence_only, "no_stemmer": no_stemmer},
    }
    options = {name: value for name, value in options.items() if value is not None}
    data = data or DEFAULTS
    module, function = _metric(format)
    parameters = signature(function).parameters.keys()
    for name in options.keys() - parameters:
        other = next(key for key in METRICS if name in signature(_metric(key)[1]).parameters)
        option = f"--{name.replace('_', '-')}"
        raise UserError(f"{option} is an option of --format {other}, not of {format}")
    golds, preds = each(gold), each(pred)
    if [*golds, *preds, na_prob].count("-") > 1:
        raise UserError("standard input can be one file only; name the other")
    options |= {name: getattr(data, name) for name in ("domain", "evidence") if name in parameters}
    right = module.read_gold(golds, format, data)
    predictions = own_lines.read(preds, format, module) or module.read_predictions(preds)
    if na_prob:
        options["na_prob"] = strict_json.read(na_prob)
    result = function(right, predictions, **options)
    result.warnings[:0] = unmatched(result, predictions.name)
    known = options | {"predictions": predictions}
    wanted = signature(module.baselines).parameters.keys() & known.keys()
    result.baselines = module.baselines(right, function, **{name: known[name] for name in wanted})
    result.warnings += no_better(result.metrics, result.baselines)
    return result


def evaluate_passages(gold: str, pred: str) -> "Result":
    """Score the passages of answers: see `ldt.metrics.passages.evaluate`."""
    from ldt.metrics import passages

    return passages.evaluate(gold, pred)


def _metric(format: str) -> tuple[ModuleType, Any]:
    """The module of a metric, and its function."""
    return resolve_name(METRICS[format].partition(":")[0]), resolve_name(METRICS[format])
