"""Published data sets: prediction file and gold file to the published metric, without a model."""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from ldt.errors import UserError

if TYPE_CHECKING:
    from ldt.benchmarks.base import Benchmark
    from ldt.data.options import DataSection
    from ldt.io.sources import Names
    from ldt.metrics.result import Result

# Of each published layout the class that scores it, imported when it is asked for.
METRICS = {
    "triviaqa": "ldt.benchmarks.triviaqa:TriviaQAScorer",
    "squad": "ldt.benchmarks.squad:SquadScorer",
    "squad2": "ldt.benchmarks.squad:Squad2Scorer",
    "wikihop": "ldt.benchmarks.wikihop:WikiHopScorer",
    "hotpotqa": "ldt.benchmarks.hotpotqa:HotpotQAScorer",
    "conll": "ldt.benchmarks.conll:ConllScorer",
    "nq": "ldt.benchmarks.nq:NaturalQuestionsScorer",
    "tydiqa": "ldt.benchmarks.tydiqa:TydiQAScorer",
    "cuad": "ldt.benchmarks.squad:CuadScorer",
    "contractnli": "ldt.benchmarks.contractnli:ContractNLIScorer",
    "qasper": "ldt.benchmarks.qasper:QasperScorer",
    "lexglue": "ldt.benchmarks.lexglue:LexGlueScorer",
    "summarization": "ldt.benchmarks.summarization:SummarizationScorer",
    "passages": "ldt.benchmarks.passages:PassagesScorer",
    "coreference": "ldt.benchmarks.coreference:CoreferenceScorer",
    "gap": "ldt.benchmarks.gap:GapScorer",
    "trec": "ldt.benchmarks.retrieval:TrecScorer",
}


def evaluate(
    gold: "Names",
    pred: "Names",
    *,
    format: str,
    data: "DataSection | None" = None,
    **options: Any,
) -> "Result":
    """Score a file of predictions by a data set's published rules, and trivial predictions beside
    it.

    The `Result` warns of ids that do not match, and of scores no better than its ``baselines``,
    those of the trivial predictions.

    Args:
        gold, pred: files, several where the layout has shards; the predictions may be JSON lines of
            `ldt predict` too. "-", standard input, for at most one of them and of na_prob.
        format: a key of `METRICS`, such as "squad2".
        data: data section of a recipe with the encoding of the gold file and other settings of its
            layout, its domain and evidence too; None for the defaults.
        options: settings of the format's scorer, such as ``na_prob`` of squad2; None is the
            default.

    Raises:
        UserError: an option that the format does not have, a file that is not there.
        DataError: a file that is damaged, of another layout, or without questions.
    """
    from ldt.benchmarks.base import name_of
    from ldt.data.options import DEFAULTS
    from ldt.io.sources import each

    kind: type[Benchmark] = resolve_name(METRICS[format])
    options = {name: value for name, value in options.items() if value is not None}
    for name in options.keys() - {*kind.options()}:
        other = next(key for key, place in METRICS.items() if name in resolve_name(place).options())
        option = f"--{name.replace('_', '-')}"
        raise UserError(f"{option} is an option of --format {other}, not of {format}")
    golds, preds = each(gold), each(pred)
    if [*golds, *preds, options.get("na_prob")].count("-") > 1:
        raise UserError("standard input can be one file only; name the other")
    benchmark = kind(data or DEFAULTS, **options)
    return benchmark.scored(benchmark.gold(golds), benchmark.answers(preds), name_of(preds))
