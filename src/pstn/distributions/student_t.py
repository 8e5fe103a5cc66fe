"""The Student-t distribution over theta: the posterior of the paper."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from pstn._checks import require_choice, require_finite_number, require_positive_number
from pstn.defaults import ALPHA, VAR_INIT
from pstn.distributions import base
from pstn.distributions.base import REACH, GammaPrior, NormalPrior, by_kind, sum_over_turns, turns, wrap
from pstn.noise import uniform_bounds
from pstn.transforms import Transform

__all__ = ["Posterior", "PrecisionKind", "StudentT", "require_alpha", "student_t_quantile"]

PrecisionKind = Literal["per-parameter", "per-input"]
_Array = npt.NDArray[np.float64]

# The table runs to tail probability exp(-_REACH)/2, below the margin, in this many cubic pieces.
_REACH = 18.0
_PIECES = 1024

# Nodes and weights of Gauss-Legendre quadrature on [-1, 1], as plain numbers, which compile.
_NODES = [(float(node), float(weight)) for node, weight in zip(*np.polynomial.legendre.leggauss(16), strict=True)]

# Keeps beta, and so the KL and its gradient, finite however far down the variance head goes.
_MIN_BETA = 1e-8
# With fewer degrees of freedom than 2 * 0.25 a sample can leave float32's range.
_MIN_ALPHA = 0.25


def require_alpha(alpha: float) -> float:
    """Refuse a shape of the Gamma distribution with which samples could leave float32's range."""
    if torch.compiler.is_compiling():
        return alpha  # a symbol, if models of different alpha are compiled
    if require_positive_number("alpha", alpha) < _MIN_ALPHA:
        raise ValueError(f"alpha must be at least {_MIN_ALPHA}, got {alpha}")
    return float(alpha)


@final
@dataclass(frozen=True, eq=False)
class Posterior(base.Located):
    r"""Student-t, independent per parameter: theta given a precision lambda is normal, and lambda is Gamma.

    With lambda ~ Gamma(alpha, rate=beta) and theta | lambda ~ N(loc, 1/lambda), theta itself is Student-t with
    2 alpha degrees of freedom, location loc and scale sqrt(beta / alpha). At alpha = 1, the paper's choice, its
    quantile is closed form, t = (2u - 1) / sqrt(2u(1 - u)), so sampling is arithmetic on uniform noise u: it compiles,
    exports, and runs under autocast and vmap. Its variance is infinite: a sample far out is not a mistake.

    The paper's text has one precision per input, shared by all parameters, which then go far out together: that is
    beta (..., 1). The authors' experiments have one per parameter, beta (..., D), and so has the layer by default.

    Args:
        loc: (..., D), at least float32 in every result.
        beta: (..., D), or (..., 1) for one precision shared by all parameters; above 0.
        alpha: at least 0.25.
        prior: what `kl` compares with; the paper's Gamma(1, 1) over the precision when not given.
        circular: for each parameter whether it is an angle, which then lives on the circle; none when empty.

    Example:
        >>> q = Posterior(torch.zeros(8, 4), torch.full((8, 4), 0.01))
        >>> q.rsample(10).shape, q.kl().shape
        (torch.Size([10, 8, 4]), torch.Size([8, 4]))
    """

    loc: Tensor
    beta: Tensor
    alpha: float = 1.0
    prior: base.Prior | None = None  # a default object would not compile
    circular: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", require_alpha(self.alpha))
        self._check("beta")

    @property
    def df(self) -> float:
        """Degrees of freedom, 2 alpha."""
        return 2 * self.alpha

    @property
    def scale(self) -> Tensor:
        """The scale of the Student-t, sqrt(beta / alpha), with the shape of beta."""
        return torch.sqrt(self.beta / self.alpha)

    @property
    def _shared(self) -> bool:
        """Whether several parameters have one precision."""
        return self.beta.shape != self.loc.shape

    def from_noise(self, noise: Tensor) -> Tensor:
        """Samples (S, ..., D) from noise (S, ..., D); 0.5 everywhere gives loc."""
        t = _joint_quantile(noise, self.df) if self._shared else student_t_quantile(noise, self.df)
        return wrap(torch.addcmul(self.loc, self.scale, t.to(self.loc.dtype)), self.circular)

    def kl(
        self, prior: base.Prior | float | None = None, beta0: float | None = None, *, alpha0: float | None = None
    ) -> Tensor:
        """The divergence from a prior: between precisions for a `GammaPrior`, with the shape of beta.

        Args:
            prior: its own when None. A number is taken for `alpha0`.
            beta0: with `alpha0`, short for `GammaPrior(alpha0, beta0)`.
            alpha0: as above; each is 1 where only the other is given.
        """
        if isinstance(prior, (int, float)):
            prior, alpha0 = None, prior
        return (base.chosen_prior(prior, alpha0, beta0) or self.prior or GammaPrior()).kl(self)

    @property
    def mean(self) -> Tensor:
        """Loc, (..., D); NaN for alpha up to 1/2, where there is no mean."""
        return self.mode if self.alpha > 0.5 else torch.full_like(self.loc, torch.nan)

    @property
    def variance(self) -> Tensor:
        """Beta / (alpha - 1), (..., D); infinite for alpha up to 1, NaN up to 1/2."""
        if self.alpha > 1:
            return (self.beta / (self.alpha - 1)).expand_as(self.loc)
        return torch.full_like(self.loc, torch.inf if self.alpha > 0.5 else torch.nan)

    @property
    def entropy(self) -> Tensor:
        """In nats, (..., D); with one precision for all, an equal share of the joint entropy."""
        count = self.loc.shape[-1] if self._shared else 1
        half, more = self.df / 2, (self.df + count) / 2
        a, b = (torch.full((), v, dtype=torch.float64, device=self.loc.device) for v in (half, more))
        joint = count / 2 * math.log(self.df * math.pi) + torch.lgamma(a) - torch.lgamma(b)
        joint = joint + more * (torch.digamma(b) - torch.digamma(a))
        return (torch.log(self.scale) + (joint / count).to(self.loc.dtype)).expand_as(self.loc)

    def quantile(self, probability: float | Tensor) -> Tensor:
        """The value that each parameter stays below with this probability, (..., D).

        Args:
            probability: in (0, 1), a number or a tensor that broadcasts with (..., D); read no closer than 2**-24 to
                either end.
        """
        u = base.checked_probability(probability, self.loc)
        return self.loc + self.scale * student_t_quantile(u, self.df).to(self.loc.dtype)

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log-density of each parameter, (..., D) for theta (..., D); add over D for the joint density.

        With one precision for all it is the density of each parameter given those before it. Angles have the density
        of the circle: that of all whole turns added up.
        """
        if not isinstance(theta, Tensor) or theta.shape[-1:] != self.loc.shape[-1:]:
            shape = tuple(theta.shape) if isinstance(theta, Tensor) else repr(theta)
            raise ValueError(f"theta must be a tensor (..., {self.loc.shape[-1]}) as loc is, got {shape}")
        difference = wrap(theta - self.loc, self.circular)
        if self._shared:
            return self._joint_log_prob(difference)
        line = _log_density(difference / self.scale, self.df) - torch.log(self.scale)
        if not any(self.circular):
            return line
        scale = self.scale.expand_as(line)
        return by_kind(line, self.circular, self._log_prob_of_angles, difference.expand_as(line), scale)

    def _log_prob_of_angles(self, line: Tensor, difference: Tensor, scale: Tensor) -> Tensor:
        tail = _tail_probability(REACH / scale, self.df) / math.pi
        return sum_over_turns(lambda d: _log_density(d / scale, self.df) - torch.log(scale), difference, tail)

    def _joint_log_prob(self, difference: Tensor) -> Tensor:
        """With one precision for all: angles are not independent, so whole turns are added up in the joint density."""
        if any(self.circular):
            shifts = turns(self.circular, difference)
            difference = difference + shifts.reshape(-1, *[1] * (difference.dim() - 1), difference.shape[-1])
        z = difference / self.scale
        parts, before = [], torch.zeros_like(z[..., 0])
        for d in range(z.shape[-1]):
            width = _width(before, self.df, d)
            parts.append(_log_density(z[..., d] / width, self.df + d) - torch.log(width))
            before = before + z[..., d].square()
        each = torch.stack(parts, dim=-1)
        if any(self.circular):
            joint = each.sum(-1)
            more = torch.logsumexp(joint, dim=0) - joint[0]
            each = each[0] + more[..., None] / each.shape[-1]
        return each - torch.log(self.scale)


def _joint_quantile(u: Tensor, df: float) -> Tensor:
    """Standard Student-t variables that share their precision, (..., D), from uniform noise (..., D).

    Each, given those before it, is Student-t again, with one more degree of freedom for each of them, and the wider the
    further out they lie.
    """
    drawn: list[Tensor] = []
    before = torch.zeros_like(u[..., 0])
    for d in range(u.shape[-1]):
        t = _width(before, df, d) * student_t_quantile(u[..., d], df + d)
        drawn.append(t)
        before = before + t * t
    return torch.stack(drawn, dim=-1)


def _width(before: Tensor, df: float, count: int) -> Tensor:
    """The scale of a variable given `count` others with its precision, whose squares add up to `before`."""
    return torch.sqrt((df + before) / (df + count))


def _log_density(z: Tensor, df: float) -> Tensor:
    """Of the standard Student-t."""
    return _log_constant(df) - (df + 1) / 2 * torch.log1p(z * z / df)


def _tail_probability(t: Tensor, df: float) -> Tensor:
    """P(T > t) of the standard Student-t for t > 0: by Gauss-Legendre quadrature in v = t / u, u from t to infinity."""
    total = torch.zeros_like(t)
    for node, weight in _NODES:
        v = (node + 1) / 2
        log_value = torch.log(t) + (df - 1) * math.log(v) - (df + 1) / 2 * torch.log(v * v + t * t / df)
        total = total + weight / 2 * torch.exp(log_value + _log_constant(df))
    return total


def _log_constant(df: float) -> float:
    return math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)


@final
@dataclass(frozen=True)
class StudentT(base.PriorFamily):
    """The family of Student-t posteriors; the paper's is `StudentT(alpha=1.0, var_init=-5.0)`.

    Args:
        alpha: shape of the Gamma over the precision; samples have 2 alpha degrees of freedom. The larger, the lighter
            the tails.
        precision: "per-parameter", as in the authors' experiments, or "per-input", one for all parameters of an input,
            as in the paper's text.
        var_init: where the variance head starts, before softplus, which gives beta.
        prior: by default the paper's, Gamma(1, 1) over the precision. A `NormalPrior` needs an alpha above 1.

    Example:
        >>> layer = pstn.SpatialTransformer(pstn.Similarity(), nn.Flatten(), size=(28, 28), posterior=StudentT(2.0))
        >>> layer(torch.rand(2, 1, 28, 28), samples=10).posterior.df
        4.0
    """

    alpha: float = ALPHA
    precision: PrecisionKind = "per-parameter"
    var_init: float = VAR_INIT
    prior: base.Prior = GammaPrior()

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", require_alpha(self.alpha))
        require_choice("precision", self.precision, ("per-parameter", "per-input"))
        object.__setattr__(self, "var_init", require_finite_number("var_init", self.var_init))
        if isinstance(self.prior, NormalPrior) and self.alpha <= 1:
            raise ValueError(f"alpha must be above 1 with a NormalPrior, got {self.alpha}: the KL is infinite")

    def starts(self, transform: Transform) -> Mapping[str, Tensor]:
        """Two heads: "mean" (D,), and "variance" (D,), or (1,) for one precision per input."""
        precisions = 1 if self.precision == "per-input" else transform.dim
        return {"mean": transform.initial(), "variance": torch.full((precisions,), self.var_init)}

    def build(self, transform: Transform, numbers: Mapping[str, Tensor]) -> Posterior:
        """Student-t around the mean, with softplus of the variance head as beta."""
        beta = F.softplus(numbers["variance"]) + _MIN_BETA
        prior = self.built_prior(transform, numbers)
        return Posterior(numbers["mean"], beta, self.alpha, prior, transform.circular)


def student_t_quantile(u: Tensor, df: float) -> Tensor:
    """The value that a standard Student-t variable with `df` degrees of freedom stays below with probability `u`.

    Two degrees of freedom, the paper's choice, have a closed form. Any other goes through a table of cubic Hermite
    pieces made once in float64, with an error below 1e-7 relative to 1 + |t| for up to a million degrees of freedom, if
    `u` is in float64; float32 rounds to 5e-6 at half a degree, to 1e-6 at three. No gradient with respect to `df`.

    Args:
        u: (...), probabilities; read within 2**-24 of 0 and 1.
        df: degrees of freedom, above 0.

    Returns:
        (...), at least float32.
    """
    u, shape = uniform_bounds(u), u.shape
    if df == 2:
        return (2 * u - 1) / torch.sqrt(2 * u * (1 - u))
    if torch.compiler.is_compiling():
        # With dynamic=True a float is a symbol; the length of a range makes the compiler settle on its value.
        df = len(range(int(df * 2**40))) / 2**40
        u = u.flatten()  # one long loop, also where the last axis is short and the memory has gaps
    knots, slopes = getattr(_TABLES, _reader_of(df))(str(u.device)).to(u.dtype)
    tail = torch.minimum(u, 1 - u)
    step = _REACH / _PIECES
    depth = (-torch.log(2 * tail)).clamp(0.0, _REACH) / step
    index = depth.floor().clamp(max=_PIECES - 1.0)
    at = index.long()
    f, g = depth - index, 1 - (depth - index)
    height = knots[at] * (1 + 2 * f) * g**2 + knots[at + 1] * (1 + 2 * g) * f**2
    height = height + step * (slopes[at] * f * g**2 - slopes[at + 1] * g * f**2)
    return torch.where(u < 0.5, -torch.sinh(height), torch.sinh(height)).reshape(shape)


class _Tables:
    """A function for each number of degrees of freedom: device -> its table as a tensor (2, pieces + 1).

    The table is made once for each device: a graph under capture takes no host copies. The compiler takes what such a
    function returns for a constant, and knows constants by the name of the function that made them: so each has its
    own, with a name of its own.
    """


_TABLES = _Tables()


def _reader_of(df: float) -> str:
    """The name of the function that reads the table of `df`, which is made where there is none."""
    name = f"table_{float(df).hex().translate(_PLAIN)}"
    if not hasattr(_TABLES, name):
        made: dict[str, Tensor] = {}

        def read(device: str) -> Tensor:
            if device not in made:
                table = torch.from_numpy(np.stack(_table(df))).to(device)
                if type(table) is not Tensor:
                    return table  # an exporter's stand-in, which must not outlive the export
                made[device] = table
            return made[device]

        read.__code__ = read.__code__.replace(co_name=name)
        # The compiler must not look into a cache, nor into numpy. This is what torch.compiler.assume_constant_result
        # sets; the decorator itself would import the compiler, seconds at every start.
        read._dynamo_marked_constant = True  # type: ignore[attr-defined]
        setattr(_TABLES, name, read)
    return name


_PLAIN = str.maketrans({".": "_", "+": "p", "-": "m"})
_reader_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=32)
def _table(df: float) -> tuple[_Array, _Array]:
    """Heights asinh(t) and their slopes at evenly spaced depths -log(2 * tail probability).

    In these coordinates the quantile is smooth from the middle to the far tail, whatever the degrees of freedom.
    Starts from a coarse forward table and polishes with Newton's method.
    """
    depth = np.linspace(0.0, _REACH, _PIECES + 1)
    # The heaviest tail behaves as t ~ tail**(-1/df): far enough for any depth on the table.
    scan = np.linspace(0.0, _REACH / min(df, 1.0) + 4.0, 8192)
    height = np.interp(depth, _depth_and_slope(scan, df)[0], scan)
    for _ in range(6):
        reached, slope = _depth_and_slope(height, df)
        height = height - (reached - depth) / slope
    return height, 1.0 / _depth_and_slope(height, df)[1]


def _depth_and_slope(height: _Array, df: float) -> tuple[_Array, _Array]:
    """-log(2 P(T > sinh(height))) and its derivative with respect to the height."""
    t = np.sinh(height)
    with np.errstate(divide="ignore"):  # far beyond the table's reach the tail underflows to 0, its depth is infinite
        log_tail = np.log(0.5 * _regularised_beta(df / (df + t * t), df / 2))
    log_density = _log_constant(df) - (df + 1) / 2 * np.log1p(t * t / df)
    return -math.log(2.0) - log_tail, np.exp(log_density - log_tail) * np.cosh(height)


def _regularised_beta(x: _Array, a: float, b: float = 0.5) -> _Array:
    """The regularised incomplete beta function I_x(a, b), accurate in the tail x -> 0."""
    direct = x < (a + 1) / (a + b + 2)
    small = np.where(direct, x, 0.0)
    large = np.where(direct, 0.0, 1.0 - x)
    return np.where(direct, _beta_fraction(small, a, b), 1.0 - _beta_fraction(large, b, a))


def _beta_fraction(x: _Array, a: float, b: float) -> _Array:
    """I_x(a, b) by its continued fraction (DLMF 8.17.22), from the inside out."""
    value = np.zeros_like(x)
    for n in range(400, 0, -1):
        m, odd = divmod(n, 2)
        if odd:
            coefficient = -(a + m) * (a + b + m) / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            coefficient = m * (b - m) / ((a + 2 * m - 1) * (a + 2 * m))
        value = coefficient * x / (1.0 + value)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    with np.errstate(divide="ignore"):
        return np.exp(a * np.log(x) + b * np.log1p(-x) - log_beta) / (a * (1.0 + value))
