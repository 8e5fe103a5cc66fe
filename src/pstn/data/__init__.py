"""Data sets."""

from pstn.data.digits import Digits, load_digits

__all__ = ["Digits", "load_digits"]
