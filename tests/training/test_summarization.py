"""Training of summaries, and prediction: what is written, what is measured, what resumes."""

import json
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from recipe_data import summarization
from safetensors.torch import load_file
from training_runs import assert_same_run, train
from transformers import AutoTokenizer, GenerationConfig, LEDForConditionalGeneration

from ldt.benchmarks import evaluate
from ldt.benchmarks.summarization import ROUGE, scorer
from ldt.data.features import Features
from ldt.errors import ModelError, RecipeError, UserError
from ldt.inference.predict import predict
from ldt.io.records import Example
from ldt.model import LdtForConditionalGeneration
from ldt.model.adapters import PROJECTIONS
from ldt.recipe import recipe as recipes
from ldt.recipe.run import Run
from ldt.tasks import QasperGeneration, Summarization
from ldt.training import TrainingOptions, cost
from ldt.training.arguments import settings
from ldt.training.evaluation import ByExample
from ldt.training.finetune import Finetuning
from ldt.training.loop import train as train_job

TEXT = "the party of the first part and the other party agree "
RECIPE = """
task:
  name: summarization
  max_eval_examples: 8
  generation: {num_beams: 3, length_penalty: 2.0, no_repeat_ngram_size: 2, min_length: 4}
data: {train: train.jsonl, eval: dev.jsonl, max_length: 48, overflow: truncate}
training:
  output_dir: runs/r
  max_steps: 4
  eval_steps: 2
  eval_strategy: steps
  learning_rate: 0.02
  per_device_train_batch_size: 2
  per_device_eval_batch_size: 3
  gradient_accumulation_steps: 1
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch, one_library, tiny_led):
    """Makes a recipe of 4 steps with two evaluations of 20 documents, 8 of them summarized."""
    monkeypatch.chdir(tmp_path)
    for name, first, count in (("train", 100, 9), ("dev", 0, 20)):
        lines = [{"id": n} | summarization(n) for n in range(first, first + count)]
        for line in lines:  # figures tell which document has which
            line["summary"] += " It ends." * (line["id"] % 5)
        Path(f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Path("r.yaml").write_text(RECIPE)

    def make(*overrides):
        return recipes.load("r.yaml", [f"model.path={tiny_led}", *overrides], command="finetune")

    return make


@pytest.fixture
def generated(monkeypatch):
    """What the model is asked to write: rows and beams of each call."""
    calls, generate = [], LdtForConditionalGeneration.generate

    def counted(self, **kwargs):
        calls.append((len(kwargs["input_ids"]), kwargs["generation_config"].num_beams))
        return generate(self, **kwargs)

    monkeypatch.setattr(LdtForConditionalGeneration, "generate", counted)
    return calls


def answers(path="answers.jsonl"):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_predict_answers_as_the_evaluation_did_and_as_transformers_does(recipe, generated, caplog):
    metrics = train(recipe())
    assert "missing keys" not in caplog.text
    # A document to know the metrics; a block of 8 in each of two evaluations, of batches of 3; all.
    quick, full = (
        [rows for rows, n in generated if n == 1],
        [rows for rows, n in generated if n > 1],
    )
    assert quick == [1] + 2 * [3, 3, 2]
    assert full == 6 * [3] + [2]
    predict("dev.jsonl", model="runs/r", output="answers.jsonl", batch_tokens=100)
    lines = [json.loads(line) for line in Path("dev.jsonl").read_text().splitlines()]
    found = answers()
    assert [answer["id"] for answer in found] == [line["id"] for line in lines]
    predict("dev.jsonl", model="runs/r", output="answers.txt", layout="summarization")
    assert Path("answers.txt").read_text() == "".join(f"{each['summary']}\n" for each in found)
    for name in ("answers.jsonl", "answers.txt"):
        figures = evaluate("dev.jsonl", name, format="summarization").metrics
        assert {f"eval_{name}": value for name, value in figures.items()}.items() <= metrics.items()
        assert set(ROUGE) <= figures.keys()
    # The same by transformers' model, whose folder it is, one document at a time.
    model = LEDForConditionalGeneration.from_pretrained("runs/r").eval()
    assert model.generation_config.num_beams == 3
    tokenizer = AutoTokenizer.from_pretrained("runs/r")
    learnt = [line["summary"] for line in answers("train.jsonl")]
    sizes = [len(ids) for ids in tokenizer(learnt)["input_ids"]]
    assert model.generation_config.max_length == 1 + round(np.percentile(sizes, 95))
    for line, answer in zip(lines, found, strict=True):
        if isinstance(line["text"], list) or "question" in line:
            continue
        ids = tokenizer(line["text"], truncation=True, max_length=48, return_tensors="pt").input_ids
        marks = torch.zeros_like(ids)
        marks[:, 0] = 1
        (written,) = model.generate(input_ids=ids, global_attention_mask=marks)
        assert tokenizer.decode(written, skip_special_tokens=True).strip() == answer["summary"]


def test_what_is_written_stands_in_the_row_of_its_document():
    class Writer(QasperGeneration):
        def sampled(self, documents):
            return {0, 3}

        def run(self, model, inputs, *, quick):
            ids = inputs["input_ids"][:, :2]
            return {"sequences": ids + 100 * quick, "passage_logits": (ids / 4).bfloat16()}

    features = Features({"input_ids": [n], "document": n} for n in range(4))
    examples = [Example({}, n, "") for n in range(4)]
    measure = ByExample(Writer(), None, features, examples, range(4))
    batch = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])}
    left_out = [-100, -100]
    found = measure.answer(None, batch, [2, 3, 0])
    assert found["sequences"].tolist() == [left_out, [104, 105], [107, 108]]
    assert found["passage_logits"].tolist() == [left_out, [1.0, 1.25], [1.75, 2.0]]
    assert found["passage_logits"].dtype == torch.float32
    found = measure.answer(None, batch, [1, 2])
    assert found["sequences"].tolist() == 3 * [[-100]]
    assert found["passage_logits"].dtype == torch.float32  # as of the batches beside it
    assert measure.answer(None, batch, [1, 2, 2], every=True)["sequences"][0].tolist() == [101, 102]
    measure.rough = False
    found = measure.answer(None, batch, [2, 3])["sequences"].tolist()
    assert found == [[1, 2], [4, 5], left_out]  # a row without a document of this process


def test_without_rouge_score_a_training_is_refused_before_its_data_are_read(recipe, monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    scorer.cache_clear()
    Path("train.jsonl").unlink()
    with pytest.raises(RecipeError) as error:
        train(recipe())
    assert str(error.value) == (
        "r.yaml:3: task: name: ROUGE of summaries needs rouge-score: "
        "pip install 'ldt-toolkit[summaries]'"
    )
    settings(recipe("data.eval=null", "training.eval_strategy=no", "training.eval_steps=null"))


def test_documents_to_summarize_are_blocks_spread_over_the_set():
    sampled = Summarization(max_eval_examples=16).sampled
    assert sampled(16) == set(range(16))
    assert sampled(40) == {*range(8), *range(24, 32)}
    assert len(sampled(10_000)) <= 16


def test_a_dry_run_measures_what_is_written(recipe, generated):
    train(recipe(), dry_run=True)
    assert generated == [(1, 1), (3, 1)]  # to know the metrics; a batch of the longest


def cost_of(recipe):
    return train_job(Finetuning(recipe), TrainingOptions(dry_run=True)).cost


def test_the_cost_counts_a_part_while_it_trains_and_all_at_the_end(recipe, monkeypatch):
    measure = cost.measure

    def slow(*args):
        steps, answer, size = measure(*args)
        return steps, answer and answer._replace(seconds=1e6), size

    monkeypatch.setattr(cost, "measure", slow)
    some, every = (
        cost_of(recipe(f"task.max_eval_examples={n}", "task.generation.max_length=6")).seconds
        for n in (8, 20)
    )
    assert some / every == pytest.approx((2 * 8 / 20 + 1) / (2 + 1), rel=1e-3)


def test_the_cost_in_bf16_leaves_the_model_as_it_was(recipe):
    """Steps are measured several times; what accelerate puts around forward is taken off."""
    short = ("training.bf16=true", "task.generation.max_length=6")
    assert cost_of(recipe(*short)).seconds > 0


class Stop(Exception):
    """What a test interrupts a run with."""


@pytest.mark.slow
def test_a_run_that_ends_while_it_writes_resumes_bit_by_bit(recipe, monkeypatch, generated):
    """In the first evaluation, in the second, and in the last one, of all documents."""
    short = ("task.generation.max_length=6",)
    train(recipe(*short, "training.output_dir=runs/whole"))
    counted = LdtForConditionalGeneration.generate
    for call in (3, 6, 10):
        generated.clear()
        own = recipe(*short, f"training.output_dir=runs/{call}")

        def stopped(self, call=call, **kwargs):
            if len(generated) == call:
                raise Stop
            return counted(self, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(LdtForConditionalGeneration, "generate", stopped)
            with pytest.raises(Stop):
                train(own)
        train(own, resume=True)
        assert_same_run("runs/whole", f"runs/{call}")


def test_answers_say_what_was_not_read_and_what_has_no_end(recipe, caplog):
    train(recipe("task.generation.max_length=6"))
    lines = [
        {"id": "long", "text": TEXT * 9},
        {"id": "two", "text": [TEXT * 9, "the end"], "question": "who?"},
        {"id": "none", "text": " "},
    ]
    Path("new.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with caplog.at_level(logging.INFO):
        predict("new.jsonl", model="runs/r", output="answers.jsonl", precision="bf16")
    long, two, none = answers()
    assert long["truncated"]
    assert two["read_tokens"][1] < two["read_tokens"][0] < 44
    assert "read_tokens" not in long
    assert none["empty"]
    assert all(each["summary_tokens"] <= 6 for each in answers())
    assert all(each["unfinished"] for each in answers() if each["summary_tokens"] >= 5)
    assert "bf16 against fp32 on the first 3 inputs: the sequences are the same in" in caplog.text


def test_summaries_without_words_are_warned_of(recipe, caplog):
    train(recipe("training.learning_rate=0", "task.generation={max_length: 2}"))
    assert "20 of 20 summaries are empty or a single token" in caplog.text
    caplog.clear()
    predict("dev.jsonl", model="runs/r", output="answers.jsonl")
    assert "20 of 20 summaries are empty or a single token: the model has not" in caplog.text


def test_what_has_no_meaning_for_summaries_is_refused(recipe, tiny_led):
    with pytest.raises(ModelError, match="no recipe.yaml, .* ldt finetune RECIPE model.path="):
        predict("dev.jsonl", model=str(tiny_led))
    train(recipe("training.max_steps=1", "task.generation.max_length=6"))
    for options in ({"passages": 1}, {"chunks": True}):
        with pytest.raises(UserError, match="answers of summarization are not explained"):
            predict("dev.jsonl", model="runs/r", **options)
    with pytest.raises(UserError, match="summarization are JSON lines; name the output .jsonl"):
        predict("dev.jsonl", model="runs/r", output="answers.json")
    with pytest.raises(UserError, match="precision=int8: answers of summarization are written"):
        predict("dev.jsonl", model="runs/r", precision="int8")
    before = Run("runs/r").fingerprint(recipe())
    settings = Path("runs/r/generation_config.json")
    settings.write_text(settings.read_text().replace('"num_beams": 3', '"num_beams": 2'))
    assert Run("runs/r").fingerprint(recipe()) != before


def test_an_encoder_alone_cannot_be_trained_to_write(recipe, tiny_longformer):
    with pytest.raises(RecipeError, match="a ldt model has no decoder that writes summaries"):
        train(recipe(f"model.path={tiny_longformer}"))


def test_an_adapter_leaves_the_embeddings_and_keeps_the_search(recipe, tiny_led):
    """The output layer is the embeddings, and no head of the model's own."""
    pytest.importorskip("peft")
    train(recipe("task.generation={max_length: 6}", "training.lora={r: 2}", "training.max_steps=2"))
    weights, base = (load_file(Path(p) / "model.safetensors") for p in ("runs/r", tiny_led))
    assert "lm_head.weight" not in weights
    assert torch.equal(weights["led.shared.weight"], base["led.shared.weight"])
    changed = {name for name, values in weights.items() if not torch.equal(values, base[name])}
    layers = {name.removesuffix(".weight").partition(".layers.")[2][2:] for name in changed}
    encoder = {f"self_attn.longformer_self_attn.{name}" for name in PROJECTIONS}
    decoder = {f"{part}.{name}_proj" for part in ("self_attn", "encoder_attn") for name in "qv"}
    assert layers == encoder | decoder
    for model in ("runs/r", "runs/r/adapter"):
        assert GenerationConfig.from_pretrained(model).max_length == 6
        predict("dev.jsonl", model=model, output=f"{Path(model).name}.jsonl")
    assert Path("r.jsonl").read_text() == Path("adapter.jsonl").read_text()
