"""CUDA graphs, recorded on the CPU, in the commands that use them."""

import shutil

import dense
import pytest
from classified import answer, lines_of, write
from longformers import reconfigured
from training_runs import documents, train, weights

pytest.importorskip("triton")

from recorded import RecordedGraphs

from ldt.attention import BACKENDS
from ldt.model import graphs as module
from ldt.recipe import recipe as recipes


@pytest.fixture
def recorded(monkeypatch, one_library):
    """The graphs of all models that are asked to use them, as they come."""
    made = []
    monkeypatch.setattr(module, "LEAST", 16)
    monkeypatch.setitem(BACKENDS, "triton", dense)
    monkeypatch.setattr(module, "Graphs", lambda: made.append(RecordedGraphs()) or made[-1])
    return made


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


@pytest.mark.slow
def test_evaluation_in_training_runs_by_graphs_and_training_without(
    tiny_longformer, tmp_path, recorded, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    documents("train.jsonl", 12, 0)
    documents("dev.jsonl", 7, 1)
    recipe = f"""
task: {{name: classification}}
model: {{path: {tiny_longformer}, attention: triton}}
data: {{train: train.jsonl, eval: dev.jsonl}}
training: {{num_train_epochs: 3, learning_rate: 0.01, eval_strategy: epoch}}
"""
    (tmp_path / "r.yaml").write_text(recipe)
    run = recipes.load("r.yaml", ["training.output_dir=runs/by"], command="finetune")
    by_graphs = train(run)
    captures = [each.captures for each in recorded]
    assert sum(map(len, captures)) >= 2  # from the second evaluation on, anew after each epoch
    monkeypatch.setattr(RecordedGraphs, "device_type", "none")
    run = recipes.load("r.yaml", ["training.output_dir=runs/without"], command="finetune")
    assert train(run) == pytest.approx(by_graphs, abs=1e-5)
    one, other = weights("runs/by"), weights("runs/without")
    assert all((one[name] == other[name]).all() for name in one)
