"""Position tables other than the tiled one, and the check on a text."""

from pathlib import Path

import pytest
import torch
from convertible import SMALL
from safetensors.torch import load_file

from ldt.convert import convert
from ldt.convert.source import interpolated, random_behind
from ldt.errors import UserError

POSITIONS = "embeddings.position_embeddings.weight"
TEXT = "the party of the first part and the other party agree that this agreement ends\n" * 20


def test_interpolated_positions_lie_between_those_of_the_source():
    rows = torch.tensor([0.0, 2.0, 4.0])[:, None]
    assert interpolated(rows, 5).flatten().tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(interpolated(rows, 3), rows)


def test_random_positions_go_on_behind_those_of_the_source():
    rows = 3 + 5 * torch.randn(16, 400)
    found = random_behind(rows, 64)
    assert torch.equal(found[:16], rows)
    error = 5 / found[16:].numel() ** 0.5  # of a mean
    assert found[16:].mean() == pytest.approx(rows.mean().item(), abs=4 * error)
    assert found[16:].std() == pytest.approx(rows.std().item(), abs=3 * error)
    assert torch.equal(found, random_behind(rows, 64))


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("positions", ["interpolate", "random"])
def test_the_proof_holds_for_every_position_table(kind, positions, make, tmp_path):
    source = make(kind)
    report = convert(source, tmp_path / "long", **SMALL, positions=positions)
    assert report.ok
    assert report.difference < 1e-5
    length = int(report.facts["positions"].split()[0])
    assert f"{length} -> 44 ({positions})" in str(report)
    new = load_file(tmp_path / "long" / "model.safetensors")[POSITIONS]
    old = load_file(source / "model.safetensors")[POSITIONS]
    assert torch.equal(new[-44], old[-length])
    assert torch.allclose(new[-1], old[-1], atol=1e-4) == (positions == "interpolate")


@pytest.mark.parametrize("kind", ["bert", "roberta", "longformer"])
def test_a_check_scores_source_and_converted_model(kind, make, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    source = make(kind, "ForMaskedLM")
    report = convert(source, tmp_path / "long", **SMALL, check=str(tmp_path / "text.txt"))
    names = [name for name, _ in report.scores]
    length = int(report.facts["positions"].split()[0])
    assert names == [f"source at {length} tokens", f"converted at {length}", "converted at 44"]
    before, after, long = (row for _, row in report.scores)
    assert before.masked == after.masked == long.masked > 10
    if kind == "longformer":  # a window of 8, which the source has too
        assert before.loss == pytest.approx(after.loss, rel=1e-5)
    assert before.loss == pytest.approx(after.loss, rel=0.2)
    assert f"{before.bits_per_token:.3f} bits per token" in str(report)


def test_a_check_needs_a_head(make, tmp_path):
    with pytest.raises(UserError, match="--check needs a masked-LM head; .* has none"):
        convert(make("roberta"), tmp_path / "long", **SMALL, check="text.txt")
    assert not Path(tmp_path / "long").exists()
