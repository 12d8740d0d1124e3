"""WikiHop: accuracy of {id: candidate}."""

from ldt.data.json_file import JsonFile, take, texts
from ldt.errors import DataError
from ldt.metrics import prediction_files
from ldt.metrics.result import Item, Result, compare, count_words, mean
from ldt.metrics.rules.wikihop import accuracy


def evaluate(gold: JsonFile, predictions: JsonFile) -> Result:
    """Score by equality with the answer, letter by letter; a missing prediction counts 0.

    Raises:
        DataError: a file that cannot be used.
    """
    found = prediction_files.answers_by_id(predictions)
    ids, items, strange = [], [], []
    for number, question in enumerate(gold.value, 1):
        id = take(question, "id", str, f"{gold.name}: question {number:,}")
        where = f"{gold.name}: {id}"
        if "answer" not in question:
            raise DataError(f"{where}: no field 'answer'; the files of a test set have none")
        answer = take(question, "answer", str, where)
        candidates = set(texts(take(question, "candidates", list, where), where))
        supports = texts(take(question, "supports", list, where), where)
        right = accuracy(found.get(id), answer)
        ids.append(id)
        items.append(Item(id, {"accuracy": right}, sum(map(count_words, supports))))
        if id in found and found[id] not in candidates:
            strange.append(id)
    prediction_files.once(ids, gold.name)
    missing, extra = compare(ids, found)
    metrics = mean(items) | {"total": len(items)}
    result = Result("wikihop", items, metrics, "questions", missing, extra)
    result.no_place = "a wikihop file does not tell"
    if strange:
        result.warnings.append(
            f"{predictions.name}: {len(strange):,} predictions are none of their candidates: "
            f"{', '.join(map(repr, strange[:3]))}"
        )
    return result
