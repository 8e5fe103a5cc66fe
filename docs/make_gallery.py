"""The small pictures of docs/examples.md: details of larger ones, `python docs/make_gallery.py`."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parent
SIZE = (480, 320)
# The picture, its part from left to right and where that part begins from above, as shares of its width and height.
PARTS = {
    "digits": ("images/looks.png", 0.0, 0.62, 0.0),
    "series": ("images/series.png", 0.0, 0.5, 0.0),
    "shifted": ("images/wrap-shifted.png", 0.0, 0.62, 0.0),
    "pretrained": ("images/wrap-pretrained.png", 0.0, 0.62, 0.0),
    "cpab": ("images/cpab-grid.png", 0.5, 1.0, 0.0),
    "page": ("images/app.png", 0.0, 0.7, 0.05),
    "calibration": ("experiments/images/calibration.png", 0.0, 0.55, 0.0),
    "angles": ("experiments/images/finding.png", 0.0, 0.5, 0.0),
}


def main() -> None:
    """Cut and write them."""
    folder = DOCS / "images" / "gallery"
    folder.mkdir(exist_ok=True)
    for name, (source, left, right, top) in PARTS.items():
        with Image.open(DOCS / source) as picture:
            width, height = picture.size
            side = (right - left) * width
            tall = min(side * SIZE[1] / SIZE[0], (1 - top) * height)
            box = (left * width, top * height, right * width, top * height + tall)
            size = SIZE[0], round(SIZE[0] * tall / side)
            detail = picture.convert("RGB").resize(size, Image.Resampling.LANCZOS, box)
        card = Image.new("RGB", SIZE, "white")
        card.paste(detail, (0, (SIZE[1] - detail.height) // 2))
        card.quantize(128).save(folder / f"{name}.png", optimize=True)
        print(folder / f"{name}.png")


if __name__ == "__main__":
    main()
