"""spaCy's pipes `ldt_ner` and `ldt_textcat`: a finished run answers inside a pipeline of spaCy.

spaCy finds them by the entry points of the package; nothing here is imported without it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import filter_spans, minibatch

from ldt.errors import UserError
from ldt.inference.engine import Engine
from ldt.tasks.classification import Classification
from ldt.tasks.token_classification import TokenClassification

EXTENSION = "ldt"  # doc._.ldt, the whole answer
_DEFAULTS: dict[str, Any] = {"folder": None, "options": {}}


class Pipe(ABC):
    """A component of spaCy that asks the model of a run about the text of each document.

    The model is loaded with the first document. Documents of any length are read, by chunks as in
    ``ldt predict``; the whole answer, with its flags, is in ``doc._.ldt``.
    """

    def __init__(self, model: Engine):
        self.model = model
        if not Doc.has_extension(EXTENSION):
            Doc.set_extension(EXTENSION, default=None)

    def __call__(self, doc: Doc) -> Doc:
        return self._noted(doc, self.model(doc.text))

    def pipe(self, stream: Iterable[Doc], batch_size: int = 128) -> Iterator[Doc]:
        """Yield the documents, asked about so many at a time: of the more, the better batches."""
        for docs in minibatch(stream, batch_size):
            answers = self.model([doc.text for doc in docs])
            yield from map(self._noted, docs, answers)

    def _noted(self, doc: Doc, answer: dict[str, Any]) -> Doc:
        doc._.set(EXTENSION, answer)
        self.note(doc, answer)
        return doc

    @abstractmethod
    def note(self, doc: Doc, answer: dict[str, Any]) -> None:
        """Write an answer where spaCy has its like."""


class Entities(Pipe):
    """Entities, in ``doc.ents``; those that other components found there give way to ldt's.

    An entity that begins or ends inside of a token of spaCy takes the whole of it.
    """

    def note(self, doc: Doc, answer: dict[str, Any]) -> None:
        spans = [
            doc.char_span(each["start"], each["end"], each["label"], alignment_mode="expand")
            for each in answer["entities"]
        ]
        own = filter_spans([span for span in spans if span is not None])
        taken = {token.i for span in own for token in span}
        others = [e for e in doc.ents if not taken.intersection(range(e.start, e.end))]
        doc.set_ents([*own, *others])


class Categories(Pipe):
    """The probability of each class, of a regression the number, in ``doc.cats``; what the run
    decided on is in ``doc._.ldt``."""

    def note(self, doc: Doc, answer: dict[str, Any]) -> None:
        doc.cats.update(answer["scores"])


@Language.factory("ldt_ner", default_config=_DEFAULTS, assigns=["doc.ents", "token.ent_type"])
def ldt_ner(nlp: Language, name: str, folder: str | None, options: dict[str, Any]) -> Entities:
    """A run of the task token_classification; see `_model`."""
    return Entities(_model(name, TokenClassification, folder, options))


@Language.factory("ldt_textcat", default_config=_DEFAULTS, assigns=["doc.cats"])
def ldt_textcat(
    nlp: Language, name: str, folder: str | None, options: dict[str, Any]
) -> Categories:
    """A run of the task classification; see `_model`."""
    return Categories(_model(name, Classification, folder, options))


def _model(name: str, task: type, folder: str | None, options: dict[str, Any]) -> Engine:
    """The model of a run, which is not loaded yet."""
    model = Engine.open(folder, **options)
    trained = model.trained.task
    if not isinstance(trained, task):
        raise UserError(
            f"{name}: {folder} answers {trained.name}; ldt_ner takes token_classification, "
            "ldt_textcat takes classification"
        )
    return model
