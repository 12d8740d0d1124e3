"""Exports to OpenVINO and torch.export: the same proof, answers and lines as those to ONNX."""

import importlib.util
import json
import sys

import pytest
from exported import DOCUMENTS, TASKS, answered, longer, make_run
from served import assert_same, predicted

from ldt.errors import ModelError, UserError
from ldt.export import export, graph
from ldt.inference.runtimes import FORMATS

OTHERS = [name for name in FORMATS if name != "onnx"]
WITHOUT = {"openvino": ("torch", "transformers", "ldt"), "torch": ("transformers", "ldt")}


def missing(format):
    """Why a format is not tested here; None where it is."""
    needed = (*FORMATS[format].writes, FORMATS[format].package)
    gone = [name for name in needed if importlib.util.find_spec(name) is None]
    return f"{' and '.join(gone)} is not installed" if gone else None


def cases():
    """A format and a task each; one task of every run of the tests."""
    for format in OTHERS:
        why = missing(format)
        for task in TASKS:
            marks = [pytest.mark.skip(reason=why)] if why else []
            marks += [pytest.mark.nightly] * (task != "classification")
            yield pytest.param(format, task, marks=marks, id=f"{format}-{task}")


one_of_each = pytest.mark.parametrize(("format", "task"), list(cases()))


@one_of_each
def test_another_format_answers_as_the_run_does(format, task, exported, tmp_path):
    run, folder = exported(task, format)
    documents = list(longer(DOCUMENTS[task]))
    found = predicted(folder, documents, tmp_path, runtime=FORMATS[format].runtime)
    assert_same(found, predicted(run, documents, tmp_path))


@pytest.mark.slow
@one_of_each
def test_the_lines_of_its_readme_answer_without_ldt(format, task, exported, tmp_path):
    run, folder = exported(task, format)
    (expected,) = predicted(run, [DOCUMENTS[task]], tmp_path)
    found = answered(folder, DOCUMENTS[task], WITHOUT[format])
    assert found
    assert_same(found, {key: expected[key] for key in found})


@one_of_each
def test_its_folder_holds_the_files_of_its_format_alone(format, task, exported, tmp_path):
    _, folder = exported(task, format)
    names = {"README.md", "config.json", "recipe.yaml", "tokenizer.json", *FORMATS[format].files}
    assert {path.name for path in folder.iterdir()} - {"tokenizer_config.json"} == names
    said = (folder / "README.md").read_text()
    assert f"proof: run by {FORMATS[format].title}" in said
    runtime = FORMATS[format].runtime
    with pytest.raises(ModelError, match=f"an exported model; runtime={runtime} runs it"):
        predicted(folder, [], tmp_path)
    with pytest.raises(ModelError, match=f"an exported model; runtime={runtime} runs it"):
        predicted(folder, [], tmp_path, runtime="onnx")


@one_of_each
def test_its_file_is_damaged_or_what_runs_it_is_missing(
    format, task, exported, tmp_path, monkeypatch
):
    import shutil

    row = FORMATS[format]
    _, folder = exported(task, format)
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / row.file).write_bytes((folder / row.file).read_bytes()[:2000])
    with pytest.raises(ModelError, match=rf"{row.file}: cannot be read"):
        predicted(copy, [DOCUMENTS[task]], tmp_path, runtime=row.runtime)
    if row.extra:
        monkeypatch.setitem(sys.modules, row.package, None)
        with pytest.raises(UserError, match=rf"pip install 'ldt-toolkit\[{row.extra}\]' has it"):
            predicted(folder, [DOCUMENTS[task]], tmp_path, runtime=row.runtime)


@pytest.mark.slow
@pytest.mark.parametrize("format", OTHERS)
def test_a_file_that_computes_something_else_is_not_left_behind(
    format, tokenizer_folder, tmp_path, monkeypatch
):
    if why := missing(format):
        pytest.skip(why)
    run = make_run(tokenizer_folder, tmp_path / "run", "classification")
    write = graph.write

    def other(model, *args):
        model.classifier.out_proj.bias.data[0] += 0.01
        write(model, *args)
        model.classifier.out_proj.bias.data[0] -= 0.01

    monkeypatch.setattr(graph, "write", other)
    with pytest.raises(ModelError, match="differs from the model by .* is not written"):
        export(run, tmp_path / "made", format=format)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("format", OTHERS)
def test_what_a_format_does_not_have_is_refused(format, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=f"int8 is for --format onnx; {format} has fp32 alone"):
        export("run", tmp_path / "made", format=format, precision="int8")
    with pytest.raises(UserError, match="--opset 20: --format onnx has 18 to 23"):
        export("run", tmp_path / "made", format=format, opset=20)
    named = f"'ldt-toolkit[{format}]'" if FORMATS[format].extra else "ldt-toolkit"
    assert FORMATS[format].install == named
    if FORMATS[format].extra:
        monkeypatch.setattr("ldt.export.find_spec", lambda name: None)
        with pytest.raises(UserError, match=rf"pip install 'ldt-toolkit\[{format}\]' has what"):
            export("run", tmp_path / "made", format=format)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "files", "runtime"),
    [("openvino", "model.xml and model.bin", "openvino"), ("torch", "model.pt2", "pt2")],
)
def test_the_report_says_files_and_next_command(format, files, runtime, tokenizer_folder, tmp_path):
    if why := missing(format):
        pytest.skip(why)
    labels = {0: "LABEL_0", 1: "LABEL_1"}  # which transformers does not save
    run = make_run(tokenizer_folder, tmp_path / "run", "classification", id2label=labels)
    report = export(run, tmp_path / "made", format=format)
    lines = "\n".join(report.lines())
    size = sum(path.stat().st_size for path in (tmp_path / "made").glob("model.*"))
    assert f"{files}, {size / 1e6:,.1f} MB, " in lines
    assert report.size == size
    assert "opset" not in lines
    assert f"--runtime {runtime} --model {tmp_path / 'made'}" in lines
    assert json.loads((tmp_path / "made/config.json").read_text())["num_labels"] == 2
    found = answered(tmp_path / "made", DOCUMENTS["classification"], WITHOUT[format])
    assert found["label"] in labels.values()
