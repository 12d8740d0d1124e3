"""Figures of values in place of files: of gold and of predictions, by ``ldt.benchmarks``."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from ldt import benchmarks
from ldt.benchmarks.formats import read
from ldt.data.options import DataSection
from ldt.errors import DataError, UserError
from ldt.io.strict_json import JsonFile


def evaluate(format, gold, pred, *, data=None, lines=False, **options):
    """The result of a gold value and predictions, which messages call ``gold`` and ``pred``.

    Args:
        gold, pred: a value, with ``lines`` a list of them; or the path of a file.
        data: keys of the data section.
    """
    with TemporaryDirectory() as folder:

        def file(name, value, lines):
            if isinstance(value, Path):
                return str(value)
            path = Path(folder, name)
            value = value.value if isinstance(value, JsonFile) else value
            text = (json.dumps(each) + "\n" for each in (value if lines else [value]))
            path.write_text("".join(text), "utf-8")
            return str(path)

        if isinstance(options.get("na_prob"), JsonFile):
            options["na_prob"] = file("na", options["na_prob"], False)
        names = file("gold", gold, lines == "both"), file("pred", pred, bool(lines))
        section = DataSection(**data) if data else None
        try:
            result = benchmarks.evaluate(*names, format=format, data=section, **options)
        except (DataError, UserError) as error:
            raise type(error)(str(error).replace(f"{folder}/", "")) from None
        result.warnings = [line.replace(f"{folder}/", "") for line in result.warnings]
        return result


def examples(format, value):
    """The examples of a value as a file of a published layout, which messages call ``f``."""
    if isinstance(value, Path):
        return list(read(str(value), DataSection(format=format)))
    with TemporaryDirectory() as folder:
        path = Path(folder, "f")
        path.write_text(json.dumps(value), "utf-8")
        try:
            return list(read(str(path), DataSection(format=format)))
        except (DataError, UserError) as error:
            raise type(error)(str(error).replace(f"{folder}/", "")) from None
