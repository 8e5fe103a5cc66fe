"""Training: many small models at once, or one large one with Lightning; runs that survive."""

from typing import TYPE_CHECKING, Any

from pstn.training.diagnose import collapses
from pstn.training.population.recipe import Augmentation, Member, RandomWarp, Recipe, make_members, one_cycle
from pstn.training.population.trainer import Failure, Population, Progress
from pstn.training.runs.settings import TrainSettings

if TYPE_CHECKING:
    from pstn.training.lightning import LitData, LitPSTN

__all__ = [
    "Augmentation", "Failure", "LitData", "LitPSTN", "Member", "Population", "Progress", "RandomWarp", "Recipe",
    "TrainSettings", "collapses", "make_members", "one_cycle",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load the Lightning module when it is asked for: Lightning takes seconds to import, and not everybody has it."""
    if name in ("LitData", "LitPSTN"):
        from pstn.training import lightning

        return getattr(lightning, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
