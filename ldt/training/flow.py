"""Between the steps of the Trainer: restoring, saving in the right place, signals, names."""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback

from ldt.errors import Interrupted


class NamingDocuments:
    """A collator whose batches have two more keys, which the model never sees.

    ``document`` [inputs] int64: the number of each one's document; ``rows`` [inputs] int64: how
    many rows of the batch each input is.
    """

    def __init__(self, collator):
        self.collator = collator

    def __call__(self, features):
        parts = [item if isinstance(item, list) else [item] for item in features]
        documents = torch.tensor([part[0]["document"] for part in parts])
        rows = torch.tensor([len(part) for part in parts])
        return {**self.collator(features), "document": documents, "rows": rows}


class Flow(TrainerCallback):
    """Callbacks between steps: restoring, saving in the right place, signals."""

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.epoch_ended = False
        self.save_at_epoch_end = False

    def save(self, state, control) -> None:
        """Have a checkpoint saved: now, or after the last step of an epoch at the epoch's end.

        What an epoch's end brings, evaluation above all, belongs before the checkpoint, since a
        run that resumes from it begins with the next epoch.
        """
        self.save_at_epoch_end = float(state.epoch).is_integer() and not self.epoch_ended
        control.should_save = not self.save_at_epoch_end

    def on_train_begin(self, args, state, control, **kwargs):
        trainer = self.trainer
        if trainer.resumed:
            saved = trainer._restore(trainer.resumed)
            trainer._tr_loss += saved["tr_loss"].to(args.device)
            trainer._total_loss_scalar = saved["total_loss"]
            trainer._globalstep_last_logged = saved["last_logged"]
            trainer._initial_global_step = 0
            trainer.epoch_rng = saved["epoch_rng"]
            state.compute_steps(args, state.max_steps)  # these may differ from the checkpoint's

    def on_epoch_begin(self, args, state, control, **kwargs):
        trainer = self.trainer
        self.epoch_ended = False
        for part in (trainer.train_dataset, trainer.train_sampler):
            if hasattr(part, "set_epoch"):  # with several processes nobody else does
                part.set_epoch(int(state.epoch))
        if trainer.resumed:
            if float(state.epoch).is_integer():
                trainer._load_rng_state(str(trainer.resumed))
            else:  # the sampler has to give this epoch's order again
                torch.set_rng_state(trainer.epoch_rng)
            trainer.resumed = None
        trainer.epoch_rng = torch.get_rng_state()

    def on_step_begin(self, args, state, control, **kwargs):
        self.trainer._batch = []
        self.trainer._stepping = True

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_save or self.trainer.asked_to_stop():
            self.save(state, control)

    def on_evaluate(self, args, state, control, **kwargs):
        if self.trainer.is_in_train and self.trainer.asked_to_stop():
            self.save(state, control)

    def on_epoch_end(self, args, state, control, **kwargs):
        self.epoch_ended = True
        if self.save_at_epoch_end or self.trainer.asked_to_stop():
            self.save(state, control)

    def on_save(self, args, state, control, **kwargs):
        number = self.trainer.asked_to_stop()
        if number:
            raise Interrupted(128 + number)
