import json

import pytest

from ldt import cli
from ldt.errors import DataError, UserError
from ldt.metrics import passages
from ldt.metrics.passages import evaluate, hit


def spans(*pairs, **more):
    return [{"start": a, "end": b, **more} for a, b in pairs]


@pytest.mark.parametrize(
    ("k", "expected"),
    [(1, 0.0), (2, 0.0), (3, 1.0)],  # the first ends where the gold begins, the second lies behind
)
def test_a_hit_shares_a_character_with_a_gold_span(k, expected):
    assert hit(spans((0, 5), (9, 12), (8, 9)), spans((5, 9)), k) == expected


def test_only_passages_of_the_span_s_label_count():
    found = spans((5, 9), label="no") + spans((0, 5), (5, 9), label="yes")
    assert [hit(found, spans((5, 9), label="yes"), k) for k in (1, 2)] == [0.0, 1.0]


def test_faithfulness_is_eraser_s():
    """Of 0.9, with 0.2 left without the passages and 0.8 by them alone."""
    assert passages.comprehensiveness(0.9, 0.2) == pytest.approx(0.7)
    assert passages.sufficiency(0.9, 0.8) == pytest.approx(0.1)


def written(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


@pytest.fixture
def files(tmp_path):
    gold = [
        {"id": "a", "spans": spans((5, 9))},
        {"id": "b", "spans": spans((0, 3))},
        {"id": "c", "spans": []},  # nothing to hit
        {"id": "d", "spans": spans((0, 3))},  # no answer
        {"id": 5, "spans": spans((2, 3), (40, 50))},
    ]
    tested = {"comprehensiveness": 0.5, "sufficiency": 0.25}
    pred = [
        {"id": "a", "passages": spans((5, 9), (9, 12), (20, 30)), "faithfulness": tested},
        {"id": "b", "passages": spans((5, 9), (9, 12), (2, 3))},
        {"id": "c", "passages": spans((5, 9)), "faithfulness": dict.fromkeys(tested, 0.0)},
        {"id": "5", "passages": spans((45, 60), (9, 12))},
    ]
    return written(tmp_path / "gold.jsonl", gold), written(tmp_path / "pred.jsonl", pred)


def test_hits_are_counted_over_documents_with_a_gold_span(files):
    """By hand: at 1 hit a and 5 of the four, at 3 also b; faithfulness is that of a and c."""
    result = evaluate(*files)
    assert result.metrics == {
        "hit@1": 50.0,
        "hit@3": 75.0,
        "comprehensiveness": 25.0,
        "sufficiency": 12.5,
        "total": 4,
    }
    assert result.missing == ["d"]


def test_the_area_over_a_curve_is_the_mean_fall():
    """By hand: the probability falls by 0, 0.3, 0.6 and 0.5."""
    assert passages.aopc([0.9, 0.6, 0.3, 0.4]) == pytest.approx(1.4 / 4)
    assert passages.aopc([0.9]) == 0


def test_a_shorter_curve_goes_on_at_its_end():
    curves = [[0.8, 0.6, 0.2], [0.4, 0.2]]
    assert passages.mean_curve(curves) == pytest.approx([0.6, 0.4, 0.2])
    assert passages.mean_curve(curves[1:], 4) == [0.4, 0.2, 0.2, 0.2]


def test_the_area_of_all_answers_is_that_over_their_mean_curve(tmp_path, capsys):
    """By hand: falls of 0, 0.2, 0.6 and of 0, 0.2, 0.2, for there is one passage to hide."""
    gold = written(tmp_path / "gold.jsonl", [{"id": n, "spans": spans((5, 9))} for n in "ab"])
    tested = [
        {"deletion": [0.8, 0.6, 0.2], "random_deletion": [0.8, 0.8, 0.8], "sufficiency": 0.5},
        {"sufficiency": 0.25, "deletion": [0.4, 0.2], "random_deletion": [0.4, 0.5], "other": 1},
    ]
    rows = [
        {"id": id, "passages": spans((5, 9)), "faithfulness": facts}
        for id, facts in zip("ab", tested, strict=True)
    ]
    pred = written(tmp_path / "pred.jsonl", rows)
    result = evaluate(gold, pred)
    falls = [80 / 3, 40 / 3]
    expected = {"hit@1": 100, "sufficiency": 37.5, "aopc": 20, "random_aopc": -10 / 3, "total": 2}
    assert result.metrics == pytest.approx(expected)
    assert result.intervals["aopc"] == pytest.approx((min(falls), max(falls)))  # one, both, none
    with pytest.raises(SystemExit):
        cli.main(["evaluate", "--passages", "--gold", gold, "--pred", pred, "--json", "-"])
    curves = json.loads(capsys.readouterr().out)["curves"]
    assert curves == {
        "deletion": pytest.approx([60, 40, 20]),
        "random_deletion": pytest.approx([60, 65, 65]),
    }


@pytest.mark.parametrize("facts", ["x", {"sufficiency": "x"}, {"deletion": []}, {"aopc": [1]}])
def test_faithfulness_of_another_kind_is_refused_with_its_place(files, tmp_path, facts):
    rows = [{"id": 1, "passages": [], "faithfulness": facts}]
    with pytest.raises(DataError, match="p.jsonl:1: field 'faithfulness' is"):
        evaluate(files[0], written(tmp_path / "p.jsonl", rows))


def test_the_command_prints_them(files, capsys):
    gold, pred = files
    with pytest.raises(SystemExit) as ended:
        cli.main(["evaluate", "--passages", "--gold", gold, "--pred", pred])
    assert ended.value.code in (None, 0)
    assert "hit@3 75.00" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        cli.main(["evaluate", "--gold", gold, "--pred", pred])
    assert ended.value.code == 2
    assert "missing option '--format' (or '--passages')" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": 1}], "gold.jsonl:1: no field 'spans'"),
        ([{"id": 1, "spans": [{"start": 1.5, "end": 2}]}], "gold.jsonl:1: field 'spans' is"),
        ([{"id": 1, "spans": []}] * 2, "gold.jsonl:2: id 1 came before"),
        ([{"id": 1, "spans": []}], "gold.jsonl: no gold span in it"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_its_place(files, tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        evaluate(written(tmp_path / "gold.jsonl", rows), files[1])
    with pytest.raises(UserError):
        evaluate(str(tmp_path / "nothing.jsonl"), files[1])
