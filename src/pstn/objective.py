"""What training minimises: the negative evidence lower bound."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor

from pstn._checks import can_inspect_values, require_nonnegative_number, require_positive_number, require_tensor
from pstn.distributions import PointPosterior, Prior, ThetaDistribution
from pstn.distributions.base import by_kind, chosen_prior
from pstn.uncertainty import require_labels

__all__ = ["Loss", "LossFunction", "class_log_likelihood", "elbo_loss", "elbo_parts", "pose_loss"]


def class_log_likelihood(prediction: Any, y: Tensor) -> Tensor:
    """The log-likelihood log p(y | T_theta_s(x)) of each sample.

    Args:
        prediction: what a `PSTN` returns.
        y: (B,), class indices.

    Returns:
        (S, B).
    """
    if not hasattr(prediction, "sample_log_probs"):
        raise TypeError(f"prediction must be what a PSTN returns, got {type(prediction).__name__}")
    log_probs: Tensor = prediction.sample_log_probs
    y = require_labels(y, log_probs.shape[1:])
    index = y[None, :, None].expand(log_probs.shape[0], -1, 1)
    return log_probs.gather(-1, index)[..., 0]


class Loss(NamedTuple):
    """What a loss function may return instead of a scalar: the loss, and what it is made of, for reports."""

    total: Tensor
    """A scalar, to be minimised."""
    nll: Tensor | None = None
    """Negative log-likelihood, a scalar."""
    kl: Tensor | None = None
    """KL to the prior, a scalar, before it is weighted."""


LossFunction = Callable[..., Any]
"""(prediction, y) -> a scalar tensor or a `Loss`; it may also take `kl_weight` and `weights`."""


def elbo_loss(
    prediction: Any, y: Any, kl_weight: float | Tensor, *,
    log_likelihood: Callable[[Any, Any], Tensor] = class_log_likelihood, prior: Prior | None = None,
    alpha0: float | None = None, beta0: float | None = None, weights: Tensor | None = None,
) -> Tensor:  # fmt: skip
    r"""The negative ELBO, to be minimised: -(1/S) sum_s log p(y | T_theta_s(x)) + w KL(q || p), averaged over inputs.

    The KL is averaged over the D parameters too, where the paper writes a sum: the values of w that the authors used
    assume the mean. With w = 0, or for an STN, whose KL is 0, this is the plain cross-entropy.

    Args:
        prediction: what a model or a layer returned; anything with a `posterior`.
        y: the target, for classification (B,) class indices.
        kl_weight: w, at least 0; a tensor is taken as it is, for populations with different weights.
        log_likelihood: for any other task, a function (prediction, y) -> (S, B) of log-likelihoods. Minus infinity is
            a likelihood of 0, and makes the loss infinite.
        prior: what the posterior is compared with; its own prior when None.
        alpha0: short for `prior=pstn.GammaPrior(alpha0, beta0)`.
        beta0: likewise; each is 1 where only the other is given.
        weights: (B,), how much each input counts; all the same when None.

    Returns:
        A scalar.

    Example:
        Regression, with a head of your own on the warped samples:

        >>> layer = pstn.SpatialTransformer(pstn.Crop(ndim=1), nn.Flatten(), size=(50,), features=50)
        >>> x, y, head = torch.randn(8, 1, 50), torch.randn(8), nn.Linear(50, 1)
        >>> out = layer(x, samples=4)
        >>> def gaussian(out, y):
        ...     return torch.distributions.Normal(head(out.warped)[..., 0, 0], 1.0).log_prob(y)
        >>> pstn.elbo_loss(out, y, kl_weight=1e-3, log_likelihood=gaussian).shape
        torch.Size([])
    """
    prior = chosen_prior(prior, alpha0, beta0)
    if not hasattr(prediction, "posterior"):
        raise TypeError(f"prediction must be all that the model or layer returned, got {type(prediction).__name__}")
    kl_weight = _checked_kl_weight(kl_weight)
    loss = elbo_parts(prediction, y, kl_weight, weights, log_likelihood=log_likelihood, prior=prior).total
    if can_inspect_values(loss) and bool(torch.isnan(loss)):
        raise ValueError("the loss is NaN: log_likelihood returned NaN; look for it in the classifier's output")
    return loss


def elbo_parts(
    output: Any, y: Any, kl_weight: float | Tensor, weights: Tensor | None = None, *,
    log_likelihood: Callable[..., Tensor] = class_log_likelihood, prior: Prior | None = None,
) -> Loss:  # fmt: skip
    """The negative ELBO with its two terms: what `elbo_loss` returns the total of, and what trainers report.

    Args:
        output: what a model returned: anything with a `posterior`, or a plain classifier's logits (B, K).
        y: the target.
        kl_weight: w.
        weights: (B,), how much each input counts: one of weight 2 counts as two would.
        log_likelihood: as for `elbo_loss`; not asked about logits.
        prior: as for `elbo_loss`.
    """
    if isinstance(output, Tensor):
        nll = _weighted(F.cross_entropy(output.float(), y, reduction="none"), weights).mean()
        return Loss(nll, nll, torch.zeros_like(nll))
    log_p = log_likelihood(output, y)
    require_tensor("what log_likelihood returns", log_p)
    posterior: ThetaDistribution = output.posterior
    batch = posterior.shape[0]
    if log_p.dim() != 2 or log_p.shape[1] != batch:
        raise ValueError(f"log_likelihood must return shape (S, B) with B = {batch}, got {tuple(log_p.shape)}")
    log_weights = getattr(output, "log_weights", None)
    if log_weights is not None and posterior.weighted:
        log_p = (log_weights.exp() * log_p).sum(0)
    nll = -_weighted(log_p, weights).mean()
    kl = _weighted(posterior.kl(prior).mT, weights).mean()
    return Loss(nll + kl_weight * kl, nll, kl)


def pose_loss(posterior: ThetaDistribution, theta: Tensor) -> Tensor:
    """How badly a posterior predicts a theta that is known, (B,): the negative log-density, which it is taught with.

    A point posterior has no density: it is taught with the squared distance, of angles that between points on the unit
    circle.

    Args:
        posterior: over theta (B, D).
        theta: (B, D).

    Example:
        >>> pose_loss(pstn.NormalPosterior(torch.zeros(1, 2), torch.ones(1, 2)), torch.zeros(1, 2))
        tensor([1.8379])
    """
    if not isinstance(posterior, PointPosterior):
        return -posterior.log_prob(theta).sum(-1)
    difference = theta - posterior.loc
    return by_kind(difference.square(), posterior.circular, lambda _, d: 2 - 2 * d.cos(), difference).sum(-1)


def _weighted(values: Tensor, weights: Tensor | None) -> Tensor:
    """Values (..., B) times the weights (B,), where there are any."""
    return values if weights is None else values * weights


@final
class TrainingLoss:
    """A loss function as every trainer calls it: with each model's own `kl_weight` and `weights`, if it takes them.

    Args:
        loss: (prediction, y) -> a scalar tensor or a `Loss`; None for the negative ELBO.
        teaches: whether theta is known for each input, and is taught.
        teach_weight: the weight of that beside `loss`; None for that alone.

    Example:
        >>> TrainingLoss(lambda prediction, y: prediction.square().mean())(torch.ones(3), None, 0.1, None).total
        tensor(1.)
    """

    def __init__(
        self, loss: LossFunction | None = None, *, teaches: bool = False, teach_weight: float | None = None
    ) -> None:
        if loss is not None and not callable(loss):
            raise TypeError(f"loss must be a function of (prediction, y), got {loss!r}")
        if teach_weight is not None:
            require_positive_number("teach_weight", teach_weight)
            if not teaches:
                raise ValueError(f"teach_weight must be left out without teach, got {teach_weight}")
        self.teach_weight, self.only_teaches = teach_weight, teaches and teach_weight is None
        if self.only_teaches and loss is not None:
            raise ValueError("loss must be left out where teach is given without teach_weight: no labels are used")
        self.function = elbo_parts if loss is None or loss is elbo_loss else loss
        parameters = inspect.signature(self.function).parameters
        self.takes_kl_weight = "kl_weight" in parameters and not self.only_teaches
        self.takes_weights = "weights" in parameters

    def __call__(
        self, output: Any, y: Any, kl_weight: float | Tensor, weights: Tensor | None, theta: Tensor | None = None
    ) -> Loss:
        """The loss of a batch and its parts, as far as the function returns them.

        Args:
            output: what the model returned; the posterior alone where nothing else is taught.
            y: the target.
            kl_weight: w.
            weights: (B,), how much each input counts.
            theta: (B, D), what the posterior is to predict, if that is taught.
        """
        if theta is None:
            return self._task(output, y, kl_weight, weights)
        taught = _weighted(pose_loss(getattr(output, "posterior", output), theta), weights).mean()
        if self.teach_weight is None:
            return Loss(taught)
        made = self._task(output, y, kl_weight, weights)
        return made._replace(total=made.total + self.teach_weight * taught)

    def _task(self, output: Any, y: Any, kl_weight: float | Tensor, weights: Tensor | None) -> Loss:
        options: dict[str, Any] = {"kl_weight": kl_weight} if self.takes_kl_weight else {}
        if self.takes_weights:
            options["weights"] = weights
        made = self.function(output, y, **options)
        made = made if isinstance(made, Loss) else Loss(made)
        require_tensor("what loss returns", made.total)
        if made.total.dim() != 0:
            raise ValueError(f"loss must return a scalar, got a tensor of shape {tuple(made.total.shape)}: take a mean")
        return made

    def choose_kl_weight(self, kl_weight: Any, default: float | None) -> Any:
        """The weight to train with: that which was asked for, or the default; refused if the loss takes none."""
        if kl_weight is None:
            return default
        if not self.takes_kl_weight:
            raise ValueError(f"kl_weight must be left out: this loss does not take it, got {kl_weight!r}")
        return kl_weight


def count_hits(output: Any, y: Tensor | None) -> Tensor | None:
    """The share of right answers, a scalar, of single samples; None where there are no classes to be right about."""
    scores = getattr(output, "sample_log_probs", output)
    if not isinstance(scores, Tensor) or scores.dim() < 2 or y is None or y.is_floating_point() or y.dim() != 1:
        return None
    return (scores.detach().argmax(-1) == y).float().mean()


def _checked_kl_weight(kl_weight: Any) -> float | Tensor:
    if not isinstance(kl_weight, Tensor):
        return require_nonnegative_number("kl_weight", kl_weight)
    if kl_weight.dim() != 0:
        raise ValueError(f"kl_weight must be one number, got a tensor of shape {tuple(kl_weight.shape)}")
    if can_inspect_values(kl_weight):
        require_nonnegative_number("kl_weight", kl_weight.item())
    return kl_weight
