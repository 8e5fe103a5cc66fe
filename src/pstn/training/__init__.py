"""Training: many small models at once, or one large one with Lightning; runs that survive."""

from pstn.training.augment import Augmentation, RandomPlacement, RandomRotation
from pstn.training.population import Failure, Population, Progress
from pstn.training.recipe import Member, Recipe, make_members
from pstn.training.watchdog import collapses

__all__ = [
    "Augmentation",
    "Failure",
    "Member",
    "Population",
    "Progress",
    "RandomPlacement",
    "RandomRotation",
    "Recipe",
    "collapses",
    "make_members",
]
