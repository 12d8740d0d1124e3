"""The layouts of gold and prediction files: which one a file has, and what is wrong with it."""

from collections.abc import Iterable

from ldt.data.json_file import JsonFile, shown
from ldt.errors import DataError

GOLD = {
    "triviaqa": "an object with Data, a list of questions with QuestionId and Answer",
    "squad": "an object with data, a list of articles with paragraphs",
    "squad2": "an object with data, a list of articles with paragraphs",
    "wikihop": "a list of questions with id, candidates, supports and answer",
    "hotpotqa": "a list of questions with _id, answer and supporting_facts",
}


def once(keys: Iterable[str], where: str) -> None:
    """Refuse a key that comes twice.

    Raises:
        DataError: the first that does.
    """
    seen = set()
    for key in keys:
        if key in seen:
            raise DataError(f"{where}: the id {shown(key)} stands twice; each question once")
        seen.add(key)


def check_gold(file: JsonFile, format: str) -> None:
    """Refuse a gold file of another layout than the format's, or without any question.

    Raises:
        DataError: what it looks like instead.
    """
    found = _gold_format(file.value)
    if found == format.removesuffix("2"):
        return
    if found:
        raise DataError(
            f"{file.name}: looks like a {found} gold file, not a {format} one; "
            f"--format {found} reads it"
        )
    if file.value in ([], {}):
        raise DataError(f"{file.name}: no questions in it")
    if _prediction_format(file.value):
        raise DataError(
            f"{file.name}: looks like predictions, not like a gold file; "
            "are --gold and --pred swapped?"
        )
    raise DataError(f"{file.name}: {shown(file.value)}; expected {GOLD[format]}")


def answers_by_id(file: JsonFile) -> dict[str, str]:
    """Predictions as one object, id to text.

    Raises:
        DataError: another layout, or a prediction that is no text.
    """
    refuse_gold(file)
    if _prediction_format(file.value) == "hotpotqa":
        raise DataError(f"{file.name}: looks like hotpotqa predictions; --format hotpotqa reads it")
    if not isinstance(file.value, dict):
        raise DataError(f"{file.name}: {shown(file.value)}; expected one object, {{id: answer}}")
    for key, value in file.value.items():
        if not isinstance(value, str):
            raise DataError(
                f"{file.name}: {shown(key)}: the prediction is {shown(value)}, expected text"
            )
    return file.value


def refuse_gold(file: JsonFile) -> None:
    """Refuse a gold file in the place of predictions.

    Raises:
        DataError: it is one.
    """
    found = _gold_format(file.value)
    if found:
        raise DataError(
            f"{file.name}: looks like a {found} gold file, not like predictions; "
            "are --gold and --pred swapped?"
        )


def _gold_format(value):
    if isinstance(value, dict):
        if isinstance(value.get("Data"), list):
            return "triviaqa"
        return "squad" if isinstance(value.get("data"), list) else None
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, dict):
        if "supporting_facts" in first:
            return "hotpotqa"
        return "wikihop" if "candidates" in first else None
    return None


def _prediction_format(value):
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("answer"), dict) and isinstance(value.get("sp"), dict):
        return "hotpotqa"
    return "text" if value and all(isinstance(text, str) for text in value.values()) else None
