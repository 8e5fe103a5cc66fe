"""Data sets: where each one comes from, its checksums, its splits; and ways to bring your own."""

from __future__ import annotations

from pstn._deprecation import old_names
from pstn.data.files import DataError, DataWarning, MissingDataError, cache_folder, data_folder
from pstn.framing import Framing

from pstn.data.augment import (  # isort: skip
    Cropped, Generated, RandomAffine, RandomCPAB, RandomCrop, RandomPlacement, RandomRotation, RandomSimilarity,
    RandomTransform, RandomTranslation, generate, make_random_transform,
)  # fmt: skip
from pstn.data.images import (  # isort: skip
    MNIST_MEAN, MNIST_STD, Digits, contact_sheet, from_folder, load_digits, load_mnist, load_placed_fashion,
    load_rotated_mnist, mnist_subset, read_idx,
)  # fmt: skip
from pstn.data.photos import (  # isort: skip
    IMAGENET_MEAN, IMAGENET_STD, MTSD_CLASSES, Box, Photo, Sign, commonest_classes, isolated, isolated_signs,
    load_mtsd, load_yolo, make_signs, read_mtsd, read_yolo,
)  # fmt: skip
from pstn.data.registry import KNOWN, Finding, Known, check, get, load
from pstn.data.series import RawSeries, load_italy_power_demand, load_series_file, load_ucr, read_series, stack_series

from pstn.data.split import (  # isort: skip
    Split, Splits, balanced_indices, batches, divide, from_arrays, from_dataset, from_npz, read_indices,
    stratified_indices,
)  # fmt: skip

__all__ = [
    "IMAGENET_MEAN", "IMAGENET_STD", "KNOWN", "MNIST_MEAN", "MNIST_STD", "MTSD_CLASSES", "Box", "Cropped", "DataError",
    "DataWarning", "Digits", "Finding", "Framing", "Generated", "Known", "MissingDataError", "Photo", "RandomAffine",
    "RandomCPAB", "RandomCrop", "RandomPlacement", "RandomRotation", "RandomSimilarity", "RandomTransform",
    "RandomTranslation", "RawSeries", "Sign", "Split", "Splits", "balanced_indices", "batches", "cache_folder", "check",
    "commonest_classes", "contact_sheet", "data_folder", "divide", "from_arrays", "from_dataset", "from_folder",
    "from_npz", "generate", "get", "isolated", "isolated_signs", "load", "load_digits", "load_italy_power_demand",
    "load_mnist", "load_mtsd", "load_placed_fashion", "load_rotated_mnist", "load_series_file", "load_ucr", "load_yolo",
    "make_random_transform", "make_signs", "mnist_subset", "read_idx", "read_indices", "read_mtsd", "read_series",
    "read_yolo", "stack_series", "stratified_indices",
]  # fmt: skip


__getattr__ = old_names(__name__, {"Maker": "RandomTransform"})
