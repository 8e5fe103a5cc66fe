"""Where `pstn.transforms.read_scale` was in 0.1.0."""

from pstn._deprecation import old_names

__getattr__ = old_names(__name__, {"read_scale": "pstn.transforms.read_scale"})
