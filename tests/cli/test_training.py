"""What a training prints, in wide and in narrow terminals."""

import pytest

from ldt.cli import console, results

CLAUSE = "Competitive Restriction Exception clause"


def printed(width, monkeypatch, capsys, **more):
    row = {"precision": 12.34, "recall": 100.0, **more, "support": 1_234_567}
    monkeypatch.setattr(console.stdout, "width", width)
    results.show_metrics({}, [{"class": name, **row} for name in (CLAUSE, "b")], {})
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [100, 80])
def test_no_figure_and_no_head_is_cut_in_a_narrow_terminal(width, monkeypatch, capsys):
    out = printed(width, monkeypatch, capsys, average_precision=25.0, f1=50.0)
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out
    for text in ("precision", "recall", "f1", "support", "12.34", "100.00", "25.00"):
        assert text in out
    assert out.count("1234567") == 2
    assert all(word in out for word in CLAUSE.split())
