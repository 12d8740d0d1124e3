"""spaCy components `ldt_ner` and `ldt_textcat`, which apply a trained model in a spaCy pipeline.

spaCy finds them by the package's entry points; it is imported only there.
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
    """spaCy component that applies a trained model to each document's text.

    The model is loaded with the first document. Long documents are read in chunks, as in ``ldt
    predict``; the whole answer with its flags is in ``doc._.ldt``.
    """

    def __init__(self, model: Engine):
        self.model = model
        if not Doc.has_extension(EXTENSION):
            Doc.set_extension(EXTENSION, default=None)

    def __call__(self, doc: Doc) -> Doc:
        return self._noted(doc, self.model(doc.text))

    def pipe(self, stream: Iterable[Doc], batch_size: int = 128) -> Iterator[Doc]:
        """Yield the documents, with each answer written to its document; larger batches
        are faster."""
        for docs in minibatch(stream, batch_size):
            answers = self.model([doc.text for doc in docs])
            yield from map(self._noted, docs, answers)

    def _noted(self, doc: Doc, answer: dict[str, Any]) -> Doc:
        doc._.set(EXTENSION, answer)
        self.note(doc, answer)
        return doc

    @abstractmethod
    def note(self, doc: Doc, answer: dict[str, Any]) -> None:
        """Write an answer to spaCy's own attributes of the document, in place."""


class Entities(Pipe):
    """Writes entities to ``doc.ents``, replacing overlapping ones of other components.

    An entity that begins or ends inside a spaCy token is extended to the whole token.
    """

    def note(self, doc: Doc, answer: dict[str, Any]) -> None:
        """Set ``doc.ents`` to the answer's ``entities`` (``start``, ``end`` in characters,
        ``label``), and to others of the document that they do not overlap."""
        spans = [
            doc.char_span(each["start"], each["end"], each["label"], alignment_mode="expand")
            for each in answer["entities"]
        ]
        found_spans = filter_spans([span for span in spans if span is not None])
        taken = {token.i for span in found_spans for token in span}
        others = [e for e in doc.ents if not taken.intersection(range(e.start, e.end))]
        doc.set_ents([*found_spans, *others])


class Categories(Pipe):
    """Writes class probabilities, or the number of a regression, to ``doc.cats``; the decision is
    in ``doc._.ldt``."""

    def note(self, doc: Doc, answer: dict[str, Any]) -> None:
        """Update ``doc.cats`` by the answer's scores: {class: probability}."""
        doc.cats.update(answer["scores"])


@Language.factory("ldt_ner", default_config=_DEFAULTS, assigns=["doc.ents", "token.ent_type"])
def ldt_ner(nlp: Language, name: str, folder: str | None, options: dict[str, Any]) -> Entities:
    """Component that writes entities, of ``add_pipe("ldt_ner", config={"folder": ...})``.

    UserError if the run is of another task than token_classification, or an option cannot be used.

    Args:
        nlp, name: the pipeline and the component's name there.
        folder: folder of the run; None is runs/latest.
        options: prediction options by name, as of `ldt.load`.
    """
    return Entities(_model(name, TokenClassification, folder, options))


@Language.factory("ldt_textcat", default_config=_DEFAULTS, assigns=["doc.cats"])
def ldt_textcat(
    nlp: Language, name: str, folder: str | None, options: dict[str, Any]
) -> Categories:
    """Component that writes class probabilities: `ldt_ner` for a run of the task classification."""
    return Categories(_model(name, Classification, folder, options))


def _model(name: str, task: type, folder: str | None, options: dict[str, Any]) -> Engine:
    model = Engine.open(folder, **options)
    trained = model.trained.task
    if not isinstance(trained, task):
        raise UserError(
            f"{name}: {folder} answers {trained.name}; ldt_ner takes token_classification, "
            "ldt_textcat takes classification"
        )
    return model
