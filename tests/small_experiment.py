"""An experiment of seconds, for tests of whatever runs experiments."""

from __future__ import annotations

from pstn.experiments import Lab
from pstn.experiments.mnist_subsets import subset
from pstn.experiments.runner import Experiment, Training, same
from pstn.nn import mnist_cnn
from pstn.training import Recipe

SMALL = Training("small", "CNN", "MNIST30", subset(30), same(mnist_cnn), Recipe(epochs=2, batch_size=8))


def experiment(*groups):
    return Experiment("small", "a small one", needs=(), groups=groups)


def quiet(folder, **options):
    return Lab(folder, quick=True, say=lambda text: None, **options)
