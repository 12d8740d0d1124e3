"""HotpotQA: answer, supporting facts and both, of {"answer": {id: text}, "sp": {id: facts}}."""

from ldt.data.json_file import JsonFile, shown, take, texts
from ldt.errors import DataError
from ldt.metrics import prediction_files
from ldt.metrics.result import Item, Result, compare, count_words, mean
from ldt.metrics.rules import hotpotqa as rules

PARTS = ("em", "f1", "prec", "recall")
SHOWN = ("em", "f1", "sp_em", "sp_f1", "joint_em", "joint_f1")


def evaluate(gold: JsonFile, predictions: JsonFile) -> Result:
    """Score by the published rules; they print 0 to 1, this is 0 to 100 as everywhere.

    A question without an answer, or without facts, counts 0 there and in joint.

    Raises:
        DataError: a file that cannot be used.
    """
    answers, facts = _predictions(predictions)
    ids, items = [], []
    for number, question in enumerate(gold.value, 1):
        id = take(question, "_id", str, f"{gold.name}: question {number:,}")
        where = f"{gold.name}: {id}"
        ids.append(id)
        answer = supported = rules.NOTHING
        right = take(question, "answer", str, where)
        if id in answers:
            answer = rules.answer(answers[id], right)
        wanted = _facts(take(question, "supporting_facts", list, where), where)
        if id in facts:
            supported = rules.facts(facts[id], wanted)
        both = rules.NOTHING
        if id in answers and id in facts:
            both = rules.joint(answer, supported)
        scores = {}
        for prefix, score in (("", answer), ("sp_", supported), ("joint_", both)):
            scores |= {f"{prefix}{part}": getattr(score, part) for part in PARTS}
        items.append(Item(id, scores, _words(question, where)))
    prediction_files.once(ids, gold.name)
    both = answers.keys() & facts.keys()
    missing, _ = compare(ids, both)
    _, extra = compare(ids, answers | facts)
    result = Result("hotpotqa", items, mean(items), "questions", missing, extra)
    result.shown = SHOWN
    result.no_place = "a hotpotqa file does not tell"
    if items[0].words is None:
        result.no_length = "the gold file has no context"
    return result


def _words(question, where):
    """Words of all paragraphs, titles left out; None where the file has none."""
    if "context" not in question:
        return None
    words = 0
    for paragraph in take(question, "context", list, where):
        if not isinstance(paragraph, list) or len(paragraph) != 2:
            raise DataError(f"{where}: {shown(paragraph)} in context, expected [title, sentences]")
        if not isinstance(paragraph[1], list):
            raise DataError(f"{where}: the sentences are {shown(paragraph[1])}, expected a list")
        words += sum(map(count_words, texts(paragraph[1], where)))
    return words


def _predictions(file):
    prediction_files.refuse_gold(file)
    value = file.value
    if not isinstance(value, dict) or not {"answer", "sp"} <= value.keys():
        raise DataError(
            f"{file.name}: {shown(value)}; expected an object with answer, {{id: text}}, and sp, "
            "{id: [[title, sentence], ...]}"
        )
    answers = prediction_files.answers_by_id(
        JsonFile(f"{file.name}: answer", take(value, "answer", dict, file.name))
    )
    facts = take(value, "sp", dict, file.name)
    return answers, {
        key: _facts(listed, f"{file.name}: sp: {key}") for key, listed in facts.items()
    }


def _facts(listed, where):
    if not isinstance(listed, list):
        raise DataError(f"{where}: {shown(listed)}, expected a list of [title, sentence]")
    found = set()
    for fact in listed:
        match fact:
            case [str(title), int(sentence)] if not isinstance(sentence, bool):
                found.add((title, sentence))
            case _:
                raise DataError(f"{where}: {shown(fact)}, expected [title, number of a sentence]")
    return found
