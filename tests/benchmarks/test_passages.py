import json

import pytest
from typed import typed

from ldt import benchmarks
from ldt.benchmarks.passages import hit
from ldt.errors import DataError, UserError


def evaluate(gold, pred):
    return benchmarks.evaluate(gold, pred, format="passages")


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
    pred = [
        {"id": "a", "passages": spans((5, 9), (9, 12), (20, 30))},
        {"id": "b", "passages": spans((5, 9), (9, 12), (2, 3))},
        {"id": "c", "passages": spans((5, 9))},
        {"id": "5", "passages": spans((45, 60), (9, 12))},
    ]
    return written(tmp_path / "gold.jsonl", gold), written(tmp_path / "pred.jsonl", pred)


def test_hits_are_counted_over_documents_with_a_gold_span(files):
    """By hand: at 1 hit a and 5 of the four, at 3 also b."""
    result = evaluate(*files)
    assert result.metrics == {"hit@1": 50.0, "hit@3": 75.0, "total": 4}
    assert result.missing == ["d"]


def test_the_command_prints_them(files, capsys):
    gold, pred = files
    command = ("evaluate", "--gold", gold, "--pred", pred)
    code, out, _ = typed(capsys, *command, "--format", "passages")
    assert code == 0
    assert "hit@3 75.00" in out
    code, _, err = typed(capsys, *command)
    assert code == 2
    assert "missing option '--format', or '--recipe'" in err


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": 1}], "gold.jsonl:1: field spans: found an object of 1 key"),
        (
            [{"id": 1, "spans": [{"start": 1.5, "end": 2}]}],
            "gold.jsonl:1: field spans.0.start: ",
        ),
        ([{"id": 1, "spans": []}] * 2, "gold.jsonl: the id '1' stands twice"),
        ([{"id": 1, "spans": []}], "gold.jsonl: no gold span in it"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_its_place(files, tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        evaluate(written(tmp_path / "gold.jsonl", rows), files[1])
    with pytest.raises(UserError):
        evaluate(str(tmp_path / "nothing.jsonl"), files[1])
