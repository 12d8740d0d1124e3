"""Every key of `training:` acts, or is refused with what does its job."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
from training_runs import train
from transformers import TrainingArguments

from ldt.errors import RecipeError
from ldt.recipe.recipe import ITS_OWN, load
from ldt.recipe.sections import NEW_NAMES, REFUSED
from ldt.training.arguments import DEFAULTS, FIXED, arguments, settings

CHECKED = {"label_names"}  # fixed by the task
WRONG = {"include_num_input_tokens_seen": "all", "label_names": ["x"], "neftune_noise_alpha": 1.0}
RECOMPUTE = "training.gradient_checkpointing=true"
WORKER = "training.dataloader_num_workers=1"
# Keys that transformers' Trainer, as ldt uses it, or ldt itself acts on: a value, and what it takes
# beside it. A key of a later transformers is in none of the tables until somebody has looked.
HEEDED = {
    "accelerator_config": "{split_batches: true}",
    "activation_checkpointing": "true",
    "activation_checkpointing_kwargs": f"{{use_reentrant: false}} {RECOMPUTE}",
    "adam_beta1": "0.5",
    "adam_beta2": "0.5",
    "adam_epsilon": "0.1",
    "bf16": "true",
    "data_seed": "7",
    "dataloader_drop_last": "true",
    "dataloader_in_order": f"false {WORKER}",
    "dataloader_multiprocessing_context": f"spawn {WORKER}",
    "dataloader_num_workers": "1",
    "dataloader_persistent_workers": f"true {WORKER}",
    "dataloader_pin_memory": "false",
    "dataloader_prefetch_factor": f"3 {WORKER}",
    "ddp_backend": "",  # of several processes, see test_distributed
    "ddp_broadcast_buffers": "true",
    "ddp_bucket_cap_mb": "9",
    "ddp_find_unused_parameters": "true",
    "ddp_static_graph": "true",
    "ddp_timeout": "99",
    "debug": "[underflow_overflow]",
    "deepspeed": "",  # below
    "eval_accumulation_steps": "1",
    "eval_delay": "1",
    "eval_on_start": "true",
    "eval_steps": "1 training.eval_strategy=steps",
    "eval_strategy": "steps",
    "fp16": "",  # below
    "fsdp": "",  # below
    "fsdp_config": "",  # with fsdp
    "full_determinism": "true",
    "gradient_accumulation_steps": "5",
    "gradient_checkpointing": "true",
    "gradient_checkpointing_kwargs": f"{{use_reentrant: false}} {RECOMPUTE}",
    "greater_is_better": "false",
    "label_smoothing_factor": "0.1",
    "learning_rate": "0.5",
    "load_best_model_at_end": "false",
    "log_level": "info",
    "log_level_replica": "info",
    "log_on_each_node": "false",
    "logging_first_step": "true",
    "logging_steps": "3",
    "logging_strategy": "epoch",
    "lr_scheduler_kwargs": "{num_cycles: 2} training.lr_scheduler_type=cosine",
    "lr_scheduler_type": "cosine",
    "max_grad_norm": "0.5",
    "max_steps": "1",
    "metric_for_best_model": "loss",
    "num_train_epochs": "1",
    "optim": "sgd",
    "optim_args": "momentum=0.9 training.optim=sgd",
    "optim_target_modules": "",  # below
    "output_dir": "runs/here",
    "per_device_eval_batch_size": "2",
    "per_device_train_batch_size": "3",
    "project": "",  # with report_to
    "report_to": "",  # by ldt's own callback, see test_trackers
    "run_name": "",  # with report_to
    "save_only_model": "true",
    "save_steps": "1 training.save_strategy=steps",
    "save_strategy": "no",
    "save_total_limit": "1",
    "seed": "1",
    "tf32": "false",
    "torch_compile": "",  # below
    "torch_compile_backend": "",
    "torch_compile_mode": "",
    "torch_empty_cache_steps": "1",
    "trackio_bucket_id": "",
    "trackio_space_id": "",
    "trackio_static_space_id": "",
    "train_sampling_strategy": "sequential",
    "use_cpu": "true",
    "warmup_steps": "1",
    "weight_decay": "0.3",
}
NAMES = [item.name for item in fields(TrainingArguments) if item.init]


def test_the_tables_have_every_key_of_transformers_once():
    tables = [set(HEEDED), set(REFUSED), set(FIXED), CHECKED]
    assert sum(map(len, tables)) == len(set().union(*tables))
    assert set(NAMES) - set().union(*tables) == set()
    assert set().union(*tables) - set(NAMES) <= {*NEW_NAMES}  # of an older one


@pytest.mark.parametrize("name", NAMES)
def test_every_key_reaches_the_trainer_or_is_refused(recipe, name):
    if name in REFUSED:
        for value in ("null", "true", "false"):
            with pytest.raises(RecipeError) as raised:
                recipe(f"training.{name}={value}")
            assert str(raised.value) == f"training.{name}={value}: {REFUSED[name]}"
    elif name in {*FIXED, *CHECKED}:
        made = replace(recipe(), training={name: WRONG.get(name, not FIXED.get(name))})
        with pytest.raises(RecipeError, match=f"training: {name}: is always"):
            settings(made)
    elif HEEDED[name]:
        value, *beside = HEEDED[name].rsplit(" training.", 1)
        made = recipe(f"training.{name}={value}", *(f"training.{each}" for each in beside))
        args = arguments(made, settings(made), Path("runs/r"), 12, "macro_f1")
        found = getattr(args, name)
        if name == "output_dir":
            assert found == "runs/r"  # which is made of it
        elif name != "accelerator_config":
            assert getattr(found, "value", found) == made.training[name] != DEFAULTS.get(name)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["save_strategy=epoch"], "save_steps: acts with save_strategy: 'steps' alone, and "),
        (["eval_steps=3", "eval_strategy=epoch"], "eval_steps=3: acts with eval_strategy: 'steps'"),
        (["logging_steps=3", "logging_strategy=epoch"], "logging_steps=3: acts with logging_str"),
        (["early_stopping_threshold=1"], "acts with early_stopping_patience alone, and "),
        (["activation_checkpointing_kwargs={use_reentrant: false}"], "with gradient_checkpointing"),
        (["fsdp_config={a: 1}"], "acts with fsdp alone, and fsdp is null"),
        (["run_name=x", "report_to=none"], "acts with report_to alone, and report_to is 'none'"),
        (["project=x"], "project=x: acts with report_to: 'trackio' alone"),
        (["trackio_space_id=x"], "acts with report_to: 'trackio' alone"),
        (["dataloader_in_order=false"], "acts with dataloader_num_workers alone, and "),
        (["dataloader_multiprocessing_context=fork"], "acts with dataloader_num_workers alone"),
        (["dataloader_persistent_workers=true"], "acts with dataloader_num_workers alone"),
        (
            ["optim=galore_adamw", "optim_target_modules=all-linear"],
            "galore_adamw: .* install `galore_torch`",
        ),
        (
            ["fp16=true"],
            "training.fp16=true: runs on CUDA, the training on cpu; training.bf16=true",
        ),
        (["deepspeed=zero.json"], "training"),
        (["fsdp=full_shard"], "shards a model over several processes"),
        (["torch_compile_mode=fast"], "torch_compile: Unrecognized mode=fast"),
        (["eval_on_start=true", "data.eval=null"], "eval_on_start=true: needs data.eval or"),
        (["eval_steps=1", "data.eval=null"], "eval_steps=1: needs data.eval or"),
        (["save_strategy=best", "data.eval=null"], "save_strategy=best: best needs data.eval or"),
        (["data_seed=1", "task.sample=balanced"], "task.sample decides the order of the inputs"),
        (["train_sampling_strategy=sequential", "task.sample=balanced"], "task.sample decides"),
    ],
)
def test_a_key_that_does_nothing_beside_the_others_is_refused(recipe, overrides, line):
    wanted = [each if "." in each.partition("=")[0] else f"training.{each}" for each in overrides]
    made = recipe(*wanted)
    with pytest.raises(RecipeError, match=line) as raised:
        arguments(made, settings(made), Path("runs/r"), 12, "macro_f1")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("other", ["epoch", "no"])
def test_a_strategy_of_no_needs_nothing_to_be_left_out(recipe, other):
    made = recipe(f"training.eval_strategy={other}", "training.eval_steps=3")
    if other == "no":
        assert settings(replace(made, data=made.data.model_copy(update={"eval": None})))
        assert settings(made)
    else:
        pytest.raises(RecipeError, settings, made)


def test_a_refused_key_is_named_before_anything_is_read(recipe):
    made = recipe("model.path=nowhere", "data.train=nowhere.jsonl")
    for training in ({"do_train": False}, {"push_to_hub": True}, {"resume_from_checkpoint": "x"}):
        with pytest.raises(RecipeError, match=f"training: {[*training][0]}: "):
            train(replace(made, training=training))


@pytest.mark.parametrize("name", ["squad", "pretrain_small", "modernbert_small", "charlm_tiny"])
def test_every_kind_of_training_refuses_them(name):
    with pytest.raises(RecipeError, match=r"^training\.do_train=false: .*; ldt evaluate sc"):
        load(name, ["training.do_train=false"], command=ITS_OWN)
