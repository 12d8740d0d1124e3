"""Meanings of the keys of a recipe: what the docstrings of the classes that check them say."""

import inspect
import re

# Of a field that all tasks have.
_GLOBAL_ATTENTION = (
    "segments whose tokens see the whole input and are seen by all of it; the segments of this "
    "task are {roles}."
)
# Of the training keys that transformers.TrainingArguments does not have.
OWN_TRAINING = {
    "early_stopping_patience": "evaluations without a gain after which training ends.",
    "lora": "a LoRA adapter that is trained in place of the encoder's weights.",
    "train_batch_tokens": "tokens, padding included, that a process runs at a time: a step has the "
    "inputs that it has without, parted by length.",
    "early_stopping_threshold": "least difference of the metric that counts as a gain.",
}


def summary(item: object) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(item) or "").partition("\n\n")[0].split())


def meanings(cls: type) -> dict[str, str]:
    """Name -> meaning of the ``Args:`` of a class's docstring, those of its bases included."""
    from ldt.tasks.base import AnyTask

    found: dict[str, str] = {}
    if issubclass(cls, AnyTask) and cls.inputs.roles:
        names = ", ".join(f"``{role}``" for role in cls.inputs.roles)
        found["global_attention"] = _GLOBAL_ATTENTION.format(roles=names)
    for base in reversed(cls.__mro__):
        text = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", text, re.S | re.M)
        for entry in re.split(r"\n(?=    \S)", "\n" + section[1] if section else ""):
            names, colon, meaning = entry.partition(":")
            if colon and re.fullmatch(r"[\w, ]+", names.strip()):
                line = " ".join(meaning.split())
                found |= dict.fromkeys(re.split(r",\s*", names.strip()), line)
    return found


def training_meanings() -> dict[str, str]:
    """Name -> meaning of a training key, as transformers has it; imports transformers.

    The first paragraph alone, the list of a key's values included.
    """
    from transformers import TrainingArguments

    text = inspect.cleandoc(TrainingArguments.__doc__ or "")
    entries = re.findall(r"^    (\w+) ?\(.*\):\n((?: {8}.*\n)+)", text, re.M)
    found = {name: " ".join(meaning.split()) for name, meaning in entries}
    return found | OWN_TRAINING
