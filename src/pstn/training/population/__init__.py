"""Many models of one shape, trained together."""

from pstn.training.population.recipe import Augmentation, Member, RandomWarp, Recipe, make_members, one_cycle
from pstn.training.population.trainer import Failure, Population, Progress

__all__ = [
    "Augmentation",
    "Failure",
    "Member",
    "Population",
    "Progress",
    "RandomWarp",
    "Recipe",
    "make_members",
    "one_cycle",
]
