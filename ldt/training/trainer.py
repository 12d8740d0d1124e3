"""transformers' Trainer with robust checkpoints, exact resuming, and handling of divergence and
signals."""

from __future__ import annotations

import logging
import math
import os
import pickle
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from accelerate.utils import broadcast_object_list  # type: ignore[import-untyped]  # has no hints
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import TrainerCallback
from transformers.trainer_callback import (
    ExportableState,
    PrinterCallback,
    ProgressCallback,
    TrainerState,
)
from transformers.utils import logging as transformers_logging

from ldt.data.lm_inputs import Stream
from ldt.errors import (
    Interrupted,
    ModelError,
    TrainingDiverged,
    UserError,
    first_line,
    listed,
    out_of_memory,
)
from ldt.io import files
from ldt.recipe.run import FolderLost, Run
from ldt.system import Signals
from ldt.tasks.base import NO_LABEL
from ldt.training import checkpoints, lora
from ldt.training.progress import ProgressReport
from ldt.training.steps import ItemTrainer

log = logging.getLogger("ldt")

MOST_SKIPPED = 10  # steps in a row whose gradient is not finite
MOST_NAMED = 10  # documents in a message
_SESSION_KEYS = ("train_runtime", "train_samples_per_second", "train_steps_per_second")


class Trainer(ItemTrainer):
    """Trainer that changes five things of transformers' Trainer:

    1. Checkpoints are atomic (`ldt.training.checkpoints`); a full disk costs one checkpoint, not
       the run; the newest ``save_total_limit`` and the best one are kept.
    2. A resumed run equals the uninterrupted one: on the CPU the same weights bit by bit, and the
       same log. Beyond transformers' checkpoint this takes the loss since the last log, the state
       of early stopping, the random state at the start of the epoch (used by samplers), and the
       order of evaluation and saving at the end of an epoch.
    3. A loss that is not finite ends the run with `TrainingDiverged` before any weight changes. A
       step with a gradient that is not finite is skipped; more than 10 in a row end the run.
    4. SIGINT and SIGTERM finish the step, save a checkpoint and raise `Interrupted`; a second
       signal raises it at once.
    5. The loss is the mean over a step's items, evaluation covers each input once, and a step that
       runs out of memory continues with smaller micro-batches (`ItemTrainer`).

    Args:
        tokenizer: saved in every checkpoint, which makes it a model folder.
        ids: ids of the training documents by number, for messages.
        progress: progress report; its metrics.jsonl is cut back to the checkpoint on resuming.
        kwargs: arguments of transformers' Trainer.
    """

    def __init__(
        self, *, tokenizer, ids: Sequence, progress: ProgressReport, callbacks=(), **kwargs
    ):
        self.tokenizer, self.ids, self.progress = tokenizer, ids, progress
        self.skipped = self.skipped_in_a_row = 0
        self.signals = Signals(_note_signal, _interrupt, apart=0)
        self.train_loss = math.nan
        self.weights_step: int | None = None  # the step whose weights the model holds at the end
        self.resumed: Path | None = None  # until the first epoch begins
        self.epoch_rng = torch.get_rng_state()  # as the epoch began
        self._batch: list[int] = []  # documents of this step
        self._last_norm = math.nan
        self._seconds = self._busy = 0.0  # of the sessions before: in all, in training steps
        self._began = time.monotonic()
        self._saved_best = (None, None, None)
        self.lost_best: _LostBest | None = None
        self._between = _BetweenSteps(self)
        super().__init__(callbacks=[self._between, progress, *callbacks], **kwargs)
        # Tied weights are saved under one name, also where they are in shards and so no longer one
        # tensor. Where a checkpoint is loaded, transformers takes only these for not missing.
        tied = list(getattr(self.model, "all_tied_weights_keys", ()))
        self.model._keys_to_ignore_on_save = tied  # type: ignore[assignment]
        assert self.args.output_dir is not None  # transformers has a default
        self.place = progress.run or Run(self.args.output_dir)
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)

    @property
    def seconds(self) -> float:
        """Seconds of training, evaluation and saving until now, over all sessions of the run."""
        return self._seconds + time.monotonic() - self._began

    @property
    def tokens_per_second(self) -> float:
        """Real tokens per second of training steps, over all sessions of the run."""
        busy = self._busy + self.progress.busy
        return self.state.num_input_tokens_seen / busy if busy else 0.0

    def run(self, resume: Path | None = None) -> None:
        """Train to the end; the model then has the best weights, or the last ones without
        evaluation.

        Args:
            resume: valid checkpoint of this run; None starts at step 0.

        Raises:
            TrainingDiverged: a loss, the weights or more than 10 gradients in a row are not finite.
            ResourceError: memory is too small for a single input.
            Interrupted: a signal arrived.
        """
        self._began = time.monotonic()
        self._stepping = False
        try:
            with self.signals.handled():
                if resume and self._ended(resume):
                    self._take_up(resume)
                else:
                    self.resumed = resume
                    self.train(resume_from_checkpoint=str(resume) if resume else None)
        except Exception as error:
            if out_of_memory(error):
                raise self.too_little_memory() from error
            if resume and not self._stepping and not isinstance(error, UserError | FolderLost):
                # Whatever a checkpoint holds that nobody wrote there: no code of it is run.
                foreign = isinstance(error, pickle.UnpicklingError)
                why = "a file of it holds more than tensors" if foreign else first_line(error)
                raise ModelError(
                    f"{resume}: cannot be resumed: {why}; without this folder --resume goes on "
                    "from the checkpoint before it"
                ) from error
            raise
        if self.weights_step is None:
            self.weights_step = self.state.global_step
        if self.lost_best and self.lost_best.step == self.weights_step:
            self.lost_best = None  # no checkpoint has them, but the model does

    # -- resuming

    def _ended(self, folder: Path) -> bool:
        """True if the run was already over at a checkpoint, by number of steps or early stopping.

        transformers would take one more step.
        """
        state = TrainerState.load_from_json(str(folder / "trainer_state.json"))
        control = (state.stateful_callbacks or {}).get("TrainerControl", {})
        return bool(control.get("args", {}).get("should_training_stop"))

    def _take_up(self, folder: Path) -> None:
        self._load_from_checkpoint(str(folder))
        self.state = TrainerState.load_from_json(str(folder / "trainer_state.json"))
        saved = self._restore(folder)
        self._total_loss_scalar = saved["total_loss"] + saved["tr_loss"].item()
        self.log({"total_flos": self.state.total_flos, "train_loss": math.nan})
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint:
            self._load_best_model()

    def _restore(self, folder: Path) -> dict:
        saved = torch.load(checkpoints.part_of(folder / self._state_name), weights_only=True)
        self.skipped, self.skipped_in_a_row = saved["skipped"], saved["skipped_in_a_row"]
        self._seconds, self._busy = saved["seconds"], saved["busy"]
        self.micro_batch = saved["micro_batch"]
        self.state.best_model_checkpoint = None  # the run folder may have moved
        if self.state.best_global_step is not None:
            best = self.place.checkpoint(self.state.best_global_step)
            if best.is_dir():
                self.state.best_model_checkpoint = str(best)
        self._saved_best = self._best()
        if self.args.should_save:
            self.progress.cut(self.state.global_step)
        return saved

    @property
    def _state_name(self) -> str:
        several = self.args.world_size > 1
        return f"run_state_{self.args.process_index}.pt" if several else "run_state.pt"

    def _best(self) -> tuple:
        state = self.state
        return state.best_metric, state.best_global_step, state.best_model_checkpoint

    def _load_best_model(self) -> None:
        assert self.state.best_model_checkpoint is not None  # or it is not called
        if self.lost_best and self.lost_best.step == self.state.global_step:
            return  # the model holds better weights than any checkpoint
        best = Path(self.state.best_model_checkpoint)
        problem = checkpoints.problem(best, needed=checkpoints.NEEDED[:1])
        if problem:
            log.warning("%s is damaged: %s; keeping the weights of the last step", best, problem)
            self.lost_best = _LostBest(self.state.best_metric, self.state.best_global_step, problem)
            return
        super()._load_best_model()
        self.weights_step = self.state.best_global_step

    # -- saving

    def _determine_best_metric(self, metrics, trial) -> bool:
        is_best = super()._determine_best_metric(metrics, trial)
        if is_best and self.args.load_best_model_at_end:
            self._between.save(self.state, self.control)  # also where evaluation is more frequent
        return is_best

    def _save_checkpoint(self, model, trial) -> None:
        self._check_weights()
        self.store_flos()
        step = self.state.global_step
        if self.state.best_global_step == step:
            self.state.best_model_checkpoint = str(self.place.checkpoint(step))
        self.check_folder()
        # A full disk must not end the run: a failure is logged, and the next save tries again; a
        # best checkpoint that was not saved is none.
        reason = self._write_checkpoint(self.place)
        if reason:
            self.check_folder()
            if self.state.best_global_step == step:
                self.lost_best = _LostBest(self.state.best_metric, step, reason)
            self.state.best_metric, self.state.best_global_step, best = self._saved_best
            self.state.best_model_checkpoint = best
            log.warning(
                "CHECKPOINT NOT SAVED at step %d: %s. Training goes on and the next save tries "
                "again; until then the run can only resume from an older checkpoint. Free some "
                "disk space under %s",
                step,
                reason,
                self.place,
            )
            return
        self._saved_best = self._best()
        if self.lost_best and self.state.best_global_step == step:
            higher = self.args.greater_is_better
            if self.lost_best.beaten_by(self.state.best_metric, higher):
                self.lost_best = None
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            limit = self.args.save_total_limit
            checkpoints.prune(self.place, limit, Path(best) if best else None)

    def save_model(self, output_dir=None, _internal_call=False):
        """Write model and config into ``output_dir``, else the run folder; of an adapted model the
        adapter alone. Only the first process writes, and no ``training_args.bin``."""
        shown = transformers_logging.is_progress_bar_enabled()
        transformers_logging.disable_progress_bar()
        try:
            if not lora.is_adapted(self.model):
                super().save_model(output_dir, _internal_call)
            elif self.args.should_save:
                lora.save(self.model, Path(output_dir or self.place.folder))
        finally:
            if shown:
                transformers_logging.enable_progress_bar()
        if self.args.should_save:  # a pickle that nobody reads
            Path(output_dir or self.args.output_dir, "training_args.bin").unlink(missing_ok=True)

    def _fill(self, folder: Path) -> None:
        self.save_model(str(folder), _internal_call=True)
        folder.mkdir(parents=True, exist_ok=True)
        if not self.args.save_only_model:
            self._save_optimizer_and_scheduler(str(folder))
            self._save_scaler(str(folder))
            self._save_rng_state(str(folder))
        state = {
            "tr_loss": self._tr_loss.cpu(),
            "total_loss": self._total_loss_scalar,
            "last_logged": self._globalstep_last_logged,
            "seconds": self.seconds,
            "busy": self._busy + self.progress.busy,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "epoch_rng": self.epoch_rng,
            "micro_batch": self.micro_batch,
        }
        torch.save(state, folder / self._state_name)
        if self.args.should_save:
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(folder)
            stateful = [*self.callback_handler.callbacks, self.control]
            self.state.stateful_callbacks = {  # type: ignore[assignment]  # a dict once it is made
                type(item).__name__: item.state()
                for item in stateful
                if isinstance(item, ExportableState)
            }
            self.state.save_to_json(str(folder / "trainer_state.json"))

    def check_folder(self) -> None:
        """Raise FolderLost in all processes if the run folder has disappeared."""
        fault = broadcast_object_list([self.place.fault()])[0]
        if fault:
            raise FolderLost(fault)

    def rescue(self, run: Run) -> None:
        """Write one checkpoint into another folder before the run ends, because its own folder has
        vanished.

        All processes must call it. The trainer's own folder stays; its best metric and best
        checkpoint are cleared, for their weights are lost.

        Args:
            run: folder to write to, which exists.

        Raises:
            OSError: the disk is full or failed.
        """
        self.state.best_metric = self.state.best_global_step = None  # it went with the folder
        self.state.best_model_checkpoint = None
        if reason := self._write_checkpoint(run):
            raise OSError(reason)

    def _write_checkpoint(self, run: Run) -> str | None:
        """Write a checkpoint; returns the reason if the disk failed, the same in all processes."""
        step = self.state.global_step
        target = run.checkpoint(step)
        folder = Path(broadcast_object_list([str(files.temporary(target))])[0])
        failure: Exception | None = None
        try:
            try:
                if self.args.should_save:
                    checkpoints.require_space(run)
                self._fill(folder)
            except Exception as error:
                if files.unwritten(error) is None:
                    raise
                failure = error
            # One process seals the folder, when all have written their parts.
            self.accelerator.wait_for_everyone()
            if self.args.should_save and failure is None:
                try:
                    missing = self.args.world_size - len(list(folder.glob("run_state*.pt")))
                    if missing:
                        raise OSError(f"{missing} processes could not write their part")
                    checkpoints.seal(folder, target, step)
                except OSError as error:
                    failure = error
        finally:
            if self.args.should_save:
                files.remove(folder)
        return broadcast_object_list([failure and files.unwritten(failure)])[0]

    # -- divergence

    def training_step(self, model, inputs, num_items_in_batch=None):
        """Loss of a batch, [], whose gradients are accumulated; ``document`` and ``rows`` are
        removed from ``inputs``.

        Raises:
            TrainingDiverged: the loss is not finite.
        """
        documents = inputs.pop("document").tolist()
        self._batch += documents
        if not documents:  # an input that counts nothing, so that no process waits for this one
            num_items_in_batch = torch.full_like(num_items_in_batch, math.inf, dtype=torch.float32)
            if self.model.whole_batch_loss:  # nor is it compared with those of other processes
                inputs["labels"] = torch.full_like(inputs["labels"], NO_LABEL)
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not documents:  # nor are its tokens counted, which comes next
            inputs["attention_mask"] = torch.zeros_like(inputs["attention_mask"])
        if not torch.isfinite(loss).all():
            self._diverged(f"the loss is {loss.mean().item()}", documents)
        return loss

    def _get_grad_norm(self, model, grad_norm=None):
        norm = super()._get_grad_norm(model, grad_norm)
        if math.isfinite(norm):
            self._last_norm = float(norm)
            self.skipped_in_a_row = 0
            return norm
        model.zero_grad()  # the optimizer passes over parameters without a gradient
        self.skipped += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row > MOST_SKIPPED:
            self._diverged(
                f"{self.skipped_in_a_row} gradients in a row are not finite", self._batch
            )
        log.warning(
            "step %d skipped: its gradient is not finite (%d in a row); documents %s",
            self.state.global_step + 1,
            self.skipped_in_a_row,
            self._names(self._batch),
        )
        return norm

    def _check_weights(self) -> None:
        weights = (w.to_local() if hasattr(w, "to_local") else w for w in self.model.parameters())
        finite = torch.stack([weight.isfinite().all() for weight in weights]).all()
        if not self.accelerator.gather(finite).all():  # each process knows its own shard
            self._diverged("weights are not finite", self._batch)

    def _diverged(self, what: str, documents: list[int]) -> None:
        steps = self.place.checkpoints()
        last = f"the last checkpoint is step {max(steps)}" if steps else "no checkpoint is there"
        rate = self.optimizer.param_groups[0]["lr"] if self.optimizer else math.nan
        raise TrainingDiverged(
            f"training diverged at step {self.state.global_step + 1}: {what} (learning rate "
            f"{rate:.3g}, last finite gradient norm {self._last_norm:.3g}, documents "
            f"{self._names(documents)}); {last}; try a lower training.learning_rate or a longer "
            "training.warmup_steps"
        )

    def _names(self, documents: list[int]) -> str:
        ids = (self.ids[index] for index in dict.fromkeys(documents))
        return listed(ids, MOST_NAMED, str)

    def _asked_to_stop(self) -> int:
        """Number of the signal that any of the processes received, or 0."""
        if self.args.world_size == 1:
            return self.signals.number
        mine = torch.tensor([self.signals.number], device=self.args.device)
        return int(self.accelerator.gather(mine).max())

    def log(self, logs, start_time=None):
        """Log values; rates of this session alone are removed from ``logs``, and ``train_loss``
        becomes the mean over the whole run."""
        for key in _SESSION_KEYS:  # they count the steps before a resume, but not their time
            logs.pop(key, None)
        if "train_loss" in logs:  # it ends the training; transformers' counts this session's steps
            self.train_loss = self._total_loss_scalar / max(self.state.global_step, 1)
            logs["train_loss"] = self.train_loss
        super().log(logs)


class _BetweenSteps(TrainerCallback):
    """Callback that restores state, saves at the right moment and reacts to signals
    between steps."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.epoch_ended = False
        self.save_at_epoch_end = False

    def save(self, state, control) -> None:
        """Request a checkpoint: now, or at the end of the epoch after its last step.

        What happens at the end of an epoch, above all evaluation, belongs before the checkpoint,
        since a run resumed from it begins with the next epoch.
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
        if control.should_save or self.trainer._asked_to_stop():
            self.save(state, control)

    def on_evaluate(self, args, state, control, **kwargs):
        if self.trainer.is_in_train and self.trainer._asked_to_stop():
            self.save(state, control)

    def on_epoch_end(self, args, state, control, **kwargs):
        self.epoch_ended = True
        if self.save_at_epoch_end or self.trainer._asked_to_stop():
            self.save(state, control)

    def on_save(self, args, state, control, **kwargs):
        number = self.trainer._asked_to_stop()
        if number:
            raise Interrupted(128 + number)


class _LostBest(NamedTuple):
    """Best metric and its step if these weights could not be saved, and the reason."""

    metric: float | None
    step: int | None
    why: str

    def beaten_by(self, metric: float | None, higher: bool | None) -> bool:
        if metric is None or self.metric is None:
            return False
        return metric >= self.metric if higher else metric <= self.metric


def _note_signal(number: int) -> None:
    # print is not safe inside a signal handler
    os.write(2, b"\nfinishing the step and saving a checkpoint; once more stops at once\n")


def _interrupt(number: int) -> None:
    raise Interrupted(128 + number)


# -- language models


class InputNumbers:
    """Names ``input 7`` of inputs, for messages of language models, whose inputs have no ids."""

    def __getitem__(self, index: int) -> str:
        return f"input {index}"


class LanguageModelTrainer(Trainer):
    """Trainer of language models: logits at labels only, exact evaluation, streams."""

    unit = "token"  # what is predicted

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        if self.is_fsdp_enabled and hasattr(self.model, "lm_head"):
            # accelerate shards what this returns together with the embeddings, which share its
            # weight; the head and its decoder share a bias, which must not lie in two shards.
            self.model.get_output_embeddings = lambda: self.model.lm_head

    def compute_loss(self, model, inputs, *args, **kwargs):
        """Loss as in `ItemTrainer`, with logits computed at labels only."""
        return super().compute_loss(model, inputs | {"at_labels": True}, *args, **kwargs)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Return loss in nats and number of predicted tokens of each row, in place of logits and
        labels.

        Their sums give the exact mean; the logits of an evaluation set would not fit in memory.
        """
        inputs = {k: v.to(self.args.device) for k, v in self.model_inputs(inputs).items()}
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**inputs, at_labels=True).logits
        labels = inputs["labels"]
        places = labels != -100
        nats = F.cross_entropy(logits.float(), labels[places], reduction="none").double()
        rows = places.nonzero()[:, 0]
        sums = nats.new_zeros(len(labels)).index_add(0, rows, nats)
        return None, sums, places.sum(1)

    def get_train_dataloader(self):
        """Batches of the training items; of a `Stream`, which is divided among processes already,
        as they come."""
        if not isinstance(self.train_dataset, Stream):
            return super().get_train_dataloader()
        return DataLoader(  # each process reads its own part: accelerate must not split it again
            self.train_dataset,
            batch_size=self.args.train_batch_size,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def log(self, logs, start_time=None):
        """Log values; beside ``loss`` bits per token or character, which are added to ``logs``."""
        if "loss" in logs:
            logs[f"bits_per_{self.unit}"] = logs["loss"] / math.log(2)
        super().log(logs, start_time)
