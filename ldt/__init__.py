"""ldt: NLP on long documents, from short encoder to answers."""

import sys
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


class _WhenTransformersComes:
    """A finder of modules that has transformers' Auto classes know ldt's models.

    They are registered by `ldt.model`, which imports torch: that waits until a program imports
    transformers, which ``ldt --help`` does not.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec that the other finders have for transformers, whose module registers."""
        if name != "transformers":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (each.find_spec(name, path, target) for each in others)), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: Any) -> None:
                run(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)  # type: ignore[arg-type]
                    _register()

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


def _register() -> None:
    if "ldt.model" not in sys.modules:  # else it is what imports transformers
        import ldt.model  # noqa: F401


if sys.modules.get("transformers"):
    _register()
else:
    sys.meta_path.insert(0, _WhenTransformersComes())  # type: ignore[arg-type]
