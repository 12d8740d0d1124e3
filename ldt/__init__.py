"""ldt: NLP on long documents, from short encoder to answers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ldt.inference.engine import load as load

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """``ldt.load``, whose module is imported when it is asked for."""
    if name == "load":
        from ldt.inference.engine import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
