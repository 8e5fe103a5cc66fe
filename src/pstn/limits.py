"""How much an untrusted file or request may ask for: every limit of the package, in one table."""

from __future__ import annotations


class Limit(int):
    """A limit: a whole number that says what it counts.

    Args:
        value: the most that is accepted.
        meaning: what it counts, for the table in SECURITY.md.

    Example:
        >>> IMAGE_PIXELS + 0, IMAGE_PIXELS.meaning
        (89478485, 'pixels of an image file, before it is decoded')
    """

    meaning: str

    def __new__(cls, value: int, meaning: str = "") -> Limit:
        """Make a limit; copies and pickles make one of the value alone, and set the meaning then."""
        made = super().__new__(cls, value)
        made.meaning = meaning
        return made


# Pillow's own limit, above which it warns: a quarter of a gigabyte in colour.
IMAGE_PIXELS = Limit(89_478_485, "pixels of an image file, before it is decoded")
# Some decoders take time or memory by the length of a row, several of them for a few bytes.
IMAGE_SIDE = Limit((1 << 16) - 1, "pixels along each side of an image file")
IMAGE_BYTES = Limit(1 << 30, "bytes of an image file")
IMAGE_READS = Limit(1 << 14, "pieces of which the header of an image file consists")
EXIF_BYTES = Limit(1 << 17, "bytes of the EXIF note in an image file; a longer one is not read")
PPM_COMMENTS = Limit(100, "comments in a PPM file whose pixels are written as text")
# An encoder writes about ten; each of a few bytes costs a pass over the whole image.
JPEG_SCANS = Limit(100, "scans of a progressive JPEG file")
ARCHIVE_RATIO = Limit(100, "times the length of a compressed file, or of series: its limit once unpacked or filled up")
ARCHIVE_FREE_BYTES = Limit(1 << 28, "bytes that an archive or a compressed file may unpack to, whatever its length")
ARCHIVE_MEMBERS = Limit(1_000_000, "files and folders in a tar archive")
# Deeper trees cannot be removed again by the standard library, which recurses.
ARCHIVE_DEPTH = Limit(64, "folders within each other in a tar archive")
TAR_HEADER_BYTES = Limit(1 << 20, "bytes of the headers of one file in a tar archive")
ZIP_INDEX_BYTES = Limit(1 << 24, "bytes of the index of a zip or .npz archive")
ARRAY_BYTES = Limit(1 << 34, "bytes of the arrays that are read from an .npz file, in all")
EXAMPLES = Limit(1 << 24, "examples in an .npz file")
CLASSES = Limit(50_000, "classes of a data set")
DOWNLOAD_RATE = Limit(1024, "bytes a second, over its timeout, below which a download is given up")
JSON_BYTES = Limit(1 << 24, "bytes of a JSON file")
RESULT_BYTES = Limit(1 << 28, "bytes of a file of results or of a sweep's study, one JSON text on each line")
YAML_BYTES = Limit(1 << 18, "bytes of a YAML file")
TEXT_DEPTH = Limit(64, "levels of lists and mappings within each other in a JSON or YAML file")
YAML_NUMBER = Limit(64, "characters of a number, a date or any other value of a YAML file that is not text")

# The page, pstn app. A drawing is 17 kB of JSON.
PAGE_FILE_BYTES = Limit(5 << 20, "bytes of a file that a visitor uploads to the page")
PAGE_FILE_PIXELS = Limit(16_000_000, "pixels of an image that a visitor uploads to the page")
PAGE_EXAMPLES = Limit(100, "inputs that the page takes from a file or a folder")
PAGE_REQUEST_BYTES = Limit(1 << 18, "bytes of any other request to the page")
PAGE_BODY_SECONDS = Limit(60, "seconds that the body of a request to the page may take to arrive")
PAGE_REQUESTS_AT_ONCE = Limit(128, "requests that the page answers at once; an open tab holds two")
PAGE_QUEUED = Limit(64, "calls of the page's functions that wait")
PAGE_SESSIONS = Limit(256, "visitors whose drawings the page remembers")
PAGE_UPLOADED_BYTES = Limit(100 << 20, "bytes of uploads that the page keeps; the oldest are removed")
PAGE_UPLOADED_FILES = Limit(1_000, "uploads that the page keeps; the oldest are removed")

# The server, pstn serve.
SERVE_BYTES = Limit(16 << 20, "bytes of a request to the server, unless it is told otherwise")
SERVE_SECONDS = Limit(30, "seconds without a request, for one to arrive, and for it to wait, in the server")
SERVE_INPUTS = Limit(1_000, "inputs in one request to the server")
# An image with transparency takes 23 bytes a pixel while it is decoded.
SERVE_IMAGE_PIXELS = Limit(16_000_000, "pixels of an image in a request to the server")
SERVE_PIXELS = Limit(64_000_000, "pixels of all images in a request to the server")
SERVE_RATE = Limit(20, "requests a second of one client of the server, on average, unless it is told otherwise")
SERVE_TURNS = Limit(2, "requests that a process of the server parses, decodes and answers at once; others wait")
SERVE_HELD = Limit(128 << 20, "bytes of all requests that a process of the server holds at once")
SERVE_AT_ONCE = Limit(1_000, "connections that a process of the server holds at once")

CONFIG_BYTES = Limit(1 << 23, "bytes of a model's config.json")
MODEL_PARTS = Limit(64, "modules that a model's description lists")
MODEL_DEPTH = Limit(8, "levels of modules within each other in a model's description")
# The basis of 256 cells in the plane takes seconds to compute.
MODEL_CELLS = Limit(512, "cells of all CPAB transformations of a model")
MODEL_CLASSES = Limit(100_000, "classes of a model")
MODEL_SAMPLES = Limit(1 << 16, "samples that a model takes of each input by its own settings")
MODEL_PIXELS = Limit(1 << 24, "pixels or time steps of an input, or of a sample, of a model")
MODEL_VALUES = Limit(1 << 27, "numbers in all samples of one input of a model: samples, channels and pixels multiplied")
MODEL_LAYER = Limit(1 << 30, "numbers that a convolution of a model makes of one input, in all its samples")
MODEL_WORK = Limit(1 << 38, "multiplications of the convolutions of a model for one input, in all its samples")
MODEL_BYTES = Limit(1 << 32, "bytes of a model's weights")

CHECKPOINT_TEXT = Limit(1 << 26, "characters of each text beside the tensors of a checkpoint")
RUN_MODELS = Limit(10_000, "models of a run")


def limits() -> list[tuple[str, int, str]]:
    """Name, value and meaning of every limit of this module, by name: what SECURITY.md prints.

    Example:
        >>> limits()[0][0]
        'ARCHIVE_DEPTH'
    """
    found = {name: value for name, value in globals().items() if isinstance(value, Limit)}
    return [(name, int(value), value.meaning) for name, value in sorted(found.items())]
