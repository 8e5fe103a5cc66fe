"""What training minimises: the negative evidence lower bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from pstn._checks import require_nonnegative_number, require_tensor, values_readable
from pstn.posterior import ThetaDistribution
from pstn.uncertainty import require_labels

__all__ = ["HasPosterior", "class_log_likelihood", "elbo_loss"]


class HasPosterior(Protocol):
    """Anything that carries a posterior: a prediction, or what a layer returns."""

    @property
    def posterior(self) -> ThetaDistribution:
        """The distribution over theta, one per input."""
        ...


P = TypeVar("P", bound=HasPosterior)
Target = TypeVar("Target")


class HasSampleLogProbs(HasPosterior, Protocol):
    """A classifier's prediction."""

    @property
    def sample_log_probs(self) -> Tensor:
        """(S, B, K)."""
        ...


def class_log_likelihood(prediction: HasSampleLogProbs, y: Tensor) -> Tensor:
    """The log-likelihood log p(y | T_theta_s(x)) of each sample.

    Args:
        prediction: what a `PSTN` returns.
        y: (B,), class indices.

    Returns:
        (S, B).
    """
    if not hasattr(prediction, "sample_log_probs"):
        raise TypeError(
            f"prediction must have sample_log_probs, got {type(prediction).__name__}: pass the whole Prediction that a "
            "PSTN returns, or log_likelihood= for any other task"
        )
    log_probs = prediction.sample_log_probs
    y = require_labels(y, log_probs.shape[1:])
    index = y[None, :, None].expand(log_probs.shape[0], -1, 1)
    return log_probs.gather(-1, index)[..., 0]


def elbo_loss(
    prediction: P,
    y: Target,
    kl_weight: float | Tensor,
    *,
    # The default fits predictions of classes and no other P: mypy has no default for one type variable alone.
    log_likelihood: Callable[[P, Target], Tensor] = class_log_likelihood,  # type: ignore[assignment]
    alpha0: float = 1.0,
    beta0: float = 1.0,
) -> Tensor:
    r"""The negative ELBO, to be minimised: -(1/S) sum_s log p(y | T_theta_s(x)) + w KL(q || p), averaged over inputs.

    The KL is averaged over the D parameters too, where the paper writes a sum: the values of w that the authors used
    assume the mean. With w = 0, or for an STN, whose KL is 0, this is the plain cross-entropy.

    Args:
        prediction: what a model or a layer returned; anything with a `posterior`.
        y: the target, for classification (B,) class indices.
        kl_weight: w, at least 0; a tensor is taken as it is, for populations with different weights.
        log_likelihood: for any other task, a function (prediction, y) -> (S, B) of log-likelihoods. Minus infinity is
            a likelihood of 0, and makes the loss infinite.
        alpha0: shape of the Gamma prior over the precision.
        beta0: rate of the Gamma prior over the precision.

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
    kl_weight = _checked_kl_weight(kl_weight)
    if not hasattr(prediction, "posterior"):
        raise TypeError(
            f"prediction must have a posterior, got {type(prediction).__name__}: pass the whole of what the model or "
            "the layer returned, such as a Prediction, not its log_probs alone"
        )
    log_p = log_likelihood(prediction, y)
    require_tensor("what log_likelihood returns", log_p)
    posterior = prediction.posterior
    batch = posterior.loc.shape[0]
    if log_p.dim() != 2 or log_p.shape[1] != batch:
        raise ValueError(
            f"log_likelihood must return (S, B) with B = {batch}: one number per sample and input, got "
            f"{tuple(log_p.shape)}"
        )
    loss = -log_p.mean() + kl_weight * posterior.kl(alpha0, beta0).mean()
    if values_readable(loss) and bool(torch.isnan(loss)):
        raise ValueError("the loss is NaN: log_likelihood returned NaN; look for it in the classifier's output")
    return loss


def _checked_kl_weight(kl_weight: Any) -> float | Tensor:
    if not isinstance(kl_weight, Tensor):
        return require_nonnegative_number("kl_weight", kl_weight)
    if kl_weight.dim() != 0:
        raise ValueError(f"kl_weight must be one number, got a tensor of shape {tuple(kl_weight.shape)}")
    if values_readable(kl_weight):
        require_nonnegative_number("kl_weight", kl_weight.item())
    return kl_weight
