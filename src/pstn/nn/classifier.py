"""Classifiers that look several times: a spatial transformer layer with a head that reads every sample."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree
from torch.utils.checkpoint import checkpoint

from pstn import _checks
from pstn.abstaining import Abstention
from pstn.defaults import FROZEN_FACTOR, LOCALIZER_FACTOR, TEST_SAMPLES, TRAIN_SAMPLES
from pstn.distributions import ThetaDistribution
from pstn.nn.layer import SpatialTransformer, call_on
from pstn.nn.metadata import Shareable
from pstn.noise import Samples, draw_noise
from pstn.uncertainty import entropy, log_mean_exp, mutual_information

__all__ = ["PSTN", "STN", "Prediction", "TransformerClassifier", "TransformerModel", "evaluating", "require_classifier"]

Model = TypeVar("Model", bound=nn.Module)
# Samples that a prediction on a CPU warps and classifies at a time, and the numbers that these may hold.
_AT_ONCE, _NUMBERS_AT_ONCE = 500, 1 << 23


class Prediction(NamedTuple):
    """A classifier's answer, with what it is made of."""

    log_probs: Tensor
    """(B, K), log of the weighted mean of the samples' probabilities."""
    sample_log_probs: Tensor
    """(S, B, K), log-probabilities under each sample."""
    theta: Tensor
    """(S, B, D), where each sample looked."""
    posterior: ThetaDistribution
    """The distribution over theta, one per input."""
    log_weights: Tensor | None = None
    """(S, B), the logarithms of the samples' weights."""

    def __repr__(self) -> str:
        # Maps over a prediction put anything into its fields: values without a shape are shown as they are.
        fields = zip(self._fields[:3], self[:3], strict=True)
        shapes = ", ".join(f"{name} {tuple(v.shape) if isinstance(v, Tensor) else v}" for name, v in fields)
        return f"Prediction({shapes}, {type(self.posterior).__name__})"

    @property
    def probs(self) -> Tensor:
        """Class probabilities, (B, K)."""
        return self.log_probs.exp()

    @property
    def entropy(self) -> Tensor:
        """The total uncertainty of the answer, in nats: (B,)."""
        return entropy(self.log_probs)

    @property
    def mutual_information(self) -> Tensor:
        """The part of it that comes from not knowing where to look, in nats: (B,)."""
        return mutual_information(self.sample_log_probs, self.log_weights if self.posterior.weighted else None)


class TransformerModel(nn.Module, ABC):
    """A model with a spatial transformer layer: the interface that every trainer uses.

    Subclass it for a task of your own: set `layer` and whatever reads the warped samples, and write a `forward` that
    passes `samples`, `noise` and `generator` on to the layer and returns something with a `posterior`. It then trains
    with `pstn.fit`, in a population and with Lightning, with a `loss=` for the task.

    Example:
        >>> class Regressor(pstn.nn.TransformerModel):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = pstn.SpatialTransformer(pstn.Crop(ndim=1), nn.Flatten(), size=50, features=50)
        ...         self.head = nn.Linear(50, 1)
        ...
        ...     def forward(self, x, samples=None, *, noise=None, generator=None):
        ...         return self.layer(x, samples or self.samples, noise=noise, generator=generator)
        >>> Regressor().train_samples
        4
    """

    layer: SpatialTransformer
    train_samples: int = TRAIN_SAMPLES
    test_samples: int = TEST_SAMPLES
    chunk_size: int | None = None

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        samples: int | None = None,
        *,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Any:
        """Something with a `posterior`, from the input under samples of the transformation predicted from it.

        Args:
            x: (B, C, *in).
            samples: S; `self.samples` when not given.
            noise: (S, B, W) uniform noise in (0, 1) to use instead of drawing any; W is `layer.noise_width`.
            generator: where the randomness comes from.
        """

    @property
    def samples(self) -> int:
        """S in the module's present mode: `train_samples` or `test_samples`."""
        return self.train_samples if self.training else self.test_samples

    def parameter_groups(
        self, lr: float, *, localizer_factor: float | None = None, **options: Any
    ) -> list[dict[str, Any]]:
        """Groups for an optimiser, with the localizer's learning rate apart.

        Localizers want a far smaller step than classifiers: the first gradients may otherwise move theta so far
        that nothing of the input remains visible. Frozen parameters are left out; those that localizer and classifier
        share learn at the localizer's rate.

        Args:
            lr: learning rate of the classifier.
            localizer_factor: what it is multiplied with for the localizer and its heads; when None, 0.008 beside a
                classifier that learns, and 0.1 where nothing else learns.
            **options: anything else for both groups, e.g. weight_decay.

        Example:
            >>> model = pstn.nn.mnist_pstn()
            >>> optimiser = torch.optim.Adam(model.parameter_groups(lr=1e-3, weight_decay=0.01))
            >>> [(group["name"], group["lr"]) for group in optimiser.param_groups]
            [('localizer', 8e-06), ('classifier', 0.001)]
        """
        lr = _checks.require_positive_number("lr", lr)
        localizer = _trainable(self.layer)
        shared = {id(parameter) for parameter in localizer}
        classifier = [p for p in _trainable(self) if id(p) not in shared]
        default = LOCALIZER_FACTOR if classifier else FROZEN_FACTOR
        chosen = default if localizer_factor is None else localizer_factor
        factor = _checks.require_positive_number("localizer_factor", chosen)
        groups = ("localizer", localizer, lr * factor), ("classifier", classifier, lr)
        return [{"params": own, "lr": rate, "name": name, **options} for name, own, rate in groups if own]


class TransformerClassifier(Shareable, TransformerModel, ABC):
    """What PSTN and STN share."""

    def __init__(self, layer: SpatialTransformer, classifier: nn.Module, temperature: float) -> None:
        super().__init__()
        if not isinstance(layer, SpatialTransformer):
            raise TypeError(f"layer must be a pstn.SpatialTransformer, got {type(layer).__name__}")
        require_classifier(classifier)
        self.layer, self.classifier = layer, classifier
        self.temperature = _checks.require_positive_number("temperature", temperature)

    def forward(
        self,
        x: Tensor,
        samples: Samples | None = None,
        *,
        source: Tensor | None = None,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Prediction:
        """Classify `x` under samples of the transformation predicted from it.

        Args:
            x: (B, C, *in), what the localizer looks at.
            samples: S; `train_samples` or `test_samples` by the module's mode when not given. "modes" takes the centre
                of each of the posterior's modes, with its weight, and needs no noise.
            source: (B, C', *source), what is warped and classified instead of `x`, e.g. at a higher resolution.
            noise: (S, B, W) uniform noise in (0, 1) to use instead of drawing any; W is `layer.noise_width`.
            generator: where the randomness comes from.
        """
        if samples is None:
            samples = self.samples
            if noise is not None:
                _checks.require_floating("noise", noise)
                samples = noise.shape[0] if noise.dim() else 1  # noise without axes is refused by the posterior
        _checks.require_floating("x", x)
        chunk = self._chunk(x) if self.chunk_size is None else self.chunk_size
        if chunk is None or (samples != "modes" and samples <= chunk):
            out = self.layer(x, samples, source=source, noise=noise, generator=generator)
            theta, posterior, log_weights = out.theta, out.posterior, out.log_weights
            sample_log_probs = self._classify(out.warped)
        else:
            posterior = self.layer.localize(x)
            method = self.layer.sampling
            theta, log_weights = posterior.weighted_sample(samples, method, noise=noise, generator=generator)
            sample_log_probs = self._classify_in_chunks(x if source is None else source, theta, chunk)
        log_probs = log_mean_exp(sample_log_probs, log_weights if posterior.weighted else None)
        if self.temperature != 1:
            log_probs = (log_probs / self.temperature).log_softmax(-1)
        return Prediction(log_probs, sample_log_probs, theta, posterior, log_weights)

    def _chunk(self, x: Tensor) -> int | None:
        """How many samples to take at a time if `chunk_size` is None: all, except in a prediction on a CPU.

        Their intermediate results then stay in its caches, which is a third faster than 1,000 small images at once, and
        those of large images take bounded memory.
        """
        if self.training or torch.is_grad_enabled() or not _checks.can_inspect_values(x) or x.device.type != "cpu":
            return None
        if self.layer._forward_hooks or self.layer._forward_pre_hooks:
            return None  # hooks on the layer expect one call with all inputs
        warped = math.prod(x.shape[:2]) * math.prod(self.layer.size or x.shape[2:])
        return max(1, min(_AT_ONCE // max(1, x.shape[0]), _NUMBERS_AT_ONCE // max(1, warped)))

    def _classify_in_chunks(self, source: Tensor, theta: Tensor, chunk: int) -> Tensor:
        """(S, B, K) log-probabilities, warping and classifying `chunk` samples at a time."""

        def classify(source: Tensor, part: Tensor) -> Tensor:
            return self._classify(self.layer.warp(source, part))

        # Recomputing a chunk in the backward pass is what keeps memory from growing with S.
        if torch.is_grad_enabled() and _checks.recomputable():
            return torch.cat([checkpoint(classify, source, part, use_reentrant=False) for part in theta.split(chunk)])
        return torch.cat([classify(source, part) for part in theta.split(chunk)])

    def _classify(self, warped: Tensor) -> Tensor:
        """(S, B, C, *size) -> (S, B, K) log-probabilities."""
        samples, batch = warped.shape[:2]
        logits = call_on("classifier", self.classifier, warped.flatten(0, 1))
        if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[0] != samples * batch:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(f"classifier must return logits of shape (N, K) for a batch of N, got {shape}")
        _checks.require_finite("logits", logits, "the classifier returned them; lower its learning rate")
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits.log_softmax(-1).reshape(samples, batch, -1)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"train_samples={self.train_samples}, test_samples={self.test_samples}, chunk_size={self.chunk_size}"


@final
class PSTN(TransformerClassifier):
    """The probabilistic spatial transformer network: classify under several sampled transformations, and average.

    Args:
        layer: the spatial transformer.
        classifier: a module that turns warped inputs (N, C, *size) into logits (N, K).
        train_samples: S in training mode.
        test_samples: S in evaluation mode. A layer with `probabilistic=False` has one transformation to offer: S is 1
            then, whatever is given here.
        chunk_size: how many samples to warp and classify at a time. None does all at once, except for a prediction on
            a CPU (evaluation mode, no gradients): there it takes as many as make 500 warped inputs, which is faster.
            In training, chunks are recomputed in the backward pass, so that memory does not grow with S; batch norm
            then sees each chunk by itself, twice.
        temperature: what the logarithms of the averaged probabilities are divided by; `pstn.calibrate` finds it.

    Example:
        >>> model = pstn.nn.mnist_pstn()
        >>> p = model.eval()(torch.rand(2, 1, 28, 28))
        >>> p.log_probs.shape, p.sample_log_probs.shape, p.entropy.shape
        (torch.Size([2, 10]), torch.Size([10, 2, 10]), torch.Size([2]))
    """

    def __init__(
        self,
        layer: SpatialTransformer,
        classifier: nn.Module,
        train_samples: int = TRAIN_SAMPLES,
        test_samples: int = TEST_SAMPLES,
        *,
        chunk_size: int | None = None,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(layer, classifier, temperature)
        self.train_samples = _checks.require_positive_int("train_samples", train_samples)
        self.test_samples = _checks.require_positive_int("test_samples", test_samples)
        self.chunk_size = None if chunk_size is None else _checks.require_positive_int("chunk_size", chunk_size)


@final
class STN(TransformerClassifier):
    """The classic spatial transformer network (Jaderberg et al. 2015): one transformation per input.

    Args:
        layer: a spatial transformer made with `probabilistic=False`.
        classifier: a module that turns warped inputs (N, C, *size) into logits (N, K).
        temperature: what the logits are divided by; `pstn.calibrate` finds it.

    Example:
        >>> pstn.nn.mnist_stn()(torch.rand(2, 1, 28, 28)).sample_log_probs.shape
        torch.Size([1, 2, 10])
    """

    def __init__(self, layer: SpatialTransformer, classifier: nn.Module, *, temperature: float = 1.0) -> None:
        super().__init__(layer, classifier, temperature)
        if layer.probabilistic:
            raise ValueError("layer must be made with probabilistic=False for an STN; PSTN takes this one")
        self.train_samples = self.test_samples = 1


# As for `TransformerOutput`.
_pytree._register_namedtuple(Prediction, serialized_type_name="pstn.Prediction")


def require_classifier(classifier: nn.Module) -> None:
    """Refuse what is no module, and probabilities where logits are read: softmax of them is far too unsure.

    Log-probabilities do no harm.
    """
    if not isinstance(classifier, nn.Module):
        raise TypeError(f"classifier must be a torch.nn.Module, got {type(classifier).__name__}")
    last = classifier
    while isinstance(last, nn.Sequential) and len(last) > 0:
        last = last[-1]
    if isinstance(last, nn.Softmax):
        raise ValueError("classifier must return logits, got one that ends in nn.Softmax: leave that out")


def _trainable(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


@contextmanager
def evaluating(model: Model) -> Iterator[Model]:
    """Put a model into evaluation mode, and each of its parts back into its own mode, also after an error.

    Example:
        >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
        >>> with evaluating(model):
        ...     model[0].training
        False
        >>> model[0].training, model[1].training
        (True, False)
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield model.eval()
    finally:
        for module, training in modes:
            module.training = training


def fitting_rule(model: Shareable, samples: Samples | None) -> Abstention | None:
    """When a model should not answer, where that was found on predictions with so many samples; else None.

    Args:
        model: a classifier that may have metadata.
        samples: S or "modes"; None for one pass under the most probable transformation.
    """
    rule = None if model.about is None else model.about.abstention
    fits = rule is None or not isinstance(model, PSTN) or samples == (rule.samples or model.test_samples)
    return rule if fits else None


def shared_noise(model: nn.Module, count: int, samples: Samples | None = None, seed: int = 0) -> dict[str, Any]:
    """What a model is called with beside its inputs, so that every one of them has the same noise."""
    if not isinstance(model, PSTN):
        return {}
    if samples == "modes":
        return {"samples": samples}
    wanted = model.test_samples if samples is None else _checks.require_positive_int("samples", samples)
    layer = model.layer
    source = torch.Generator().manual_seed(_checks.require_seed("seed", seed))
    noise = draw_noise(wanted, (1, layer.noise_width), method=layer.sampling, generator=source)
    return {"noise": noise.expand(-1, count, -1)}
