"""The name of `pstn.distributions` in 0.1.0."""

from pstn import distributions
from pstn._deprecation import old_names

__getattr__ = old_names(__name__, {name: f"pstn.distributions.{name}" for name in distributions.__all__})
