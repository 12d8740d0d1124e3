"""CUDA graphs, recorded on the CPU, in the commands that use them."""

import shutil

import dense
import pytest
from classified import answer, lines_of, write
from longformers import reconfigured

pytest.importorskip("triton")

from recorded import RecordedGraphs

from ldt.attention import BACKENDS
from ldt.model import graphs as module


@pytest.fixture
def recorded(monkeypatch, one_library):
    """The graphs of all models that are asked to use them, as they come."""
    made = []
    monkeypatch.setattr(module, "LEAST", 16)
    monkeypatch.setitem(BACKENDS, "triton", dense)
    monkeypatch.setattr(module, "Graphs", lambda: made.append(RecordedGraphs()) or made[-1])
    return made


@pytest.mark.slow
def test_predict_answers_by_graphs_as_without(fine_tuned, tmp_path, recorded):
    folder = shutil.copytree(fine_tuned, tmp_path / "run")
    source = write(tmp_path / "docs.jsonl", lines_of(30))
    _, expected = answer(source, folder, tmp_path, batch_tokens=130)
    assert not recorded.pop().captures  # on a CPU there are none
    _, found = answer(
        source,
        reconfigured(folder, attention_backend="triton"),
        tmp_path,
        batch_tokens=130,
        overwrite=True,
    )
    (graphs,) = recorded
    assert len(graphs.captures) > 1
    assert [each["label"] for each in found] == [each["label"] for each in expected]
    for mine, other in zip(found, expected, strict=True):
        assert mine["scores"] == pytest.approx(other["scores"], abs=2e-5)
