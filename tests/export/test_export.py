"""A run exported to ONNX: a proven file, `ldt predict --runtime onnx`, lines that need no ldt."""

import json
import logging
import shutil
import sys
from pathlib import Path

import pytest
from exported import DOCUMENTS, TASKS, answered, longer, make_run
from safetensors.torch import load_file, save_file
from served import assert_same, predicted
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

import ldt
from ldt.errors import ModelError, UserError
from ldt.inference.runtimes import FORMATS
from ldt.model import LdtModernBertConfig
from ldt.recipe.recipe import of_keys

for package in ("onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="pip install 'ldt-toolkit[export]' has what exports")

from ldt.export import export, folder, graph  # noqa: E402

OFTEN = ("classification",)  # of every run of the tests; an export takes 10 seconds
ALL = [
    pytest.param(task, marks=[] if task in OFTEN else pytest.mark.nightly, id=task)
    for task in TASKS
]


@pytest.fixture
def instantly(exported, monkeypatch):
    """Has exports write the graph of ``exported``, which is there; the same of the run's copies."""
    run, folder = exported("classification")
    monkeypatch.setattr(graph, "write", lambda *args: shutil.copy(folder / "model.onnx", args[3]))
    return run


@pytest.mark.parametrize("task", ALL)
def test_an_exported_model_answers_as_the_run_does(task, exported, tmp_path):
    run, folder = exported(task)
    documents = list(longer(DOCUMENTS[task]))
    expected = predicted(run, documents, tmp_path)
    assert_same(predicted(folder, documents, tmp_path, runtime="onnx"), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "window", "globals_", "format"),
    [
        ("classification", None, "none", "onnx"),
        ("classification", None, "none", "torch"),
        pytest.param("classification", 6, "first", "onnx", marks=pytest.mark.nightly),
        pytest.param("squad", None, "none", "onnx", marks=pytest.mark.nightly),
        pytest.param("wikihop", 6, "given", "onnx", marks=pytest.mark.nightly),
    ],
)
def test_an_exported_modernbert_answers_as_the_run_does(
    task, window, globals_, format, tokenizer_folder, tmp_path
):
    changes = {"of": LdtModernBertConfig, "full_attention_window": window}
    run = make_run(tokenizer_folder, tmp_path / "run", task, **changes)
    report = export(run, tmp_path / "exported", format=format)
    assert report.interface.globals_ == globals_
    said = (tmp_path / "exported" / "README.md").read_text()
    full = "full layers, whose memory grows with the square of the length" in said
    assert full == (window is None)
    documents = list(longer(DOCUMENTS[task]))
    runtime = FORMATS[format].runtime
    found = predicted(tmp_path / "exported", documents, tmp_path, runtime=runtime)
    assert_same(found, predicted(run, documents, tmp_path))


@pytest.mark.parametrize("task", ALL)
def test_the_lines_of_the_readme_answer_without_torch_and_ldt(task, exported, tmp_path):
    run, folder = exported(task)
    (expected,) = predicted(run, [DOCUMENTS[task]], tmp_path)
    found = answered(folder, DOCUMENTS[task])
    assert found
    assert_same(found, {key: expected[key] for key in found})


@pytest.mark.parametrize(
    ("problem", "decisions"),
    [
        (
            "single_label_classification",
            {"calibration": {"method": "temperature", "temperature": 2.5}},
        ),
        ("single_label_classification", {"thresholds": {"007": 0.001}}),
        ("single_label_classification", {"thresholds": {"no": 0.999}}),
        (
            "multi_label_classification",
            {
                "calibration": {
                    "method": "platt",
                    "weights": [[2.0, -0.1], [0.5, 0.2], [1.5, 1.0]],
                },
                "thresholds": {"yes": 0.3, "no": 0.6, "007": 0.9},
            },
        ),
    ],
)
def test_the_lines_of_the_readme_decide_as_the_run_does(problem, decisions, instantly, tmp_path):
    run = shutil.copytree(instantly, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    measured = {"ece": [0.2, 0.1], "documents": 9}
    config |= {"problem_type": problem, "decisions": decisions | {"measured": measured}}
    (run / "config.json").write_text(json.dumps(config))
    export(run, tmp_path / "onnx")
    (expected,) = predicted(run, [DOCUMENTS["classification"]], tmp_path)
    found = answered(tmp_path / "onnx", DOCUMENTS["classification"])
    assert_same(found, {key: expected[key] for key in found})


def test_the_readme_says_which_decisions_its_lines_leave_out(instantly, tmp_path):
    run = shutil.copytree(instantly, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    calibration = {"method": "beta", "weights": [[1.5, 0.5, 0.1]] * 3}
    config |= {"problem_type": "multi_label_classification"}
    config["decisions"] = {"calibration": calibration, "measured": {"ece": [0.2, 0.1]}}
    (run / "config.json").write_text(json.dumps(config))
    export(run, tmp_path / "onnx")
    said = (tmp_path / "onnx/README.md").read_text()
    assert "are calibrated (beta); these lines leave that out" in said


def test_tokenizer_json_has_the_types_of_its_tokenizer(tokenizer_folder, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    given = {name: getattr(tokenizer, f"{name}_token") for name in ("cls", "sep")}
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="{cls} $A {sep}".format(**given),
        pair="{cls} $A {sep} $B:1 {sep}:1".format(**given),
        special_tokens=[(each, tokenizer.convert_tokens_to_ids(each)) for each in given.values()],
    )
    tokenizer.save_pretrained(tmp_path)
    folder.complete_tokenizer(tmp_path / "tokenizer.json", tokenizer, 12)
    row = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("the party", "the other")
    assert row.type_ids[: row.tokens.index(given["sep"]) + 1].count(1) == 0
    assert row.type_ids[row.tokens.index(given["sep"]) + 1 :].count(0) == 0


def test_the_file_stands_alone_and_has_standard_operators_and_free_sizes(exported):
    import onnx

    _, folder = exported("classification")
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    assert {node.domain for node in model.graph.node} == {""}
    assert not any(each.external_data for each in model.graph.initializer)
    sizes = {
        each.name: [size.dim_param or size.dim_value for size in each.type.tensor_type.shape.dim]
        for each in (*model.graph.input, *model.graph.output)
    }
    assert list(sizes.items()) == [
        ("input_ids", ["batch", "length"]),
        ("attention_mask", ["batch", "length"]),
        ("logits", ["batch", 3]),
    ]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    lengths = [len(row.ids) for row in tokenizer.encode_batch(["a party " * 99, "a"])]
    assert lengths == [64, 64]  # cut to data.max_length, and padded
    names = {"README.md", "config.json", "model.onnx", "recipe.yaml", "tokenizer.json"}
    assert {path.name for path in folder.iterdir()} - {"tokenizer_config.json"} == names
    assert json.loads((folder / "config.json").read_text())["num_labels"] == 3


def test_passages_and_python_go_by_the_exported_model(exported, tmp_path):
    run, folder = exported("classification")
    documents = list(longer(DOCUMENTS["classification"]))
    asked = {"passages": 2, "passages_by": "occlusion", "chunks": True}
    found = predicted(folder, documents, tmp_path, runtime="onnx", **asked)
    assert_same(found, predicted(run, documents, tmp_path, **asked))
    text = documents[-1]["text"]
    assert_same(ldt.load(str(folder), runtime="onnx")(text), ldt.load(str(run))(text))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"precision": "int8"}, "an exported model has its own"),
        ({"device": "cuda"}, "device=cuda: runtime=onnx runs on the cpu"),
        ({"passages": 1}, "there are no gradients in onnx"),
    ],
)
def test_what_an_exported_model_cannot_is_refused(options, line, exported, tmp_path):
    _, folder = exported("classification")
    with pytest.raises(UserError, match=line):
        predicted(folder, [], tmp_path, runtime="onnx", **options)


def test_a_damaged_file_is_an_error_of_the_model(exported, tmp_path):
    _, folder = exported("classification")
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "model.onnx").write_bytes((folder / "model.onnx").read_bytes()[:2000])
    with pytest.raises(ModelError, match=r"model\.onnx: cannot be read"):
        predicted(copy, [DOCUMENTS["classification"]], tmp_path, runtime="onnx")


@pytest.mark.parametrize(
    ("name", "rows", "factor"),
    [
        ("encoder.layer.0.attention.self.value_global.weight", slice(None), 1.002),
        ("embeddings.position_embeddings.weight", slice(60, None), 1.5),  # of the longest case
    ],
)
def test_a_file_that_computes_something_else_is_not_left_behind(
    name, rows, factor, instantly, tokenizer_folder, tmp_path
):
    other = make_run(tokenizer_folder, tmp_path / "run", "classification")
    weights = load_file(other / "model.safetensors")
    weights[f"longformer.{name}"][rows] *= factor
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match="differs from the model by .* is not written"):
        export(other, tmp_path / "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_report_has_the_version_asked_for_and_the_longest_input(instantly, monkeypatch, tmp_path):
    asked, write = [], graph.write
    monkeypatch.setattr(graph, "write", lambda *args: (asked.append(args[4:]), write(*args)))
    report = export(instantly, tmp_path / "onnx", opset=21)
    assert asked == [("onnx", 21)]
    assert report.opset == 21
    assert max(check.tokens for check in report.checks) == 64  # data.max_length
    export(instantly, tmp_path / "other")
    assert asked[1] == ("onnx", graph.OPSET)


def test_a_model_whose_outputs_are_not_finite_is_not_exported(instantly, tmp_path):
    run = shutil.copytree(instantly, tmp_path / "run")
    weights = load_file(run / "model.safetensors")
    weights["classifier.out_proj.weight"][:] = 3e38
    save_file(weights, run / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match="its outputs are not finite"):
        export(run, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


def test_weights_that_onnx_does_not_hold_are_refused_in_a_line(
    tokenizer_folder, tmp_path, monkeypatch
):
    run = make_run(tokenizer_folder, tmp_path / "run", "classification")
    monkeypatch.setattr(graph, "LARGEST", 1000)
    log = logging.getLogger("torch.onnx")
    level = log.level
    with pytest.raises(ModelError, match="ONNX holds less than 2 GiB, --format torch more"):
        export(run, tmp_path / "onnx")
    assert log.level == level != logging.ERROR
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("task", "changes", "line"),
    [
        ("evidence_classification", {}, "its head is LdtForEvidenceClassification; ldt predict"),
        ("coreference", {}, "its head is LdtForCoreference; ldt predict and ldt serve run"),
        ("classification", {"attention_dilation": 2}, "dilated attention has no form in onnx"),
    ],
)
def test_what_has_no_form_is_refused_in_a_line(
    task, changes, line, tokenizer_folder, tmp_path, monkeypatch
):
    monkeypatch.setitem(TASKS, "evidence_classification", ({}, {"num_labels": 2}))
    monkeypatch.setitem(TASKS, "coreference", ({}, {"coref_head": {"ffnn_size": 8}}))
    run = make_run(tokenizer_folder, tmp_path / "run", task, **changes)
    with pytest.raises(ModelError, match=line):
        export(run, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


def test_missing_packages_and_wrong_options_are_said(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="--opset 9: --format onnx has 18 to 23"):
        export("run", tmp_path / "onnx", opset=9)
    monkeypatch.setattr("ldt.export.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'ldt-toolkit\[export\]'"):
        export("run", tmp_path / "onnx")


@pytest.mark.parametrize(
    ("task", "asked", "types", "globals_", "inputs"),
    [
        ("classification", ["cls"], 1, "first", []),
        ("classification", [], 1, "none", []),
        ("classification", ["document"], 1, "given", ["global_attention_mask"]),
        ("squad", ["cls", "question"], 1, "question", []),
        ("squad", ["question"], 2, "given", ["global_attention_mask", "token_type_ids"]),
        ("multiple_choice", ["cls", "question", "choice"], 2, "question", []),
        ("reranking", ["cls", "query"], 2, "question", ["token_type_ids"]),
        ("wikihop", ["cls"], 2, "first", ["positions"]),
    ],
)
def test_the_graph_finds_global_tokens_or_asks_for_them(task, asked, types, globals_, inputs):
    made = of_keys({"name": task, "global_attention": asked}, [], "test").task
    config = ldt.model.LdtConfig(type_vocab_size=types)
    found = graph.GraphInterface.of(made, config)
    assert found.globals_ == globals_
    assert found.inputs == ("input_ids", "attention_mask", *inputs)


def test_int8_is_smaller_and_its_answers_are_compared(exported, instantly, tmp_path, monkeypatch):
    from ldt.errors import PrecisionError
    from ldt.export import int8

    documents = tmp_path / "documents.jsonl"
    lines = [{"text": each["text"]} for each in longer(DOCUMENTS["classification"])]
    documents.write_text("".join(json.dumps(each) + "\n" for each in lines))
    with pytest.raises(UserError, match=r"--check FILE names documents"):
        export(instantly, tmp_path / "onnx", precision="int8")
    asked = {"precision": "int8", "check": str(documents)}
    found = export(instantly, tmp_path / "onnx", max_changed=0, **asked).comparison
    assert (found.documents, found.changed) == (3, 0)
    assert 0 < found.drift < 1
    import onnx

    parts = onnx.load(tmp_path / "onnx/model.onnx").graph.initializer
    kinds = [part.data_type for part in parts if len(part.dims) == 2]
    assert kinds.count(onnx.TensorProto.INT8) == 6  # of a layer whose global rows alone are read
    assert f"In int8: {found}." in (tmp_path / "onnx/README.md").read_text()
    assert not list((tmp_path / "onnx").glob("int8*"))
    _, exact = exported("classification")
    found, expected = (
        predicted(folder, lines, tmp_path, runtime="onnx") for folder in (tmp_path / "onnx", exact)
    )
    assert [each["label"] for each in found] == [each["label"] for each in expected]
    assert found != expected
    monkeypatch.setattr(int8, "same_decision", lambda one, other: False)
    with pytest.raises(PrecisionError, match="changes 3 of 3 answers on .* allows; nothing was"):
        export(instantly, tmp_path / "other", **asked)
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_int8_is_smaller_and_a_file_has_no_paths_of_the_machine(tokenizer_folder, tmp_path):
    documents = tmp_path / "documents.jsonl"
    documents.write_text(json.dumps(DOCUMENTS["classification"]) + "\n")
    size = {"hidden_size": 256, "intermediate_size": 512}
    run = make_run(tokenizer_folder, tmp_path / "run", "classification", **size)
    options = {"precision": "int8", "check": str(documents), "max_changed": 1}
    assert 0.2 < export(run, tmp_path / "onnx", **options).comparison.size < 0.6
    content = (tmp_path / "onnx/model.onnx").read_bytes()
    assert str(Path(graph.__file__).parents[1]).encode() not in content


def test_without_onnx_runtime_a_line_says_what_to_install(exported, tmp_path, monkeypatch):
    _, folder = exported("classification")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"pip install 'ldt-toolkit\[export\]' has it"):
        predicted(folder, [DOCUMENTS["classification"]], tmp_path, runtime="onnx")
