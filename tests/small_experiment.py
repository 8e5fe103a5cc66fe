"""An experiment of seconds, for tests of whatever runs experiments."""

from __future__ import annotations

from pstn.experiments import Experiment, RunContext, Training, same
from pstn.experiments.mnist_subsets import subset
from pstn.nn import mnist_cnn
from pstn.training import Recipe

SMALL = Training("small", "CNN", "MNIST30", subset(30), same(mnist_cnn), Recipe(epochs=2, batch_size=8))


def experiment(*groups, name="small", **options):
    return Experiment(name, "a small one", groups=groups, **options)


def quiet(folder, **options):
    return RunContext(folder, quick=True, **{"log": lambda text: None, **options})
