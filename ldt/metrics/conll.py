"""CoNLL: entities by {number of the document: tags}, against a file of words with their tags."""

from ldt.data.formats import conll as layout
from ldt.data.json_file import JsonFile, shown
from ldt.errors import DataError
from ldt.metrics.result import Item, Result, compare, mean
from ldt.metrics.rules import conll as rules

NAMES = ("precision", "recall", "f1")
COUNTS = ("gold", "found", "right")


def gold(source: str) -> JsonFile:
    """The documents of a gold file, as `ldt.data.formats.conll.read` has them.

    Raises:
        UserError: there is no such file.
        DataError: it is damaged, has no documents, or no tags.
    """
    name = "stdin" if source == "-" else source
    documents = list(layout.read(source, None))
    if not documents:
        raise DataError(f"{name}: no documents in it")
    for document in documents:
        if "tags" not in document.fields:
            raise DataError(f"{document.where}: one column only; a gold file has tags in the last")
    return JsonFile(name, documents)


def evaluate(gold: JsonFile, predictions: JsonFile) -> Result:
    """Score by the rules of conlleval; figures are of all documents together.

    A document without a prediction has no entity found.

    Raises:
        DataError: a file that cannot be used.
    """
    if not isinstance(predictions.value, dict):
        raise DataError(
            f"{predictions.name}: {shown(predictions.value)}; expected an object, "
            "{number of the document: list of sentences, each a list of tags}"
        )
    ids, found, right = [], [], []
    for document in gold.value:
        id, tags = str(document.id), document.fields["tags"]
        ids.append(id)
        right.append(_entities(tags, document.where))
        said = predictions.value.get(id, [["O"] * len(sentence) for sentence in tags])
        where = f"{predictions.name}: {shown(id)}"
        _check(said, tags, where)
        found.append(_entities(said, where))
    labels = sorted({label for some in (*found, *right) for *_, label in some})
    items = []
    for id, own, wanted, document in zip(ids, found, right, gold.value, strict=True):
        scores = {}
        for label in ("", *labels):
            sides = [{e for e in some if label in ("", e[-1])} for some in (own, wanted)]
            score = rules.score(*sides)
            scores |= {f"{label}:{name}": getattr(score, name) for name in COUNTS}
        words = sum(map(len, document.fields["tokens"]))
        items.append(Item(id, scores, words))

    def figures(means):
        said = {}
        for label in ("", *labels):
            counts = [means[f"{label}:{name}"] for name in COUNTS]
            prefix = f"{label}_" if label else ""
            said |= {
                f"{prefix}{name}": 100 * value
                for name, value in zip(NAMES, rules.figures(*counts), strict=True)
            }
        return said

    missing, extra = compare(ids, predictions.value)
    metrics = mean(items, figures)
    result = Result("conll", items, metrics, "documents", missing, extra, figures=figures)
    result.shown, result.noun = NAMES, "document"
    result.no_place = "a document has many entities"
    return result


def _entities(sentences, where):
    """(sentence, start, end, label) of each entity."""
    try:
        return {
            (number, *entity)
            for number, tags in enumerate(sentences)
            for entity in rules.entities(tags)
        }
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None


def _check(said, tags, where):
    if not isinstance(said, list):
        raise DataError(f"{where}: {shown(said)}, expected a list of sentences")
    sizes = [len(sentence) for sentence in tags]
    for sentence in said:
        if not (isinstance(sentence, list) and all(isinstance(tag, str) for tag in sentence)):
            raise DataError(f"{where}: {shown(sentence)}, expected a sentence as a list of tags")
    if list(map(len, said)) != sizes:
        raise DataError(
            f"{where}: {len(said):,} sentences with {sum(map(len, said)):,} tags; the gold file "
            f"has {len(sizes):,} with {sum(sizes):,} words, or others are longer"
        )
