"""training.lora: an adapter and the head are trained, saved, resumed, merged and predicted with."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import recipe_data
import torch
from longformers import ldt_config, reconfigured
from safetensors.torch import load_file
from training_runs import assert_same_run, train

from ldt.errors import ModelError, RecipeError
from ldt.inference.predict import predict
from ldt.model import LdtForSequenceClassification, load
from ldt.model.adapters import PROJECTIONS
from ldt.recipe import recipe as recipes
from ldt.tasks import TASKS
from ldt.tasks.writing import WritingTask
from ldt.training.arguments import settings
from ldt.training.lora import adapt

HEADS = list(
    dict.fromkeys(
        task.model_construct().head()
        for task in TASKS.values()
        if task.reads.kind == "examples" and not issubclass(task, WritingTask)
    )
)
LORA = ("training.lora={r: 4, alpha: 8}", "training.learning_rate=0.01")


def answers(model, out):
    predict("dev.jsonl", model=model, output=out)
    return [json.loads(line) for line in Path(out).read_text().splitlines()]


def adapter_of(run):
    return load_file(f"runs/{run}/adapter/adapter_model.safetensors")


def assert_same_adapter(one, other):
    """The same but for rounding; of B, zeros at the beginning, next to its largest number."""
    largest = max(x.abs().max() for name, x in one.items() if "lora_B" in name)
    assert largest > 0
    assert one.keys() == other.keys()
    for name, x in one.items():
        far = 1e-3 * largest if "lora_B" in name else 1e-5
        assert (x - other[name]).abs().max() < far, name


def same_answers(found, expected):
    """The same but for rounding of probabilities."""
    assert len(found) == len(expected) > 0
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert ours[key] == pytest.approx(theirs[key], abs=1e-5), key


def test_a_run_trains_all_six_projections_and_the_head_alone(recipe, tiny_longformer, caplog):
    caplog.set_level("INFO", "ldt")
    train(recipe(*LORA, "training.num_train_epochs=4"))
    adapter = adapter_of("r")
    for name in PROJECTIONS:
        for half in ("lora_A", "lora_B"):
            tensors = [x for key, x in adapter.items() if f".{name}.{half}." in key]
            # The classifier reads a global token of the last layer, which has no use of local maps.
            used = tensors if "global" in name else tensors[:1]
            assert len(tensors) == 2
            assert all(x.any() for x in used), (name, half)
    head = {key for key in adapter if "lora_" not in key}
    assert {key.removeprefix("base_model.model.").split(".")[0] for key in head} == {"classifier"}
    base = load(tiny_longformer, LdtForSequenceClassification).state_dict()
    changed = {
        key
        for key, x in load_file("runs/r/model.safetensors").items()
        if "classifier" not in key and not torch.equal(x, base[key])
    }
    assert {key.split(".")[-2] for key in changed} == set(PROJECTIONS)
    assert all(key.endswith(".weight") for key in changed)
    assert " of them trained" in caplog.text
    card = Path("runs/r/README.md").read_text()
    assert (
        "a LoRA adapter merged into it (r 4, alpha 8.0, on query, key, value, query_global" in card
    )
    resolved = recipes.load("runs/r/recipe.yaml", command="finetune")
    assert settings(resolved)["lora"] == {
        "r": 4,
        "alpha": 8.0,
        "dropout": 0.0,
        "targets": list(PROJECTIONS),
    }


def test_the_run_the_adapter_and_a_checkpoint_answer_alike(recipe, place):
    train(recipe(*LORA), keep_checkpoints=True)
    expected = answers("runs/r", "merged.jsonl")
    same_answers(answers("runs/r/adapter", "adapter.jsonl"), expected)
    best = max(Path("runs/r").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    assert (best / "adapter_model.safetensors").is_file()
    assert not (best / "model.safetensors").exists()
    assert len(answers(str(best), "checkpoint.jsonl")) == len(expected)


def test_the_head_of_an_adapter_goes_on_by_the_names_of_its_labels(recipe):
    train(recipe(*LORA))
    whole = load("runs/r/adapter", LdtForSequenceClassification)
    names = list(whole.config.id2label.values())[::-1]
    numbers = {name: number for number, name in enumerate(names)}
    turned = load(
        "runs/r/adapter",
        LdtForSequenceClassification,
        id2label=dict(enumerate(names)),
        label2id=numbers,
    )
    assert torch.equal(turned.classifier.out_proj.weight, whole.classifier.out_proj.weight.flip(0))


@pytest.mark.fast("more0")
@pytest.mark.parametrize(
    "more", [(), ("training.lora.dropout=0.3",), ("training.lora.targets=all-linear",)]
)
def test_a_run_that_died_resumes_bit_by_bit(recipe, at_step, more):
    train(recipe(*LORA, *more, "training.output_dir=runs/whole"))

    def die(model):
        raise KeyError

    at_step(6, die)
    with pytest.raises(KeyError):
        train(recipe(*LORA, *more))
    at_step(0, None)
    train(recipe(*LORA, *more), resume=True)
    assert_same_run("runs/whole", "runs/r")
    one, other = adapter_of("whole"), adapter_of("r")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.fast("runs/r/adapter")
@pytest.mark.parametrize("folder", ["runs/r", "runs/r/adapter"])
def test_a_run_and_its_adapter_are_the_base_of_another_run(recipe, folder):
    train(recipe(*LORA))
    other = "training.output_dir=runs/further"
    metrics = train(recipe(f"model.path={folder}", other, "training.max_steps=2"))
    assert metrics["train_loss"] > 0
    further = "training.output_dir=runs/adapted"
    train(recipe(*LORA, f"model.path={folder}", further, "training.max_steps=2"))
    expected = answers("runs/adapted", "a.jsonl")
    same_answers(answers("runs/adapted/adapter", "b.jsonl"), expected)


@pytest.mark.parametrize("targets", ["all-linear", ["query", "dense"]], ids=str)
@pytest.mark.parametrize("cls", HEADS, ids=lambda cls: cls.__name__)
def test_of_every_head_all_is_trained_and_of_the_encoder_only_adapters(cls, targets, recipe):
    model = cls(ldt_config())
    before = {name for name, _ in model.named_parameters()}
    encoder = {
        f"{model.base_model_prefix}.{name}" for name, _ in model.base_model.named_parameters()
    }
    pooler = {name for name in encoder if ".pooler." in name}
    lora = {"r": 2, "alpha": 4.0, "dropout": 0.0, "targets": targets}
    adapted = adapt(model, recipe(), lora, [])
    trained = {
        name.removeprefix("base_model.model.").replace("modules_to_save.default.", "")
        for name, x in adapted.named_parameters()
        if x.requires_grad
    }
    assert {name for name in trained if "lora_" not in name} == (before - encoder) | pooler
    assert all(".encoder.layer." in name for name in trained if "lora_" in name)


def test_tokens_of_a_task_are_trained_saved_and_read(recipe, place):
    """WikiHop adds four tokens, which the base does not have: nor does the adapter's base."""
    lines = [json.dumps({"id": n} | recipe_data.wikihop(n)) for n in range(8)]
    Path("wikihop.jsonl").write_text("\n".join(lines) + "\n")
    data = "data={train: wikihop.jsonl, eval: wikihop.jsonl}"
    train(recipe(*LORA, "task={name: wikihop}", data))
    adapter = adapter_of("r")
    (rows,) = (x for name, x in adapter.items() if "trainable_tokens" in name)
    assert len(rows) == 4
    head = recipes.load("runs/r/recipe.yaml").task.head()
    merged, again = load("runs/r", head), load("runs/r/adapter", head)
    assert torch.equal(merged.get_input_embeddings().weight[-4:], rows)
    for (name, one), other in zip(
        merged.state_dict().items(), again.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name
    predict("wikihop.jsonl", model="runs/r/adapter", output="a.jsonl")
    predict("wikihop.jsonl", model="runs/r", output="b.jsonl")
    assert Path("a.jsonl").read_text() == Path("b.jsonl").read_text()


@pytest.fixture
def plain(place, tiny_longformer):
    """Overrides: an adapter by SGD, without dropout."""
    base = reconfigured(
        Path(shutil.copytree(tiny_longformer, "base")),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    optim = "training.optim=sgd", "training.learning_rate=0.1", "training.warmup_steps=0"
    return "training.lora={r: 4}", f"model.path={base}", *optim


@pytest.mark.slow
def test_two_processes_train_an_adapter_as_one(recipe, plain):
    train(recipe(*plain, "training.output_dir=runs/one", "training.gradient_accumulation_steps=4"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = ["--nproc-per-node", "2", "--master-port", str(free.getsockname()[1])]
    more = [*plain, "training.output_dir=runs/two", "training.gradient_accumulation_steps=2"]
    launcher = [sys.executable, "-m", "torch.distributed.run", *where, "-m", "ldt"]
    done = subprocess.run(
        [*launcher, "finetune", "r.yaml", *more],
        env=os.environ | {"LDT_ONEDNN": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert_same_adapter(adapter_of("one"), adapter_of("two"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.lora.r=0", "training.lora.r=0: expected greater than or equal to 1, got 0"),
        ("training.lora.rank=4", "unknown key"),
        ("training.lora.targets=[qery]", "the encoder has no layer 'qery', did you mean 'query'"),
        ("training.lora={targets: []}", "at least 1"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_line(recipe, override, message):
    with pytest.raises(RecipeError, match=message):
        train(recipe(override))


def test_without_peft_one_line_says_what_to_install(recipe, monkeypatch):
    monkeypatch.setattr("ldt.training.lora.find_spec", lambda name: None)
    with pytest.raises(
        RecipeError, match=r"training.lora.*needs peft: pip install 'ldt-toolkit\[lora\]'$"
    ):
        train(recipe(*LORA))


def test_an_adapter_without_its_base_says_so(recipe, tiny_longformer, tmp_path):
    shutil.copytree(tiny_longformer, "base")
    train(recipe(*LORA, "model.path=base", "training.max_steps=2"))
    shutil.rmtree("base")
    with pytest.raises(ModelError, match=r"adapter_config.json: the adapter's base is not there: "):
        predict("dev.jsonl", model="runs/r/adapter", output="x.jsonl")
    assert answers("runs/r", "y.jsonl")
