"""The spatial transformer layer: localize, sample, warp."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree

from pstn import _checks
from pstn.distributions import Point, PosteriorFamily, StudentT, ThetaDistribution
from pstn.distributions.student_t import PrecisionKind
from pstn.noise import SAMPLING_METHODS, Samples, SamplingMethod
from pstn.transforms import Transform
from pstn.transforms.coordinates import base_grid
from pstn.warping import Fill, InterpolationMode, PaddingMode, require_modes, warp

__all__ = ["SpatialTransformer", "TransformerOutput", "Unwarped"]


class TransformerOutput(NamedTuple):
    """What a spatial transformer layer returns."""

    warped: Tensor
    """(S, B, C, *size), the input under each sampled transformation."""
    theta: Tensor
    """(S, B, D), the samples."""
    posterior: ThetaDistribution
    """The distribution they were drawn from, one per input."""
    log_weights: Tensor | None = None
    """(S, B), the logarithms of the samples' weights."""


class Unwarped(NamedTuple):
    """Maps or boxes in the input's frame, averaged over the samples."""

    mean: Tensor
    """(B, K, *size), over the samples that see a pixel; or boxes (B, N, 2 * ndim)."""
    spread: Tensor
    """Their standard deviation over the samples, of the same shape."""
    seen: Tensor
    """(B, 1, *size), the weight of the samples that see a pixel, from 0 to 1; for boxes 1, (B, 1, 1)."""


@final
class SpatialTransformer(nn.Module):
    """A layer that looks at its input, predicts a distribution over transformations, and warps under samples of it.

    It goes anywhere in a network: on images, series and volumes, on feature maps deep inside, and several in a row
    (`out.warped.flatten(0, 1)` makes the samples a batch for the next module).

    Convention:
        Grids map output to input coordinates, in [-1, 1] with `align_corners=False`, x first. Samples lead:
        (S, B, ...).

    Args:
        transform: the family of transformations.
        localizer: a module x (B, C, *in) -> features (B, F).
        size: spatial size of the output; that of the input when None.
        features: F. When not given it is read off the localizer where that can be (an attribute `features`, a
            Sequential that ends in a Linear), or found at the first forward pass, without drawing random numbers. In
            that case make an optimiser whenever you like, but run one batch before you count parameters, compile,
            export or wrap in DDP; or pass F.
        posterior: the family of distributions over theta, such as `pstn.StudentT(alpha=2.0)`, `pstn.Normal()`,
            `pstn.Point()` or one of your own; the paper's, `pstn.StudentT()`, when None.
        probabilistic: False is short for `posterior=pstn.Point()`, the classic spatial transformer: S = 1, a KL of 0.
        alpha: short for `posterior=pstn.StudentT(alpha=...)`.
        var_init: likewise.
        precision: likewise.
        hidden: width of a hidden layer in each head; None for one linear layer.
        localizer_size: spatial size at which the localizer reads the input (averaged down), e.g. to look at an image
            of 1024² through 64²; None reads the input as it is.
        sampling: "iid", "antithetic" or "sobol".
        fill: what lies outside the input, one number or one per channel. After normalisation black is not 0.
        mode: "bilinear", "nearest" or "bicubic".
        padding_mode: "zeros" (reads `fill`), "border" or "reflection".
        masked: whether the last channel of series says where they end: 1 up to there, 0 behind it. Warps then map what
            is before that end onto itself, and nothing behind it is read; with padding_mode="border".

    Example:
        >>> localizer = nn.Sequential(nn.Conv2d(1, 8, 5, stride=4), nn.ReLU(), nn.Flatten())
        >>> layer = SpatialTransformer(pstn.Similarity(), localizer, size=(28, 28))
        >>> out = layer(torch.rand(2, 1, 28, 28), samples=10)
        >>> out.warped.shape, out.theta.shape
        (torch.Size([10, 2, 1, 28, 28]), torch.Size([10, 2, 4]))
    """

    fill: Tensor | float
    mean_head: Head
    variance_head: Head

    def __init__(
        self,
        transform: Transform,
        localizer: nn.Module,
        size: int | Sequence[int] | None = None,
        *,
        features: int | None = None,
        posterior: PosteriorFamily | None = None,
        probabilistic: bool = True,
        alpha: float | None = None,
        var_init: float | None = None,
        precision: PrecisionKind | None = None,
        hidden: int | None = None,
        localizer_size: int | Sequence[int] | None = None,
        sampling: SamplingMethod = "iid",
        fill: Fill = 0.0,
        mode: InterpolationMode = "bilinear",
        padding_mode: PaddingMode = "zeros",
        masked: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(transform, Transform):
            raise TypeError(f"transform must be a pstn.Transform such as pstn.Similarity(), got {transform!r}")
        if not isinstance(localizer, nn.Module):
            raise TypeError(f"localizer must be a torch.nn.Module, got {type(localizer).__name__}")
        fill = require_modes(mode, padding_mode, fill, transform.ndim)
        _checks.require_choice("sampling", sampling, SAMPLING_METHODS)
        if masked and not (transform.ndim == 1 and padding_mode == "border" and size is localizer_size is None):
            raise ValueError(f"masked must be False but for series of any size and padding_mode='border', got {size}")
        self.transform, self.localizer, self.masked = transform, localizer, masked
        self.size = None if size is None else _checks.require_size("size", size, transform.ndim)
        self.localizer_size = (
            None if localizer_size is None else _checks.require_size("localizer_size", localizer_size, transform.ndim)
        )
        self.posterior = _family(posterior, probabilistic, alpha=alpha, var_init=var_init, precision=precision)
        self.sampling, self.mode, self.padding_mode, self.hidden = sampling, mode, padding_mode, hidden
        if isinstance(fill, (int, float)):
            self.fill = float(fill)
        else:
            self.register_buffer("fill", torch.as_tensor(fill, dtype=torch.float32), persistent=False)
        width = _checks.require_positive_int("features", features) if features is not None else feature_width(localizer)
        starts = self.posterior.starts(transform)
        self.heads = tuple(name for name, start in starts.items() if len(start))
        self._empty_heads = tuple(name for name in starts if name not in self.heads)
        for name in self.heads:
            self.add_module(f"{name}_head", Head(width, starts[name], hidden))
        self.shared = _Shared(self.posterior.shared(transform))
        self.noise_width = _noise_width(self.posterior, transform)

    @property
    def features(self) -> int | None:
        """F, how many features the heads read; None while that is unknown, and for a family without heads."""
        return self.get_submodule(f"{self.heads[0]}_head").width if self.heads else None  # type: ignore[return-value]

    @property
    def probabilistic(self) -> bool:
        """Whether samples differ: not those of a point posterior."""
        return self.noise_width > 0

    def forward(
        self,
        x: Tensor,
        samples: Samples = 1,
        *,
        source: Tensor | None = None,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> TransformerOutput:
        """Warp `x`, or `source` if given, under samples of the transformation predicted from `x`.

        Args:
            x: (B, C, *in), what the localizer looks at.
            samples: S, or "modes" for one sample at the centre of each of the posterior's modes.
            source: (B, C', *source), what is warped instead of `x`: the same scene at a higher resolution, or a mask.
            noise: (S, B, `noise_width`) uniform noise in (0, 1) to use instead of drawing any.
            generator: where the randomness comes from.
        """
        posterior = self.localize(x)
        theta, log_weights = posterior.weighted_sample(samples, self.sampling, noise=noise, generator=generator)
        warped = self._warp(x, theta) if source is None else self.warp(source, theta)  # x has been checked
        return TransformerOutput(warped, theta, posterior, log_weights)

    def localize(self, x: Tensor) -> ThetaDistribution:
        """The distribution over theta for each input.

        Args:
            x: (B, C, *in).
        """
        require_input("x", x, self.transform.ndim)
        numbers = {name: x.new_empty(x.shape[0], 0) for name in self._empty_heads}
        if self.heads:
            reading = x if self.localizer_size is None else _average_to(x, self.localizer_size)
            role = "localizer" if self.localizer_size is None else f"localizer (it reads x at {self.localizer_size})"
            features = call_on(role, self.localizer, reading)
            self._check_features(features, x)
            numbers |= {name: getattr(self, f"{name}_head")(features) for name in self.heads}
        return self.posterior.build(self.transform, {**numbers, **self.shared()})

    def warp(self, source: Tensor, theta: Tensor) -> Tensor:
        """Warp `source` under the samples `theta`, with this layer's output size, fill and interpolation.

        Args:
            source: (B, C, *source).
            theta: (S, B, D).

        Returns:
            (S, B, C, *size).
        """
        require_input("source", source, self.transform.ndim)
        if theta.dim() != 3 or theta.shape[1] != source.shape[0]:
            shapes = f"{tuple(theta.shape)}, (S, B, D), got {tuple(source.shape)}"
            raise ValueError(f"source must have the batch size of theta {shapes}")
        return self._warp(source, theta)

    def _warp(self, source: Tensor, theta: Tensor) -> Tensor:
        if self.masked:
            grid = self.real_grid(theta, source)
            return warp(source, grid, mode=self.mode, padding_mode="border") * source[:, -1:]
        # The samples of one input lie side by side in memory, as the warp reads them: it then copies no coordinates.
        grid = self.grid(theta.transpose(0, 1), source.shape[2:]).transpose(0, 1)
        return warp(source, grid, fill=self.fill, mode=self.mode, padding_mode=self.padding_mode)

    def unwarp(
        self,
        output: Tensor,
        theta: Tensor,
        size: int | Sequence[int] | None = None,
        *,
        boxes: bool = False,
        log_weights: Tensor | None = None,
        fill: float = 0.0,
        mode: InterpolationMode = "bilinear",
    ) -> Unwarped:
        """Bring what a network made of warped samples back to the input's frame, averaged over the samples.

        A family needs the inverse of its map on points (`apply_inverse`), not a theta for it: a crop of fixed size and
        a `Compose` will do. Boxes need no inverse.

        Convention:
            As for `warp`: coordinates in [-1, 1] with `align_corners=False`, x first.

        Args:
            output: maps (S, B, K, *out), such as masks or heat maps; or with `boxes=True` boxes (S, B, N, 2 * ndim),
                lower corner then upper corner, in [-1, 1] of the warped sample.
            theta: (S, B, D), the samples that it was made under.
            size: spatial size of the input; that of the maps when None, which a layer with a `size` does not allow.
            boxes: whether `output` holds boxes; each becomes the smallest box around its corners.
            log_weights: (S, B), as the layer returns them; all alike when None.
            fill: what stands where no sample sees the input.
            mode: "nearest" for labels, which no average makes sense of: use S = 1, or one map for each class.

        Raises:
            ValueError: the family, which is named, cannot be inverted at such a theta.

        Example:
            >>> layer = SpatialTransformer(pstn.Rotation(), nn.Flatten())
            >>> x = torch.rand(2, 1, 20, 30)
            >>> out = layer(x, samples=10)
            >>> back = layer.unwarp(out.warped, out.theta, log_weights=out.log_weights)
            >>> back.mean.shape, back.spread.shape, back.seen.shape
            (torch.Size([2, 1, 20, 30]), torch.Size([2, 1, 20, 30]), torch.Size([2, 1, 20, 30]))
        """
        ndim = self.transform.ndim
        _checks.require_floating("output", output)
        if output.dim() != (4 if boxes else ndim + 3) or (boxes and output.shape[-1] != 2 * ndim) or 0 in output.shape:
            wanted = f"(S, B, N, {2 * ndim}), boxes," if boxes else f"(S, B, K, *size) with {ndim} spatial axes"
            raise ValueError(f"output must have shape {wanted} and not be empty, got {tuple(output.shape)}")
        if theta.dim() != 3 or theta.shape[:2] != output.shape[:2]:
            shapes = f"{tuple(output.shape[:2])}, got {tuple(theta.shape)}"
            raise ValueError(f"theta must have shape (S, B, D) with the S and B of output, {shapes}")
        if log_weights is not None and log_weights.shape != theta.shape[:2]:
            raise ValueError(f"log_weights must have shape {tuple(theta.shape[:2])}, got {tuple(log_weights.shape)}")
        if size is None and (boxes or self.size is not None):
            raise ValueError("size must be given, the spatial size of the input: the output does not say it, got None")
        frame = tuple(output.shape[3:]) if size is None else _checks.require_size("size", size, ndim)
        weights = (theta.new_zeros(theta.shape[:2]) if log_weights is None else log_weights).softmax(0)
        if boxes:
            read = self.transform.unwarp_boxes(theta, output, aspect=frame[::-1])
            seen = weights[..., None, None]
        else:
            grid = self._inverse_grid(theta, frame)
            flat = warp(output.flatten(0, 1), grid.flatten(0, 1), mode=mode, padding_mode="border")
            read = flat.unflatten(0, output.shape[:2])
            inside = (grid.abs() <= 1).all(-1)[:, :, None]
            seen = weights.reshape(*weights.shape, *[1] * (ndim + 1)) * inside
        total = seen.sum(0)
        share = seen / total.clamp_min(torch.finfo(seen.dtype).tiny)
        mean = (share * read).sum(0)
        spread = (share * (read - mean).square()).sum(0).sqrt()
        return Unwarped(torch.where(total > 0, mean, fill).to(output.dtype), spread.to(output.dtype), total)

    def _inverse_grid(self, theta: Tensor, size: tuple[int, ...]) -> Tensor:
        """Where each pixel of an input of this size is in the warped samples, (S, B, *size, ndim)."""
        points = base_grid(size, dtype=torch.float32, device=theta.device).flatten(0, -2)
        try:
            grid = self.transform.apply_inverse(theta, points, aspect=size[::-1])
        except (NotImplementedError, ValueError) as error:
            raise ValueError(f"{self.transform} cannot be inverted, which unwarp needs: {error}") from error
        name = f"the inverse of {self.transform}"
        _checks.require_finite(name, grid, "theta must not collapse the input to a line or a point")
        return grid.unflatten(-2, size) if len(size) > 1 else grid

    def grid(self, theta: Tensor, source_size: Sequence[int]) -> Tensor:
        """The sampling grid for `theta` (..., D) on a source of this spatial size: (..., *size, ndim)."""
        return self.transform.grid(theta, self.size or tuple(source_size), aspect=tuple(source_size)[::-1])

    def real_grid(self, theta: Tensor, source: Tensor) -> Tensor:
        """The sampling grid for series with a mask (B, C + 1, L): the real part is warped as if nothing followed it.

        Args:
            theta: (S, B, D).
            source: whose last channel is 1 up to the end of a series and 0 behind it.

        Returns:
            (S, B, L, 1); behind the end it stays there.
        """
        steps = torch.arange(1, source.shape[-1] + 1, device=source.device)
        length = (steps * (source[:, -1] > 0)).amax(-1, keepdim=True)  # (B, 1)
        points = ((2 * steps - 1) / length - 1).clamp(max=1)
        real = (self.transform.apply(theta, points[..., None].to(theta)) + 1) * length[..., None]
        # Halfway beyond the last step, interpolation would read what follows it.
        return real.clamp(torch.ones_like(real), (2 * length[..., None] - 1).to(real)) / source.shape[-1] - 1

    def _check_features(self, features: Any, x: Tensor) -> None:
        if not isinstance(features, Tensor) or features.dim() != 2 or features.shape[0] != x.shape[0]:
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ValueError(f"localizer must return features of shape ({x.shape[0]}, F), got {shape}: add nn.Flatten")
        width = self.features
        if width is not None and features.shape[1] != width:
            found = f"got {features.shape[1]}: is x of another size, or features= wrong?"
            raise ValueError(f"localizer must return {width} features for the heads of this layer, {found}")

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"size={self.size}, posterior={self.posterior}, sampling={self.sampling!r}"


# `torch.export.save` can then write a program that returns one; torch has no public function for this.
_pytree._register_namedtuple(TransformerOutput, serialized_type_name="pstn.TransformerOutput")


def _family(posterior: PosteriorFamily | None, probabilistic: bool, **short: Any) -> PosteriorFamily:
    """The family that the layer's arguments describe; `short` holds those of the Student-t, None where not given."""
    given = {name: value for name, value in short.items() if value is not None}
    if posterior is None:
        family = StudentT(**given)
        return family if _checks.require_bool("probabilistic", probabilistic) else Point()
    if not isinstance(posterior, PosteriorFamily):
        raise TypeError(f"posterior must be a pstn.PosteriorFamily such as pstn.StudentT(), got {posterior!r}")
    if given or probabilistic is not True:
        name = next(iter(given), "probabilistic")
        raise ValueError(f"{name} must be left out where posterior is given: the family determines it")
    return posterior


def _noise_width(posterior: PosteriorFamily, transform: Transform) -> int:
    """How much noise a sample takes: as the distribution says that the family builds at its start."""
    # On the CPU, whatever the default device: arithmetic on "meta" would load torch's compiler.
    with torch.no_grad(), torch.device("cpu"):
        starts = {name: start[None] for name, start in posterior.starts(transform).items()}
        return posterior.build(transform, {**starts, **posterior.shared(transform)}).noise_width


class _Shared(nn.Module):
    """Tensors that all inputs have in common: parameters where they are learned, else buffers."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = tuple(tensors)
        for name, tensor in tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor, persistent=False)

    def forward(self) -> dict[str, Tensor]:
        """All of them, by name."""
        return {name: getattr(self, name) for name in self.names}


def require_input(name: str, x: Any, ndim: int) -> None:
    """Refuse anything but a finite, non-empty batch (B, C, *size)."""
    _checks.require_floating(name, x)
    if x.dim() != ndim + 2:
        layout = ("length", "height, width", "depth, height, width")[ndim - 1]
        raise ValueError(f"{name} must have shape (batch, channels, {layout}), got {tuple(x.shape)}")
    if 0 in x.shape:
        raise ValueError(f"{name} must not be empty, got {tuple(x.shape)}")
    _checks.require_finite(name, x, "clean or mask missing values before the model sees them")


def _average_to(x: Tensor, size: tuple[int, ...]) -> Tensor:
    pool = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[len(size) - 1]
    return pool(x, size)  # type: ignore[arg-type]  # each wants a tuple of its own length


@final
class Head(nn.Module):
    """A linear layer, or two with a ReLU in between, that returns `start` whatever its input, until it is trained.

    Args:
        features: width F of its input; None if it is to be found at the first forward pass.
        start: (D,), where it starts.
        hidden: width of a hidden layer; None for a single linear layer.
    """

    def __init__(self, features: int | None, start: Tensor, hidden: int | None = None) -> None:
        super().__init__()
        if hidden is not None and features is None:
            raise ValueError("hidden needs the width of the localizer's output: pass features=F")
        if features is None:
            self.last: nn.Linear = _LazyStart(start)
            return
        if hidden is not None:
            self.first = nn.Linear(features, _checks.require_positive_int("hidden", hidden))
            features = hidden
        # A fresh nn.Linear would draw random numbers only to have them overwritten. Not by nn.utils.skip_init, which
        # imports sympy, a second, where a model is made on the meta device to be loaded.
        self.last = nn.Linear(features, start.shape[0], device="meta")
        for name, parameter in self.last.named_parameters():
            empty = torch.empty(parameter.shape, dtype=parameter.dtype, device=start.device)
            setattr(self.last, name, nn.Parameter(empty))
        _start_at(self.last, start)

    @property
    def width(self) -> int | None:
        """F, or None while it is unknown."""
        known = self.first.in_features if hasattr(self, "first") else self.last.in_features
        return known or None

    def forward(self, features: Tensor) -> Tensor:
        """(B, F) -> (B, D) in float32 at least: autocast would leave theta with eight bits."""
        features = features.to(self.last.weight.dtype)
        # On "meta", where shapes alone are worked out, there is no autocast to ask about.
        if features.device.type != "meta" and torch.is_autocast_enabled(features.device.type):
            with torch.autocast(features.device.type, enabled=False):
                out = self._read(features)
        else:
            out = self._read(features)
        return out.to(torch.promote_types(out.dtype, torch.float32))

    def _read(self, features: Tensor) -> Tensor:
        if hasattr(self, "first"):
            features = torch.relu(self.first(features))
        return self.last(features)


class _LazyStart(nn.LazyLinear):
    """A linear layer of yet unknown width that starts with weight 0 and a given bias, drawing no random numbers.

    It turns into a plain `nn.Linear` at the first forward pass. Optimisers may be made before that; counting
    parameters, compiling, exporting and DDP have to wait for it.
    """

    def __init__(self, start: Tensor) -> None:
        with warnings.catch_warnings():
            # torch's warning about every lazy module; the consequences are described above.
            warnings.filterwarnings("ignore", message="Lazy modules are a new feature")
            super().__init__(start.shape[0])
        self.start = start

    def reset_parameters(self) -> None:
        """Start at weight 0 and the given bias, once the width is known."""
        if not self.has_uninitialized_params() and self.in_features != 0:
            _start_at(self, self.start)


def _start_at(linear: nn.Linear, start: Tensor) -> None:
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.copy_(start)


_SHAPE_KEEPING = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.LeakyReLU, nn.ELU, nn.Dropout, nn.Identity, nn.LayerNorm)


def feature_width(localizer: nn.Module) -> int | None:
    """The width of a localizer's output, if that is known without running it."""
    known = getattr(localizer, "features", None)
    if isinstance(known, int) and not isinstance(known, bool):
        return known
    if isinstance(localizer, nn.Linear) and not isinstance(localizer, nn.LazyLinear):
        return localizer.out_features
    if isinstance(localizer, nn.Sequential):
        for module in reversed(localizer):
            if not isinstance(module, _SHAPE_KEEPING):
                return feature_width(module)
    return None


def call_on(role: str, module: nn.Module, x: Tensor) -> Any:
    """`module(x)`; a note on its error says in which module, and what that was given.

    Args:
        role: of the module, for the message.
        module: any module.
        x: its input.
    """
    if torch.compiler.is_compiling():
        return module(x)
    try:
        return module(x)
    except Exception as error:
        error.add_note(f"in the {role}, which was given x (or source) of shape {tuple(x.shape)} and {x.dtype}")
        raise
