"""What a training prints, in wide and in narrow terminals."""

import pytest

from ldt.cli import console, results

CLAUSE = "Competitive Restriction Exception clause"


def printed(width, monkeypatch, capsys, **more):
    row = {"precision": 12.34, "recall": 100.0, **more, "support": 1_234_567}
    monkeypatch.setattr(console.stdout, "width", width)
    results.show_metrics({}, [{"class": name, **row} for name in (CLAUSE, "b")], {})
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [100, 80, 60, 40])
def test_no_figure_and_no_head_is_cut_in_a_narrow_terminal(width, monkeypatch, capsys):
    out = printed(width, monkeypatch, capsys, average_precision=25.0, f1=50.0)
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out
    for text in ("precision", "recall", "f1", "support", "12.34", "100.00", "25.00"):
        assert text in out
    assert out.count("1234567") == 2
    assert all(word in out for word in CLAUSE.split())


def test_a_head_that_is_too_wide_is_broken_between_its_words(monkeypatch, capsys):
    heads = printed(60, monkeypatch, capsys, average_precision=25.0, f1=50.0).splitlines()[:2]
    assert heads[0].split() == ["average"]
    assert heads[1].split() == ["class", "precision", "recall", "precision", "f1", "support"]


def test_where_columns_do_not_fit_there_is_a_line_for_each_value(monkeypatch, capsys):
    first, *_, last = printed(36, monkeypatch, capsys).rstrip().splitlines()
    assert first.split() == ["class", "Competitive", "Restriction"]
    assert last.split() == ["support", "1234567"]
