"""A command as it is typed, in this process."""

import json

import pytest

from ldt import cli


def typed(capsys, *words):
    """Run ``ldt`` with these words: (exit code, out, err)."""
    with pytest.raises(SystemExit) as ended:
        cli.main([*words])
    return (ended.value.code, *capsys.readouterr())


def write_lines(path, records):
    """Records as JSON lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
