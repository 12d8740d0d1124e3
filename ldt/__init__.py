"""ldt: NLP on long documents, from short encoder to answers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ldt.inference.answerer import Answerer

__version__ = "0.1.0"


def load(folder: str | None = None, **options: Any) -> "Answerer":
    """The model of a finished run, to be called in Python: it answers as ``ldt predict`` does.

    Nothing is read, and torch not imported, before the first call. ::

        import ldt

        model = ldt.load("runs/contracts")
        model("This agreement ends in May.")           # {"id": 1, "label": …, "scores": …}
        model([{"id": "a", "text": "…"}, {"id": "b", "text": "…"}])     # a list

    Args:
        folder: folder of the run; None is runs/latest in the current directory.
        options: of `ldt.inference.answerer.Answerer`, such as ``device``, ``precision``,
            ``batch_tokens``, ``n_best`` and ``passages``.
    """
    from ldt.inference.answerer import Answerer

    return Answerer(folder, **options)
