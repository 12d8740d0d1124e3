"""The layouts of published data sets as examples. A layout is a name in `FORMATS`.

An example of ``read`` has the fields of the task that the layout belongs to, as a JSON line would
have them; one of ``gold`` has what a prediction is scored by. Both go through the same file once.
"""

from collections.abc import Iterator
from os.path import isdir
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ldt.data import records, strict_json, text_files
from ldt.data.formats import conll, hotpotqa, squad, triviaqa, wikihop
from ldt.data.records import Example, OnError
from ldt.errors import DataError

if TYPE_CHECKING:
    from ldt.data.options import DataSection

LINES = ("jsonl", "csv", "tsv", "parquet")  # read one by one, in constant memory
_WHOLE: dict[str, ModuleType] = {  # one JSON value
    "hotpotqa": hotpotqa,
    "squad": squad,
    "triviaqa": triviaqa,
    "wikihop": wikihop,
}
_STREAMED: dict[str, ModuleType] = {"conll": conll}  # not JSON; a document at a time
TEXT = "text"  # a file is a document
PUBLISHED = tuple(_WHOLE)  # read whole into memory
FORMATS = (*LINES, TEXT, *_STREAMED, *_WHOLE)


def read(
    source: str,
    data: "DataSection",
    *,
    document: str | None = None,
    on_error: OnError | None = None,
    max_line_bytes: int = 256 << 20,
) -> Iterator[Example]:
    """Yield the examples of ``source`` in order.

    Args:
        source: as `ldt.data.records.read` takes it; published layouts are read whole into memory.
        data: its format, id and what else the layout wants.
        document: field of the text where ``data.text`` names none: with it text files and folders
            of them are documents too (`ldt.data.text_files`). None where right answers are needed,
            which text alone does not have.
        on_error, max_line_bytes: of lines, as in `ldt.data.records.read`. What is wrong with a
            published layout is always raised.

    Raises:
        UserError: there is no such file, or an option is missing.
        DataError: the file is damaged or of another layout; text without right answers.
    """
    encoding = getattr(data, "encoding", None)  # prompts of a character model have none
    if data.format == TEXT or (data.format is None and text_files.is_text(source)):
        if document is None:
            what = "a folder" if isdir(source) else "plain text"
            raise DataError(
                f"{source}: {what}, where one file of JSON lines, CSV or Parquet is expected, with "
                "the right answer beside each text"
            )
        return text_files.read(
            source,
            data.text or document,
            encoding=encoding,
            on_error=on_error,
            max_bytes=max_line_bytes,
        )
    if data.format in _STREAMED:
        return _STREAMED[data.format].read(source, data)
    if data.format in _WHOLE:
        return _read_whole(_WHOLE[data.format], source, data)
    return records.read(
        source,
        id_field=data.id,
        format=None if data.format == "parquet" else data.format,
        encoding=encoding,
        on_error=on_error,
        max_line_bytes=max_line_bytes,
    )


def _read_whole(layout: ModuleType, source: str, data: "DataSection") -> Iterator[Example]:
    yield from layout.read(strict_json.read(source), data)


def detect(value: Any) -> str | None:
    """The layout that the value of a JSON file with gold answers has; None for no known one."""
    return next((name for name, layout in _WHOLE.items() if layout.fits(value)), None)
