"""The Student-t distribution: its quantiles in torch, closed form for two degrees of freedom, a table for any other."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pstn.noise import uniform_bounds

__all__ = ["normal_quantile", "student_t_quantile"]

_Array = npt.NDArray[np.float64]

# The table runs to tail probability exp(-_REACH)/2, below the margin, in this many cubic pieces.
_REACH = 18.0
_PIECES = 1024


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


# Wichura's algorithm AS 241 (1988), PPND16: numerators and denominators of rational functions, lowest power first. The
# first pair is for the middle, the second for the tails down to a probability of 1e-11, far below the noise's margin.
_MIDDLE = (
    (3.3871328727963666080, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
     4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
     2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
)  # fmt: skip
_TAILS = (
    (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504,
     1.27045825245236838258, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187, 1.67638483018380384940, 6.89767334985100004550e-1,
     1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
)  # fmt: skip


def normal_quantile(u: Tensor) -> Tensor:
    """The value that a standard normal variable stays below with probability `u`.

    As `torch.special.ndtri`, in plain arithmetic: it exports to ONNX too.

    Args:
        u: (...), probabilities; read within 2**-24 of 0 and 1.

    Returns:
        (...), at least float32.

    Example:
        >>> normal_quantile(torch.tensor([0.5, 0.975]))
        tensor([0.0000, 1.9600])
    """
    u = uniform_bounds(u)
    q = u - 0.5
    middle = q * _ratio(0.180625 - q * q, *_MIDDLE)
    # The argument of the other branch is kept where its gradient is finite: torch.where passes both gradients on.
    tail = torch.where(q.abs() <= 0.425, torch.full_like(u, 0.05), torch.minimum(u, 1 - u))
    outside = torch.sign(q) * _ratio(torch.sqrt(-torch.log(tail)) - 1.6, *_TAILS)
    return torch.where(q.abs() <= 0.425, middle, outside)


def _ratio(x: Tensor, above: tuple[float, ...], below: tuple[float, ...]) -> Tensor:
    numerator, denominator = torch.full_like(x, above[-1]), torch.full_like(x, below[-1])
    for a, b in zip(above[-2::-1], below[-2::-1], strict=True):
        numerator, denominator = numerator * x + a, denominator * x + b
    return numerator / denominator


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
    log_density = (
        math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
        - (df + 1) / 2 * np.log1p(t * t / df)
    )  # fmt: skip
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
