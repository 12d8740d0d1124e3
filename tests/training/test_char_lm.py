"""Character models from a recipe to a run: phases, resuming, figures, continued prompts."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from char_lm_runs import make, write_text
from streaming import answer_all
from training_runs import assert_same_run, train, weights
from typed import typed

from ldt.cli import train as training
from ldt.data.characters import Alphabet
from ldt.errors import DataError, RecipeError, UserError
from ldt.inference.answer_file import AnswerStream
from ldt.inference.generate import CharacterPredictor, choose
from ldt.inference.perplexity import is_character_model, perplexity
from ldt.io.records import Example
from ldt.model import LdtForCausalLM
from ldt.model.loading import read_tokenizer
from ldt.recipe import recipe as recipes
from ldt.recipe.run import Run
from ldt.tasks.language_models import Sampling, character_lm_metrics
from ldt.training.char_lm import phases
from ldt.training.trainer import Trainer

ONE_LIBRARY = {"LDT_ONEDNN": "1", "OMP_NUM_THREADS": "1"}
RECIPES = Path(__file__).parents[2] / "recipes"
ONE_STEP = "task.phases=[{steps: 1}]"


@pytest.fixture
def recipe(tmp_path, monkeypatch, one_library):
    """`make`, in a directory with a text."""
    monkeypatch.chdir(tmp_path)
    write_text()
    return make


@pytest.fixture(scope="module")
def runs_of_a_step(tmp_path_factory):
    """Folder of a run of one step, r."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("step"))
        write_text()
        training.train(make(ONE_STEP))
        return Path("runs").absolute()


def results(run):
    return json.loads((Path(run) / "metrics.json").read_text("utf-8"))


# -- phases


def test_the_small_recipe_has_the_papers_phases():
    plan = phases(recipes.load(RECIPES / "charlm_small.yaml", command="pretrain"))
    assert [own.data.max_length for own in plan] == [2048, 4096, 8192, 16384, 23040]
    ends = [(own.model.window[0], own.model.window[-1]) for own in plan]
    assert ends == [(32, 512), (64, 1024), (128, 2048), (256, 4096), (512, 8192)]
    rates = [own.training["learning_rate"] for own in plan]
    assert rates == [2.5e-4, 1.25e-4, 6.25e-5, 3.125e-5, 1.5625e-5]
    steps = [own.training["max_steps"] for own in plan]
    assert steps == [430_000, 50_000, 50_000, 35_000, 5_000]
    assert [own.training["warmup_steps"] for own in plan] == [10_000, 5_000, 5_000, 3_500, 500]
    assert {own.training["lr_scheduler_type"] for own in plan} == {"constant_with_warmup"}
    batches = [own.training["gradient_accumulation_steps"] * 4 for own in plan]
    assert batches == [32, 32, 16, 16, 16]
    places = [Run.of(own).folder for own in plan]
    assert places[-1] == Path("runs/charlm_small")
    assert [own.model.path for own in plan] == [None, *map(str, places[:-1])]


def test_a_phase_says_what_differs_and_the_rest_goes_on(recipe):
    own = "[{epochs: 2, learning_rate: 0.5, batch: 8}, {window: 6, length: 40}, {steps: 3}]"
    plan = phases(recipe(phases=own))
    assert [own.data.max_length for own in plan] == [32, 40, 80]
    assert [own.model.window for own in plan] == [[4, 8], 6, 12]
    assert [own.training["learning_rate"] for own in plan] == [0.5, 0.25, 0.125]
    assert [own.training.get("num_train_epochs") for own in plan] == [2, 2, None]
    assert [own.training.get("max_steps") for own in plan] == [None, None, 3]
    assert [own.training["gradient_accumulation_steps"] for own in plan] == [2, 2, 2]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["task.phases=[{}, {window: 5}]"], "item 2: attention_window must be even, got 5"),
        (["task.phases=[{batch: 6}]"], "6 inputs a step, 4 are run at a time"),
        (["task.eval_step=32"], "32 of inputs of 32; it must be smaller"),
        (["model.config.memory_length=9"], "memory_length must be 0 or at least 16"),
        (["model.config.hidden=9"], "unknown key, did you mean 'hidden_act'"),
        (["model.config.attention_window=8"], r"is set by model\.window"),
        (["training.max_steps=4"], "training.max_steps=4: task.phases say it for each phase"),
        (["model.config=null"], "model: path, a folder of a character model, or config"),
    ],
)
def test_numbers_that_do_not_go_together_are_told_before_anything_is_trained(
    recipe, overrides, words
):
    with pytest.raises(RecipeError, match=words):
        phases(recipe(*overrides))


# -- runs


def test_two_phases_lower_the_bits_per_character_and_leave_a_run_each(recipe, capsys):
    metrics = train(recipe("task.phases=[{steps: 30}, {steps: 10}]"))
    found = results("runs/r")
    assert metrics == found["metrics"]
    first, second = found["table"]
    assert (first["length"], first["windows"]) == (32, "4 to 8")
    assert (second["length"], second["windows"]) == (64, "8 to 16")
    assert second["bits_per_character"] < first["bits_per_character"] < math.log2(14)
    assert second["bits_per_character"] == metrics["eval_bits_per_character"]
    assert results("runs/r/phase-1")["steps"] == 30
    model = LdtForCausalLM.from_pretrained("runs/r")
    assert model.config.attention_window == [8, 16]
    assert "phase 2 of 2: inputs of 64, windows 8 to 16" in capsys.readouterr().err
    card = Path("runs/r/README.md").read_text("utf-8")
    assert "windows 8, 16 from the bottom to the top" in card


def test_a_killed_training_goes_on_bit_by_bit_in_its_phase(recipe, monkeypatch):
    class Stop(Exception):
        pass

    train(recipe("training.output_dir=runs/whole"))
    run = Trainer.training_step
    for step in (3, 7):
        own, seen = recipe(f"training.output_dir=runs/{step}"), []

        def training_step(self, *args, step=step, seen=seen, **kwargs):
            seen.append(1)
            if len(seen) == step + 1:
                raise Stop
            return run(self, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "training_step", training_step)
            with pytest.raises(Stop):
                train(own)
        train(own, resume=True)
        for part in ("", "/phase-1"):
            found = results(f"runs/whole{part}")
            found["base_model"] = found["base_model"] and f"runs/{step}/phase-1"
            Path(f"runs/whole{part}/metrics.json").write_text(json.dumps(found), "utf-8")
            assert_same_run(f"runs/whole{part}", f"runs/{step}{part}")


def test_a_finished_training_stays_and_is_replaced_when_asked(recipe, capsys):
    metrics = train(recipe())
    before = Path("runs/r/model.safetensors").stat().st_mtime_ns
    assert train(recipe(), resume=True) == metrics
    own = recipes.load("runs/r/recipe.yaml", command="pretrain")
    assert train(own, resume=True) == metrics
    assert Path("runs/r/model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(UserError, match=r"phase-1: holds this run, finished; --overwrite"):
        train(recipe())
    assert train(recipe("training.seed=5"), overwrite=True) != metrics


def test_memory_of_transformer_xl_is_a_setting_of_the_same_model(recipe):
    with_memory = ["model.config.memory_length=8", "task.phases=[{steps: 2}]"]
    train(recipe(*with_memory, "training.output_dir=runs/memory"))
    train(recipe("task.phases=[{steps: 2}]", "training.output_dir=runs/none"))
    one, other = weights("runs/memory"), weights("runs/none")
    assert not torch.equal(one["layers.0.wide.weight"], other["layers.0.wide.weight"])


@pytest.mark.slow
def test_two_processes_train_what_one_does(recipe):
    same = ["model.config.hidden_dropout_prob=0", "training.per_device_train_batch_size=2"]
    made = recipe(*same, "task.phases=[{steps: 3, batch: 4}, {}]")
    train(made)
    Path("two.yaml").write_text(recipes.dump(made), "utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["-m", "ldt", "pretrain", "two.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ONE_LIBRARY)
    assert done.returncode == 0, done.stderr
    for part in ("phase-1", ""):
        torch.testing.assert_close(weights(f"runs/two/{part}"), weights(f"runs/r/{part}"))


# -- figures


def test_figures_are_bits_by_hand():
    found = character_lm_metrics(nats=6 * math.log(2), scored=3, characters=10, size=20)
    assert found == pytest.approx(
        {"loss": 2 * math.log(2), "bits_per_character": 2.0, "bits_per_byte": 1.0}
    )


def nats_by_hand(model, ids, length, step):
    """The mean over all characters but the first, each from its own sequence alone."""
    total = 0.0
    for place in range(1, len(ids)):
        end = length if place < length else length + step * math.ceil((place + 1 - length) / step)
        start = max(0, min(end, len(ids)) - length)
        seen = torch.tensor(ids[start:place].astype(np.int64))[None]
        with torch.no_grad():
            total -= model(seen).logits[0, -1].log_softmax(-1)[ids[place]].item()
    return total / (len(ids) - 1)


def test_the_evaluation_is_that_of_every_character_from_its_sequence(recipe):
    made = recipe("task.phases=[]", "training.max_steps=4", "task.eval_length=24")
    metrics = train(made)
    model = LdtForCausalLM.from_pretrained("runs/r").double().eval()
    text = Path("text").read_bytes()
    share = round(0.05 * len(text))
    alphabet = Alphabet.of_tokenizer(read_tokenizer("runs/r"), "runs/r")
    parts = {"test": text[-share:], "eval": text[-2 * share : -share]}
    for part, raw in parts.items():
        ids = alphabet.encode(raw, part)
        (found,) = perplexity("runs/r", part=part, lengths=[24], step=12).rows
        assert found["loss"] == pytest.approx(nats_by_hand(model, ids, 24, 12), rel=1e-5)
        assert found["scored"] == share - 1
        if part == "eval":
            assert metrics["eval_loss"] == pytest.approx(found["loss"], rel=1e-6)
    Path("other").write_bytes(parts["test"])
    assert perplexity("runs/r", ["other"], lengths=[24], step=12).rows[0]["loss"] == pytest.approx(
        perplexity("runs/r", part="test", lengths=[24]).rows[0]["loss"]
    )


def test_bits_of_what_is_not_there_are_refused(recipe, tiny_longformer):
    train(recipe("task.phases=[{steps: 1}]", "data.test_fraction=null"))
    assert is_character_model("runs/r")
    assert not is_character_model(tiny_longformer)
    for options, words in (
        ({}, "--gold with a text, or --part"),
        ({"part": "test"}, "names a text for test"),
        ({"part": "eval", "step": 32}, r"--step 32: sequences of 32; 1 to 31"),
    ):
        with pytest.raises(UserError, match=words):
            perplexity("runs/r", **options)


def test_the_command_measures_character_models_too(recipe, runs_of_a_step, capsys):
    shutil.copytree(runs_of_a_step, "runs")
    code, out, _ = typed(capsys, "evaluate", "runs/r", "--part", "test", "--json", "b.json")
    assert code == 0
    (row,) = json.loads(Path("b.json").read_text("utf-8"))["rows"]
    assert (row["length"], row["step"]) == (32, 16)
    assert f"{row['bits_per_character']:.4f}" in out


# -- continued prompts


@pytest.fixture
def sampler(recipe, runs_of_a_step):
    def predictor(*overrides):
        return CharacterPredictor(runs_of_a_step / "r", recipe(ONE_STEP, *overrides), "cpu")

    return predictor


def continued(sampler, *lines, batch_tokens=10_000):
    class Sink(AnswerStream):
        def __init__(self):
            self.answers = []

        def write(self, answers):
            self.answers += answers

    examples = [Example(line, number + 1, f"p:{number + 1}") for number, line in enumerate(lines)]
    sink = Sink()
    answer_all(examples, sampler, sink, batch_tokens=batch_tokens)
    return [answer["text"] for answer in sink.answers]


def test_prompts_go_on_alike_for_one_seed_alone_or_together(sampler):
    made = sampler("task.sampling={length: 30}")
    lines = [
        {"text": "the p"},
        {"text": "party of first part.\nthe first party"},
        {"text": "the p"},
    ]
    together = continued(made, *lines)
    assert all(
        text.startswith(line["text"]) and len(text) == len(line["text"]) + 30
        for text, line in zip(together, lines, strict=True)
    )
    assert together == continued(made, *lines, batch_tokens=1)
    assert together[0] != together[2]  # other draws for another line
    assert together != continued(made, *(line | {"seed": 1} for line in lines))


def test_without_temperature_the_most_probable_character_follows(sampler):
    made = sampler("task.sampling={temperature: 0, length: 25}")
    (text,) = continued(made, {"text": "the par"})
    ids = made.alphabet.encode(text.encode(), "text").astype(np.int64)
    with torch.no_grad():
        logits = made.model(torch.tensor(ids)[None]).logits[0]
    assert logits[6:-1].argmax(-1).tolist() == ids[7:].tolist()
    line = {"text": "the par", "temperature": 2.0, "top_k": 1}
    assert continued(made, line) == [text]


def test_draws_have_the_models_probabilities():
    logits, sampling = torch.tensor([0.0, 1.0, 2.0, -30.0]).double(), Sampling(temperature=0.5)
    draws = (np.arange(10_000) + 0.5) / 10_000
    found = np.bincount([choose(logits, sampling, draw) for draw in draws], minlength=4) / 10_000
    assert found == pytest.approx((logits / 0.5).softmax(0).tolist(), abs=2e-4)
    few = Sampling(temperature=0.5, top_k=2)
    found = {choose(logits, few, draw) for draw in draws}
    assert found == {1, 2}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"text": ""}, "p:1: 'text' is empty"),
        ({"text": "the Z"}, r"p:1: the character 'Z' \(U\+005A\)"),
        ({"prompt": "the"}, "p:1: no field 'text'"),
        ({"text": "the", "top_k": 0}, "p:1: top_k: expected greater than or equal to 1, got 0"),
    ],
)
def test_prompts_that_cannot_be_used_are_told(sampler, line, words):
    with pytest.raises(DataError, match=words):
        continued(sampler(), line)


@pytest.mark.slow
def test_predict_continues_a_file_of_prompts(recipe, capsysbinary):
    train(recipe("task.phases=[{steps: 1}]", "task.sampling={length: 9, seed: 4}"))
    Path("p.jsonl").write_text('{"text": "the "}\n{"text": "p", "length": 3, "id": "x"}\n', "utf-8")
    command = ["predict", "--input", "p.jsonl", "--model", "runs/r"]
    said = []
    capsysbinary.readouterr()
    for more in ([], ["--workers", "2", "--device", "cpu"]):
        code, out, _ = typed(capsysbinary, *command, *more)
        assert code == 0
        said.append(out)
    first, second = map(json.loads, said[0].splitlines())
    assert first["text"].startswith("the ")
    assert (len(first["text"]), len(second["text"])) == (13, 4)
    assert second["id"] == "x"
    assert said[0] == said[1]


def test_a_model_of_bytes_reads_and_writes_any_text(recipe):
    Path("raw").write_bytes(bytes(range(256)) * 8)
    overrides = ["task.vocabulary=bytes", "data.train=raw", "task.phases=[{steps: 1}]"]
    made = recipe(*overrides)
    train(made)
    assert results("runs/r")["unit"] == "byte"
    sampler = CharacterPredictor(Path("runs/r"), made, "cpu")
    (text,) = continued(sampler, {"text": "漢字", "length": 5})
    assert text.startswith("漢字")
