"""A converted Poolingformer in training: its gate opens, an interrupted run resumes bit by bit."""

import os
import signal

import pytest
from training_runs import assert_same_run, weights

from ldt.convert import convert
from ldt.train import finetune
from ldt.trainer import Interrupted

POOLED = "longformer.encoder.layer.0.attention.self.pooled."


def test_a_poolingformer_trains_and_resumes_bit_by_bit(recipe, at_step, tiny_longformer):
    convert(tiny_longformer, "pooled", architecture="poolingformer", max_length=128, window=8)
    options = ("model.path=pooled", "task.pooling=mean", "training.load_best_model_at_end=false")
    finetune(recipe(*options, "training.output_dir=runs/whole"))
    found = weights("runs/whole")
    assert found[POOLED + "gate"].all()
    assert found[POOLED + "weight"].any()
    first = found[POOLED.removesuffix("pooled.") + "query.weight"]
    assert not first.equal(found[POOLED + "query.weight"])
    at_step(5, lambda model: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        finetune(recipe(*options))
    at_step(0, None)
    finetune(recipe(*options), resume=True)
    assert_same_run("runs/whole", "runs/r")
