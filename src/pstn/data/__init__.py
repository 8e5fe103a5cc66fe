"""Data sets: where each one comes from, its checksums, its splits; and ways to bring your own."""

from pstn.data.boxes import Box, Photo, Sign, commonest_classes, isolated, isolated_signs
from pstn.data.check import Finding, check
from pstn.data.digits import Digits, load_digits
from pstn.data.errors import DataError, DataWarning, MissingDataError
from pstn.data.generated import Generated, generate, load_placed_fashion, load_rotated_mnist
from pstn.data.idx import read_idx
from pstn.data.known import KNOWN, Known
from pstn.data.makers import Maker, RandomPlacement, RandomRotation
from pstn.data.mnist import MNIST_MEAN, MNIST_STD, load_mnist, mnist_subset
from pstn.data.mtsd import MTSD_CLASSES, read_mtsd
from pstn.data.own import divide, from_arrays, from_dataset, from_folder, from_npz
from pstn.data.places import cache_folder, data_folder
from pstn.data.registry import get, load
from pstn.data.series import RawSeries, stack_series
from pstn.data.series_files import read_series
from pstn.data.sheet import contact_sheet
from pstn.data.signs import IMAGENET_MEAN, IMAGENET_STD, load_mtsd, load_yolo, make_signs
from pstn.data.split import Split, Splits, batches
from pstn.data.subsets import balanced_indices, read_indices, stratified_indices
from pstn.data.ucr import load_italy_power_demand, load_series_file, load_ucr
from pstn.data.yolo import read_yolo

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "KNOWN",
    "MNIST_MEAN",
    "MNIST_STD",
    "MTSD_CLASSES",
    "Box",
    "DataError",
    "DataWarning",
    "Digits",
    "Finding",
    "Generated",
    "Known",
    "Maker",
    "MissingDataError",
    "Photo",
    "RandomPlacement",
    "RandomRotation",
    "RawSeries",
    "Sign",
    "Split",
    "Splits",
    "balanced_indices",
    "batches",
    "cache_folder",
    "check",
    "commonest_classes",
    "contact_sheet",
    "data_folder",
    "divide",
    "from_arrays",
    "from_dataset",
    "from_folder",
    "from_npz",
    "generate",
    "get",
    "isolated",
    "isolated_signs",
    "load",
    "load_digits",
    "load_italy_power_demand",
    "load_mnist",
    "load_mtsd",
    "load_placed_fashion",
    "load_rotated_mnist",
    "load_series_file",
    "load_ucr",
    "load_yolo",
    "make_signs",
    "mnist_subset",
    "read_idx",
    "read_indices",
    "read_mtsd",
    "read_series",
    "read_yolo",
    "stack_series",
    "stratified_indices",
]
