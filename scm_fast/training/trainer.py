"""`Trainer`: the epochs of a run, from the data to the checkpoints."""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .. import distributed
from ..data import Batch, DataSource
from ..devices import amp_dtype
from ..errors import InputError
from ..evaluation import Predictor, Result, SplitMetrics, evaluate
from ..evaluation.classes import match_classes
from ..evaluation.emptiness import confidence_percentiles
from ..evaluation.extraction import kept_workers
from ..models import LocalizationModel
from ..models.weights import load_strictly
from ..progress import tqdm
from ..threshold import threshold_from_json
from .average import WeightAverage
from .building import build_loader, build_model
from .checks import check_run, resumes
from .config import TrainConfig
from .logs import RunLogs
from .meter import Meter
from .object_share import measured_options
from .optimization import build_optimizer, build_scheduler, load_optimizer, step_unless
from .run_folder import RunFolder
from .step_reports import StepReport, StepReports
from .stopping import Diverged, Interrupted, StopSignal
from .validation import validation_settings

logger = logging.getLogger("scm_fast")


class Trainer:
    """A run that was set up, and resumed if the configuration asks for it.

    trainer = Trainer(config, device)
    trainer.fit()

    source: the data, if some of it may be open already.
    start_from: weights instead of those that the configuration names.
    """

    def __init__(
        self,
        config: TrainConfig,
        device: torch.device,
        source: DataSource | None = None,
        start_from: Path | None = None,
    ) -> None:
        self.source = source or config.source()
        self.config = config = config.for_images(len(self.source.split(config.train_split)))
        self.device = device
        assert config.out is not None
        self.folder = RunFolder(config.out)
        self.resuming = resumes(config)
        check_run(config, self.source, device)
        self.dataset = self.source.split(config.train_split)
        self.amp = amp_dtype(config.amp, device)
        options = self._method_options(start_from)  # before the seed: measuring makes a network of its own
        torch.manual_seed(config.seed)
        self.model = build_model(config, self.dataset, start_from, options).to(device)
        self.loader = build_loader(config, self.dataset, self.model, device)
        match_classes(self.model, self.source.validation(config.val_split))
        if config.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model.set_grad_checkpointing(config.grad_checkpointing)
        self.average = WeightAverage(self.model, config.average) if config.average else None
        if config.compile:
            self.model.compile()
        self.optimizer = build_optimizer(self.model, config)
        self.scheduler = build_scheduler(self.optimizer, config, self.loader.steps)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.amp is torch.float16)
        self.stop = StopSignal()
        self.reports = StepReports(device)
        self._asked_to_stop = False  # one of the processes was
        self._read_at = 0.0  # when the last report was read
        self.step = 0  # optimiser steps of the whole run
        self.validated = 0  # epochs whose model was validated, or passed over as `validate_every` says
        self.loss: float | None = None  # of the newest step of the epoch that is known
        self.best: dict[str, float] = {}  # by metric
        self.validations: dict[
            str, SplitMetrics
        ] = {}  # by metric, of the best model; none of before a resume
        self.meter = Meter()
        # Every process draws its own stochastic depth.
        torch.manual_seed(config.seed + 1 + distributed.rank())

        self.logs = RunLogs(self.folder.path, config.tensorboard)
        self._open_folder()
        self.network = self._distributed()

    @property
    def global_batch(self) -> int:
        assert self.config.global_batch is not None
        return self.config.global_batch

    @property
    def kept(self) -> LocalizationModel:
        """The model that is validated and saved: the trained one, or the average of its weights."""
        return self.model if self.average is None else self.average.model

    def _method_options(self, start_from: Path | None) -> dict[str, Any]:
        """Return the method's options; what the images decide was decided before a run was resumed."""
        if self.resuming and self.folder.has_checkpoint:
            return self.folder.model_config("last").method_options
        return measured_options(self.config, self.dataset, self.device, start_from)

    # Checkpoints

    def _open_folder(self) -> None:
        weights = sum(p.numel() * p.element_size() for p in self.model.parameters())
        distributed.on_first(self.folder.prepare, self.config, weights)
        if self.resuming and self.folder.has_checkpoint:
            self._resume()
        steps = distributed.gather(self.step)
        if len(set(steps)) > 1:
            raise InputError(
                f"{self.folder.path}: the processes found checkpoints of different steps there "
                f"({', '.join(map(str, steps))}); the run folder must be on a disk that all machines share"
            )
        if distributed.is_first():
            self.logs.begin(self.step, self.validated)

    def _resume(self) -> None:
        state = self.folder.load_checkpoint()
        load_strictly(self.model, state["model"], str(self.folder.checkpoint_file))
        if self.average is not None:
            load_strictly(self.average.model, state["average"], str(self.folder.checkpoint_file))
        load_optimizer(self.optimizer, state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        if state["scaler"]:  # of a run without fp16 there is none
            self.scaler.load_state_dict(state["scaler"])
        self.loader.load_state_dict(state["loader"])
        self.step, self.validated, self.best = state["step"], state["validated"], state["best"]
        self.meter = Meter(**state["meter"])
        self.kept.config.threshold = threshold_from_json(state["threshold"])
        self.kept.config.confidences = state["confidences"]
        if len(state["random"]) == distributed.world_size():  # on another number of them, they start anew
            random = state["random"][distributed.rank()]
            torch.set_rng_state(random["cpu"])
            if self.device.type == "cuda" and "cuda" in random:
                torch.cuda.set_rng_state(random["cuda"], self.device)
        if distributed.is_first():
            logger.warning("resumed %s after step %d", self.folder.path, self.step)

    def save(self) -> None:
        """Write a checkpoint; all processes call it together. Raises Diverged for a step that was."""
        for report in self.reports.all():
            self._note(report)
        random = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.device)
        threshold = self.kept.config.threshold
        state = {
            "model": self.model.state_dict(),
            "average": None if self.average is None else self.average.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "loader": self.loader.state_dict(),
            "random": distributed.gather(random),
            "step": self.step,
            "validated": self.validated,
            "best": self.best,
            "meter": asdict(self.meter),
            "threshold": asdict(threshold) if threshold else None,
            "confidences": self.kept.config.confidences,
        }
        self.logs.flush()
        distributed.on_first(self.folder.save_checkpoint, state, self.kept)

    # Training

    def fit(self) -> None:
        """Train and validate the epochs that are left. Raises Interrupted and Diverged."""
        with kept_workers(), contextlib.closing(self.logs), self.stop:
            while True:
                if self.validated < self.loader.epoch:  # also if the run was stopped before that
                    self._end_epoch()
                if self.loader.epoch == self.config.epochs:
                    return
                self.train_epoch()

    def train_epoch(self) -> None:
        """Train what is left of an epoch."""
        epoch = self.loader.epoch
        self.model.train()
        if self.loader.step == 0:
            self.meter = Meter()
        self.loss = None
        batch_images = self.global_batch
        with tqdm(
            desc=f"epoch {epoch + 1}/{self.config.epochs}",
            total=self.loader.steps * batch_images,
            initial=self.loader.step * batch_images,
            unit=" images",
            disable=None if distributed.is_first() else True,
            leave=False,
        ) as progress:
            begin, sums, indices = time.perf_counter(), dict[str, torch.Tensor](), list[int]()
            for batch in self.loader:
                for name, value in self._forward_backward(batch).items():
                    sums[name] = sums[name] + value if name in sums else value
                indices += batch.indices.tolist()
                if not batch.ends_step:
                    continue
                self._optimizer_step(sums, indices, begin)
                begin, sums, indices = time.perf_counter(), {}, []
                if self.loss is not None:
                    progress.set_postfix(loss=f"{self.loss:.3f}", run_left=self._time_left(), refresh=False)
                progress.update(batch_images)
        self._catch_up(self.reports.all())

    def _distributed(self) -> nn.Module:
        """The model, with DistributedDataParallel around it if there are several processes."""
        if distributed.world_size() == 1:
            return self.model
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(self.model, device_ids=devices, gradient_as_bucket_view=True)

    def _forward_backward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Sums over the images, on the device: right answers, the loss and, if it has several terms, each."""
        images = self._at_size(batch.images)
        if self.config.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        alone = isinstance(self.network, DistributedDataParallel) and not batch.ends_step
        with self.network.no_sync() if alone else contextlib.nullcontext():  # type: ignore[operator]
            with torch.autocast(self.device.type, dtype=self.amp, enabled=self.amp is not None):
                logits, means = self.network(images)
            classification = F.cross_entropy(
                logits.float(), batch.labels, reduction="sum", label_smoothing=self.config.label_smoothing
            )
            terms = {name: mean * len(images) for name, mean in means.items()}
            loss = sum(terms.values(), classification)
            # DDP takes the mean over processes; what is wanted is the mean over the images of all of them.
            self.scaler.scale(loss * (distributed.world_size() / self.global_batch)).backward()
        found = {"right": (logits.argmax(1) == batch.labels).sum(), "loss": loss.detach()}
        if terms:
            terms = {"classification": classification, **terms}
            found |= {f"loss_{name}": term.detach() for name, term in terms.items()}
        return found

    def _at_size(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, 3, height, width) as large as this step wants them: smaller ones come first, if not alone."""
        size, epochs = self.config.small_size, self.config.small_epochs
        if size is None or (epochs is not None and self.step >= round(epochs * self.loader.steps)):
            return images
        return F.interpolate(images, (size, size), mode="bilinear", antialias=True)

    def _optimizer_step(self, sums: Mapping[str, torch.Tensor], indices: list[int], begin: float) -> None:
        """Queue the step, read what is known of those before it, checkpoint, and stop if asked to.

        A step whose loss or gradient is not finite changes nothing, which is decided where the figures are: on
        the device.
        """
        names, figures = tuple(sums), torch.stack([value.double() for value in sums.values()])
        if distributed.world_size() > 1:
            asked = figures.new_full((1,), float(self.stop.number > 0))
            names, figures = (*names, "asked_to_stop"), torch.cat([figures, asked])
            distributed.sum_over_processes(figures)
        self.scaler.unscale_(self.optimizer)
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        names, figures = (*names, "gradient_norm"), torch.cat([figures, norm.double().view(1)])
        if self.config.clip_grad is not None:
            nn.utils.clip_grads_with_norm_(parameters, self.config.clip_grad, norm)
        rate = float(self.scheduler.get_last_lr()[0])
        step_unless(figures.isfinite().all().logical_not(), self.optimizer)
        self.scaler.update()  # lowers fp16's scale if the gradients overflowed
        self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.reports.add(StepReport(self.step, self.loader.epoch, rate, indices, begin, names, figures))
        self.step += 1
        if self.average is not None:
            self.average.update(self.model, self.step)
        self._catch_up(self.reports.ready())
        # The checkpoint of an epoch's last step is written when it has been validated.
        if self.step % self.config.checkpoint_steps == 0 and self.loader.step < self.loader.steps:
            self.save()

    def _catch_up(self, reports: Iterable[StepReport]) -> None:
        """Note what is known of some steps, and stop if one of the processes was asked to."""
        for report in reports:
            self._note(report)
        if self._asked_to_stop:
            self.save()
            self._interrupt()

    def _note(self, report: StepReport) -> None:
        """Log a step; raises Diverged if it was none."""
        sums = report.figures()
        norm, asked = sums.pop("gradient_norm"), sums.pop("asked_to_stop", self.stop.number)
        losses = {name: value / self.global_batch for name, value in sums.items() if name != "right"}
        self.loss = losses["loss"]
        if not math.isfinite(self.loss):
            self._fail(f"the loss is {self.loss}", report)
        if not self.scaler.is_enabled() and not math.isfinite(norm):
            self._fail(f"the norm of the gradient is {norm}", report)
        self._asked_to_stop |= asked > 0
        # Steps overlap on a GPU: the time of one ends when it is known, and begins where the last one's ended.
        now = time.perf_counter()
        self.meter.add(sums, self.global_batch, now - max(report.begin, self._read_at))
        self._read_at = now
        if distributed.is_first():
            row = {"step": report.step, "epoch": report.epoch, **losses}
            self.logs.add_step({**row, "lr": report.rate, "gradient_norm": norm})

    def _interrupt(self) -> None:
        number = max(distributed.gather(self.stop.number))
        raise Interrupted(
            f"stopped by {signal.Signals(number).name} after step {self.step}; the checkpoint is "
            f"{self.folder.checkpoint_file}, --resume auto continues",
            number,
        )

    def _fail(self, what: str, report: StepReport) -> None:
        records = [self.dataset.records[index] for index in report.indices]
        names = [str(record.path or record.id) for record in records]
        everyone = [name for part in distributed.gather(names) for name in part]
        shown = "\n  ".join(everyone[:64]) + ("\n  ..." if len(everyone) > 64 else "")
        good = self.folder.checkpoint_file if self.folder.has_checkpoint else "none yet"
        raise Diverged(
            f"{what} at step {report.step} (epoch {report.epoch}); the weights were not changed by it.\n"
            f"last good checkpoint: {good}\nimages of the step:\n  {shown}"
        )

    # The end of an epoch

    def _end_epoch(self) -> None:
        """Validate the model where it is the epoch's turn, log the epoch, and write its one checkpoint."""
        epoch = self.loader.epoch
        if epoch % self.config.validate_every == 0 or epoch == self.config.epochs:
            self.validate_epoch()
        else:
            self._finish_epoch(None)
        if any(distributed.gather(self.stop.number > 0)):
            self._interrupt()

    def validate_epoch(self) -> Result:
        """The figures of the model of the epoch that was trained last; it is kept if it is the best."""
        self.kept.eval()
        # Each process has a batch norm's statistics of its own images; the first one's are saved.
        distributed.copy_of_first(self.kept.buffers())
        predictor = Predictor(self.kept, self.device, amp=self.amp)
        done = evaluate(predictor, self.source, validation_settings(self.config))
        result = done.result
        self.kept.config.threshold = result.threshold
        self.kept.config.confidences = confidence_percentiles(done.metrics.table.confidence)
        for metric in dict.fromkeys((self.config.best_metric, "top1_cls")):
            if metric in result.metrics and result.metrics[metric].value > self.best.get(metric, -1.0):
                self.best[metric] = result.metrics[metric].value
                self.validations[metric] = done.metrics
                distributed.on_first(self.folder.save_model, self.kept, f"best_{metric}")
        self._finish_epoch(result)
        return result

    def _finish_epoch(self, result: Result | None) -> None:
        if distributed.is_first():
            self._log_epoch(result)
        self.validated = self.loader.epoch
        self.save()

    def _log_epoch(self, result: Result | None) -> None:
        """Write the epoch's row and print its line; without a result, what the training alone tells."""
        row: dict[str, Any] = {
            "epoch": self.loader.epoch - 1,
            "steps": self.step,
            "lr": self.scheduler.get_last_lr()[0],
            **self.meter.figures(),
            **self._validation_row(result),
        }
        calibration = self.kept.calibration
        for name in () if calibration is None else ("lam", "beta"):
            for block, value in enumerate(getattr(calibration, name).tolist(), 1):
                row[f"{name}_{block}"] = value
        self.logs.add_epoch(row)
        print(
            f"epoch {self.loader.epoch}/{self.config.epochs}: loss {row['train_loss']:.3f}, "
            f"{self._in_words(result)}{row['images_per_second']:.0f} images/s, {self._time_left()} left",
            flush=True,
        )

    def _validation_row(self, result: Result | None) -> dict[str, Any]:
        if result is None:
            return {}
        threshold = result.threshold
        row: dict[str, Any] = {
            "threshold": threshold.value if threshold else None,
            "threshold_rule": threshold.rule if threshold else None,
            **{name: metric.value for name, metric in result.metrics.items()},
        }
        if self.config.val_boxes:
            row["pseudo_boxes"] = self._pseudo_boxes()
        return row

    def _in_words(self, result: Result | None) -> str:
        """Return what an epoch's line says of the validation."""
        if result is None:
            return ""
        metrics = result.metrics
        found = f"{self.config.val_split} top-1 {metrics['top1_cls'].value:.1f} %, "
        if "gt_known" in metrics:
            found += f"GT-Known {metrics['gt_known'].value:.1f} %"
            if self.config.val_boxes:
                found += f" on {self._pseudo_boxes()} pseudo-boxes of {self.config.val_boxes}"
            found += ", "
        if result.threshold:
            how = " without boxes" if result.protocol == "unboxed" else ""
            found += f"threshold {result.threshold}{how}, "
        return found

    def _pseudo_boxes(self) -> int:
        return int(self.source.validation(self.config.val_split).records.box_counts.sum())

    def _time_left(self) -> str:
        """Estimate the time left for training, at the speed of this epoch."""
        steps = self.config.epochs * self.loader.steps - self.step
        seconds = steps * self.global_batch * self.meter.seconds / max(self.meter.images, 1)
        return str(datetime.timedelta(seconds=round(seconds)))

    def kept_model(self) -> str:
        """The folder name of the model to evaluate: the best by the chosen metric, where it could be had."""
        return f"best_{self._kept_metric}"

    @property
    def kept_validation(self) -> SplitMetrics | None:
        """The metrics of that model on the validation split, if this process has seen it."""
        return self.validations.get(self._kept_metric)

    @property
    def _kept_metric(self) -> str:
        return self.config.best_metric if self.config.best_metric in self.best else "top1_cls"
