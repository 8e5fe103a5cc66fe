"""What training does unless it is told otherwise: every default, in one place, for every entry point.

`pstn.fit`, populations, Lightning, the estimators and the command line all take their defaults from here. The
experiments of the paper state all of their settings themselves, so that a default that changes changes none of them.
The localizer's factor, S in training, alpha, the start of the variance and the rule for w are those of one of 24
trials: the one that predicted best over two sets of images, from 30 to 10,000 of each, and three sets of series, of
the twelve whose posterior is each input's own. See the experiment `little-data`, whose search chose it on validation
data. Its weight decay and its number of steps are not the defaults here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LR = 1e-3
"""Adam's learning rate."""
LOCALIZER_FACTOR = 0.008
"""What the learning rate is multiplied with for the localizer and its heads, where a classifier learns with them."""
FROZEN_FACTOR = 0.1
"""The same where nothing but them learns."""
WEIGHT_DECAY = 0.0
"""Adam's L2 term."""
TRAIN_SAMPLES = 4
"""S in training."""
PRETRAINED_SAMPLES = 1
"""The same where a pretrained network classifies: each costs much, and four gained nothing on crops of
street signs."""
TEST_SAMPLES = 10
"""S in a prediction."""
IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Means of ImageNet's red, green and blue, from 0 to 1."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Their standard deviations."""
RESTARTS = 2
"""How often a model that fails is trained again, with more care."""
ALPHA = 2.0
"""Of the Student-t posterior, which has 2 alpha degrees of freedom."""
VAR_INIT = -4.3
"""Where the variance head starts, before softplus: samples of a Student-t then have a scale of 0.082."""
PRETRAINED_VAR_INITS = (VAR_INIT, -9.0)
"""The choice where a pretrained network classifies: scales of 0.082 and 0.008. A few dozen steps hardly change it."""

# Examples to reckon with where their number is not known.
_UNKNOWN = 1000
_SMALLEST_BATCH, _LARGEST_BATCH, _BATCHES = 8, 64, 12
# Pixels of the images of a batch, which keeps the memory of a step within bounds, and the fewest large images in one.
_BATCH_PIXELS, _FEWEST_LARGE = 1 << 21, 2
# The optimiser's steps to aim for, and the bounds on the epochs which that gives.
_STEPS, _FEWEST_EPOCHS, _MOST_EPOCHS = 1500, 20, 300
# The same for what is pretrained, which needs little more.
_PRETRAINED_STEPS, _FEWEST_PRETRAINED = 50, 5


def default_batch_size(examples: int | None, size: Sequence[int] = ()) -> int:
    """Examples in a batch: a twelfth of all, from 8 to 64, and of large images two million pixels, but at least two.

    Args:
        examples: how many there are to train on; None where that is not known.
        size: their spatial size, such as (H, W); empty where that is not known.

    Example:
        >>> [default_batch_size(n) for n in (5, 100, 300, 60_000)]
        [5, 8, 25, 64]
        >>> [default_batch_size(60_000, (side, side)) for side in (128, 224, 512, 2048)]
        [64, 41, 8, 2]
    """
    examples = _UNKNOWN if examples is None else max(1, examples)
    most = max(_BATCH_PIXELS // math.prod(size), _FEWEST_LARGE)
    return min(max(examples // _BATCHES, _SMALLEST_BATCH), _LARGEST_BATCH, most, examples)


def default_epochs(examples: int | None, batch_size: int, *, pretrained: bool = False) -> int:
    """Passes over the data: as many as make 1,500 steps, from 20 to 300; 50 steps, and at least 5, if pretrained.

    Args:
        examples: how many there are to train on; None where that is not known.
        batch_size: examples in a batch.
        pretrained: whether images are read by a pretrained network.

    Example:
        >>> [default_epochs(n, default_batch_size(n)) for n in (30, 100, 60_000)]
        [300, 120, 20]
    """
    examples = _UNKNOWN if examples is None else max(1, examples)
    if pretrained:
        return max(_FEWEST_PRETRAINED, _PRETRAINED_STEPS * batch_size // examples)
    return min(max(_STEPS * batch_size // examples, _FEWEST_EPOCHS), _MOST_EPOCHS)


def default_kl_weight(examples: int | None) -> float:
    """The weight w of the KL term: 1.5e-4 (100 / N)^0.75 for N examples, and at most 1e-3.

    Args:
        examples: how many there are to train on; None where that is not known.

    Example:
        >>> [f"{default_kl_weight(n):.1e}" for n in (30, 1000, 10_000)]
        ['3.7e-04', '2.7e-05', '4.7e-06']
    """
    examples = _UNKNOWN if examples is None else max(1, examples)
    return float(min(1e-3, 1.5e-4 * (100 / examples) ** 0.75))
