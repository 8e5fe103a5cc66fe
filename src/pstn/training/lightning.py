"""One model on many devices, with Lightning: any flag of its Trainer works; the model stays a plain `nn.Module`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from pstn.processes import loader_context

try:
    import lightning.pytorch as pl
    from lightning.pytorch.utilities import rank_zero_warn
except ModuleNotFoundError as error:
    if error.name != "lightning":
        raise
    raise ModuleNotFoundError("LitPSTN needs Lightning: pip install 'pstn[lightning]'", name="lightning") from error

from pstn._deprecation import renamed
from pstn.defaults import LR, WEIGHT_DECAY, default_kl_weight
from pstn.nn.classifier import TransformerModel
from pstn.noise import SamplingMethod, stream_keys, uniform
from pstn.objective import LossFunction
from pstn.training.diagnose import STEPS
from pstn.training.evaluate import log_probs_of
from pstn.training.fit import make_optimiser
from pstn.training.population.recipe import (
    KLWeight,
    Localizing,
    LRSchedule,
    Recipe,
    Teaching,
    kl_weight_at,
    progress_at,
)
from pstn.training.population.step import report_parts

if TYPE_CHECKING:
    from pstn.data.augment import RandomTransform


@final
class LitPSTN(pl.LightningModule):
    """A classifier of this package, or any other, for Lightning's Trainer.

    Posterior samples come from counted noise: the sample of an example in a step depends on the seed, the step and its
    place in the global batch, not on the process that computes it. So several processes take the steps that one would
    take, as long as the model has no dropout and no batch norm, which draw and count per process.

    Args:
        model: a PSTN, an STN, or any module that returns logits.
        lr: learning rate of the classifier.
        localizer_factor: what it is multiplied with for the localizer and its heads; None as in `pstn.fit`.
        kl_weight: w, the weight of the KL term; chosen by the number of training examples, where the loader can say,
            when None. Or a schedule, a function of the progress of training, from 0 to 1.
        weight_decay: Adam's L2 term.
        lr_step: epochs after which learning rates are multiplied with `lr_gamma`; None for never.
        lr_gamma: that factor.
        seed: of the posterior samples.
        loss: what to minimise, (prediction, y) -> a scalar or a `pstn.Loss`; the negative ELBO when None. A function
            with a parameter `kl_weight` is given the weight.
        teach: a random transform by which the inputs are warped, to teach the model what undoes it, as in `pstn.fit`;
            without `teach_weight` no labels are used, and `val_loss` is the loss of the pose. A pose that is not
            learned is warned of.
        teach_weight: what that loss is multiplied with before it is added to `loss`.
        lr_schedule: what learning rates are multiplied with, as a function of the progress of training from 0 to 1;
            instead of `lr_step`.

    Example:
        >>> module = LitPSTN(pstn.nn.mnist_pstn(), kl_weight=1e-3)
        >>> trainer = pl.Trainer(max_epochs=1, accelerator="cpu", devices=1)  # doctest: +SKIP
        >>> trainer.fit(module, LitData(x, y, batch_size=8))  # doctest: +SKIP
    """

    @renamed(localizer_lr="localizer_factor")
    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float = LR,
        localizer_factor: float | None = None,
        kl_weight: KLWeight | None = None,
        weight_decay: float = WEIGHT_DECAY,
        lr_step: int | None = None,
        lr_gamma: float = 0.1,
        seed: int = 0,
        loss: LossFunction | None = None,
        teach: RandomTransform | None = None,
        teach_weight: float | None = None,
        lr_schedule: LRSchedule | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["model", "loss", "kl_weight", "teach", "lr_schedule"])
        # The recipe refuses what does not go together.
        task: dict[str, Any] = {"loss": loss, "teach": teach, "teach_weight": teach_weight}
        self.recipe = Recipe(lr_step=lr_step, lr_schedule=lr_schedule, **task)
        self.model, self.training_loss = model, self.recipe.training_loss()
        self._teaching = None if teach is None else Teaching(teach, model)
        # Not as a module of its own: its parameters are the model's.
        self._learner = [Localizing(model) if self.training_loss.only_teaches else model]
        self._losses, self._told = list[Tensor](), False
        # What learns nothing gets no gradients for several processes to wait for; torch's DDP reads the names here.
        learned = set(map(id, self._learner[0].parameters()))
        self._ddp_params_and_buffers_to_ignore = [n for n, p in self.named_parameters() if id(p) not in learned]
        self.kl_weight: KLWeight | None = self.training_loss.choose_kl_weight(kl_weight, None)
        if self.kl_weight is not None and not callable(self.kl_weight):
            self.save_hyperparameters({"kl_weight": kl_weight_at(self.kl_weight, 0.0)})

    def on_fit_start(self) -> None:
        """Choose the weight of the KL term by the number of examples, where none was given."""
        if self.kl_weight is None and self.training_loss.takes_kl_weight:
            data = getattr(self.trainer, "datamodule", None)
            self.kl_weight = default_kl_weight(len(data._dataset("train")) if isinstance(data, LitData) else None)

    def forward(self, x: Tensor) -> Any:
        """What the model returns, by its own noise."""
        return self.model(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a batch (x, y), by default the negative ELBO; of x alone, where no labels are used."""
        x, y = self._read(batch)
        # With accumulated gradients several batches share a global step: epochs and batches never repeat.
        step = (self.current_epoch << 32) + batch_idx
        x, theta = self._move(x, "augment", step)
        output = self._predict(self._learner[0], x, "theta", step)
        weight = kl_weight_at(self.kl_weight, self._progress(batch_idx))
        made = self.training_loss(output, y, weight, None, theta)
        parts = report_parts(made, output, y)
        figures = {"train_loss": made.total.detach()}
        if made.kl is not None:
            figures["train_kl"] = parts[1]
        if y is not None and not y.is_floating_point():
            figures["train_accuracy"] = parts[2]
        self.log_dict(figures, prog_bar=True, batch_size=len(x))
        if self.training_loss.only_teaches:
            self._losses.append(figures["train_loss"])
        return made.total

    def on_train_epoch_end(self) -> None:
        """Warn of a pose that is taught alone and not learned: once it has had time to be, and at the end."""
        losses, self._losses = self._losses, []
        last = self.current_epoch + 1 == self.trainer.max_epochs
        asked = last or (self.trainer.global_step >= STEPS and not self._told)
        if self._teaching is None or not losses or not asked:
            return
        if found := self._teaching.judge(float(torch.stack(losses).mean())):
            rank_zero_warn(f"epoch {self.current_epoch + 1}: {found}")
            self._told = True

    def _progress(self, batch_idx: int) -> float:
        """How far training has come, from 0 to 1; 0 where its end is not known."""
        epochs, batches = self.trainer.max_epochs, self.trainer.num_training_batches
        if epochs is None or epochs < 1:
            return 0.0
        return progress_at(self.current_epoch, batch_idx, epochs, batches)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log `val_nll` and `val_accuracy`, or `val_loss` without classes, under S samples."""
        self._score("val", batch, batch_idx)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Log `test_nll` and `test_accuracy`, or `test_loss` without classes."""
        self._score("test", batch, batch_idx)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The classes' log-probabilities (B, K) for a batch: (x, y) as everywhere, or x alone."""
        x = batch[0] if isinstance(batch, (list, tuple)) else batch
        return log_probs_of(self._predict(self.model, x, "evaluate", batch_idx))

    def _read(self, batch: Any) -> tuple[Tensor, Any]:
        if self.training_loss.only_teaches:
            return (batch[0] if isinstance(batch, (list, tuple)) else batch), None
        x, y = batch
        return x, y

    def _move(self, x: Tensor, stream: str, step: int) -> tuple[Tensor, Tensor | None]:
        """Inputs as the random transform warps them, by counted noise, and what undoes it; as they are without one."""
        if self._teaching is None:
            return x, None
        return self._teaching(x, self._noise(x, stream, step, (), self._teaching.width))

    def _score(self, part: str, batch: Any, batch_idx: int) -> None:
        x, y = self._read(batch)
        x, theta = self._move(x, "validate", batch_idx)
        output = self._predict(self._learner[0], x, "evaluate", batch_idx)
        if y is None or y.is_floating_point():
            made = self.training_loss(output, y, 0.0, None, theta)
            figures = {"loss": made.total if made.nll is None else made.nll}
        else:
            p = log_probs_of(output)
            figures = {"nll": nn.functional.nll_loss(p, y), "accuracy": (p.argmax(1) == y).float().mean()}
        named = {f"{part}_{name}": value for name, value in figures.items()}
        self.log_dict(named, prog_bar=True, batch_size=len(x), sync_dist=True)

    def configure_optimizers(self) -> Any:
        """Adam, with the localizer's learning rate apart, and the step schedule."""
        values = self.hparams
        factor = values["localizer_factor"] if self._teaching is None else 1.0
        optimiser = make_optimiser(self._learner[0], values["lr"], factor, values["weight_decay"])
        if (schedule := self.recipe.lr_schedule) is not None:
            last = max(1, int(self.trainer.estimated_stepping_batches) - 1)
            by_step = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: schedule(min(1.0, step / last)))
            return {"optimizer": optimiser, "lr_scheduler": {"scheduler": by_step, "interval": "step"}}
        if values["lr_step"] is None:
            return optimiser
        by_epoch = torch.optim.lr_scheduler.StepLR(optimiser, values["lr_step"], values["lr_gamma"])
        return {"optimizer": optimiser, "lr_scheduler": by_epoch}

    def _predict(self, model: nn.Module, x: Tensor, stream: str, step: int) -> Any:
        if not isinstance(model, TransformerModel) or not model.layer.probabilistic:
            return model(x)
        layer = model.layer
        return model(x, noise=self._noise(x, stream, step, (model.samples,), layer.noise_width, layer.sampling))

    def _noise(
        self, x: Tensor, stream: str, step: int, samples: tuple[int, ...], width: int, method: SamplingMethod = "iid"
    ) -> Tensor:
        """Uniform noise (*samples, B, width) for a batch, a function of its examples' places in the global batch."""
        keys = stream_keys([self.hparams["seed"]], stream, device=x.device)
        world, rank = self.trainer.world_size, self.trainer.global_rank
        # A distributed sampler deals examples out in turn: this process has every world-th of the global batch.
        return uniform(keys, step, 1, (*samples, len(x) * world, width), method)[0, 0, ..., rank::world, :]


@final
class LitData(pl.LightningDataModule):
    """Tensors as a data module.

    Args:
        x: (M, C, *size), training examples.
        y: (M,), their classes.
        valid: (x, y) for validation.
        test: (x, y) for testing.
        batch_size: examples per process and step.
        workers: processes that load data.
        shuffle: whether training examples come in a new order each epoch.

    Example:
        >>> data = LitData(torch.rand(32, 1, 28, 28), torch.zeros(32, dtype=torch.int64), batch_size=8)
        >>> len(data.train_dataloader())
        4
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        *,
        valid: tuple[Tensor, Tensor] | None = None,
        test: tuple[Tensor, Tensor] | None = None,
        batch_size: int = 8,
        workers: int = 0,
        shuffle: bool = True,
    ) -> None:
        super().__init__()
        self.parts = {"train": (x, y), "valid": valid, "test": test}
        self.batch_size, self.workers, self.shuffle = batch_size, workers, shuffle

    def train_dataloader(self) -> DataLoader[Any]:
        """In an order that does not depend on the number of processes, without the last incomplete batch."""
        world, rank = (self.trainer.world_size, self.trainer.global_rank) if self.trainer else (1, 0)
        dataset = self._dataset("train")
        if self.batch_size > (most := len(dataset) // world):
            raise ValueError(f"batch_size must be at most {most}, the examples of a process, got {self.batch_size}")
        # Lightning would deal training examples out in an order of its own, but leaves a distributed sampler alone.
        dealt: DistributedSampler[Any] = DistributedSampler(dataset, world, rank, shuffle=self.shuffle, drop_last=True)
        return self._loader("train", sampler=dealt, drop_last=True)

    def val_dataloader(self) -> Any:
        """In order."""
        return self._loader("valid") if self.parts["valid"] is not None else []

    def test_dataloader(self) -> Any:
        """In order."""
        return self._loader("test") if self.parts["test"] is not None else []

    def _dataset(self, part: str) -> TensorDataset:
        return TensorDataset(*(self.parts[part] or ()))

    def _loader(self, part: str, **options: Any) -> DataLoader[Any]:
        context = loader_context() if self.workers else None
        workers = {"num_workers": self.workers, "multiprocessing_context": context}
        return DataLoader(self._dataset(part), self.batch_size, **workers, **options)  # type: ignore[arg-type]
