"""`training.torch_compile`: the losses of eager, by few graphs. aot_eager makes them as any backend
does, without a compiler for C++."""

from pathlib import Path

import pytest
import torch
from longformers import batch, ldt_model
from torch._dynamo.utils import counters
from training_runs import rows, train, weights

from ldt.errors import RecipeError
from ldt.model.layers import Encoder
from ldt.recipe import recipe as recipes
from ldt.training import arguments

COMPILED = "training.torch_compile_backend=aot_eager"
EVERY = "training.logging_steps=1"


@pytest.fixture(autouse=True)
def no_graphs():
    """Neither the graphs of other tests nor their numbers."""
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def losses(run):
    """Of each step, and of each evaluation."""
    return [row[key] for row in rows(run) for key in ("loss", "eval_loss") if key in row]


@pytest.mark.slow
def test_compiled_layers_learn_what_eager_ones_do_by_a_graph_for_training_and_one_for_evaluation(
    recipe, at_step
):
    train(recipe(EVERY, "training.output_dir=runs/eager"))
    assert not counters["stats"]

    def die(model):
        raise KeyboardInterrupt

    options = EVERY, COMPILED, "training.output_dir=runs/fast"
    at_step(6, die)
    with pytest.raises(KeyboardInterrupt):
        train(recipe(*options))
    at_step(0, None)
    train(recipe(*options), resume=True)

    assert len(losses("runs/eager")) > 8
    assert losses("runs/fast") == pytest.approx(losses("runs/eager"), abs=1e-5)
    # For 12 lengths of documents, in batches of 1 and of up to 4. The third is of a batch with as
    # many tokens as the model is wide, which torch takes to be the same number; the fourth is that
    # of `arguments`, which tries the backend.
    assert counters["stats"]["unique_graphs"] <= 4
    assert not counters["graph_break"]
    eager, fast = weights("runs/eager"), weights("runs/fast")
    assert eager.keys() == fast.keys()
    for name in eager:
        torch.testing.assert_close(fast[name], eager[name], atol=1e-4, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("more", ["gradient_checkpointing=true", "lora={r: 2}"])
def test_compiled_layers_go_with(recipe, more):
    if more.startswith("lora"):
        pytest.importorskip("peft")
    options = EVERY, "training.max_steps=2", f"training.{more}", "data.eval=null"
    options += ("training.save_strategy=no",)
    train(recipe(*options, "training.output_dir=runs/eager"))
    train(recipe(*options, COMPILED, "training.output_dir=runs/fast"))
    assert losses("runs/fast") == pytest.approx(losses("runs/eager"), abs=1e-5)
    assert counters["stats"]["unique_graphs"] == 2  # and one that tries the backend
    assert not counters["graph_break"]


def test_the_layers_are_compiled_as_the_recipe_says(recipe, monkeypatch):
    seen = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: seen.append(options) or model)
    monkeypatch.setattr(Encoder, "compile_layers", lambda self, **options: seen.append(options))
    options = "training.torch_compile=true", "training.torch_compile_mode=max-autotune"
    train(recipe("training.max_steps=1", *options))
    assert seen == [{"backend": "inductor", "mode": "max-autotune"}] * 2  # a try, and the layers


def test_what_a_backend_lacks_is_a_line_before_the_first_step(recipe, monkeypatch):
    def fails(model, **options):
        def call(x):
            raise RuntimeError("No working C++ compiler found\n\nSet TORCHDYNAMO_VERBOSE=1")

        return call

    monkeypatch.setattr(torch, "compile", fails)
    with pytest.raises(RecipeError, match=r"torch_compile=true: No working C\+\+ compiler found$"):
        train(recipe("training.torch_compile=true"))


CHARACTERS = """
task: {name: charlm}
model: {path: nowhere}
data: {train: train.jsonl}
training: {torch_compile: true}
"""


def test_what_cannot_be_compiled_is_refused(recipe):
    Path("c.yaml").write_text(CHARACTERS)
    characters = recipes.load("c.yaml", [], command="pretrain")
    compiled = "training.torch_compile=true"
    written = recipe("task={name: summarization}", "data.overflow=truncate", compiled)
    shards = {key: recipe(compiled, f"training.{key}=x") for key in ("fsdp", "deepspeed")}
    lines = {f"does not go with {key}; leave one": made for key, made in shards.items()}
    lines |= {"c.yaml:5: .*layers of character models": characters, "and encoder-decode": written}
    for line, made in lines.items():
        with pytest.raises(RecipeError, match=line):
            arguments.settings(made)


def test_layers_of_more_patterns_than_torch_allows_graphs_have_one_each():
    model = ldt_model("Model", attention_window=[8, 4]).double()
    inputs = batch(21, "right", "one")
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=1):
        expected = model(**inputs).last_hidden_state
        model.encoder.compile_layers(backend="eager")
        found = model(**inputs).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


def test_a_count_of_globals_makes_no_graph_of_its_own():
    model = ldt_model("Model", attention_window=8).double()
    model.encoder.compile_layers(backend="eager")
    for count in (3, 1, 2):
        inputs = {"input_ids": torch.full((1, 20), 5)}
        inputs["global_attention_mask"] = (torch.arange(20)[None] < count).long()
        model(**inputs)
    assert counters["stats"]["unique_graphs"] == 1
