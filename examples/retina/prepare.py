"""DRIVE and CHASE_DB1 as they are published become the folder that `--data retina` reads.

    python examples/retina/prepare.py --drive DRIVE --chase CHASEDB1 --to FOLDER

DRIVE (drive.grand-challenge.org, free after registration): the folder with `training` and `test`, each with `images`
and `1st_manual`. CHASE_DB1 (Kingston University London): the folder with Image_01L.jpg, Image_01L_1stHO.png and so on.
Photographs and masks of the first observer are padded to squares with black, so that eyes stay round.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

try:
    from PIL import Image
except ImportError:
    raise SystemExit("reading images needs the package 'PIL': run pip install 'fewfed[images]'") from None

FOLDER = "retina_vessels"
HELD_OUT = 4
"""Every so many training images of DRIVE one is for testing, where its test part came without masks."""

Pair = tuple[str, Path, Path]
"""A name, an image and its mask."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--drive", type=Path, required=True, help="folder with training and test")
    parser.add_argument("--chase", type=Path, required=True, help="folder with Image_01L.jpg ...")
    parser.add_argument("--to", type=Path, required=True, help=f"folder that FEWFED_DATA names; gets {FOLDER}")
    arguments = parser.parse_args()
    out = arguments.to / FOLDER
    training, testing = drive(arguments.drive)
    counts = [
        _write(training, out / "drive" / "training"),
        _write(testing, out / "drive" / "testing"),
        _write(chase(arguments.chase), out / "chase"),
    ]
    print(f"DRIVE: {counts[0]} to train on, {counts[1]} to test. CHASE_DB1: {counts[2]}. {out}")


def drive(folder: Path) -> tuple[list[Pair], list[Pair]]:
    training = list(_of_drive(folder / "training"))
    if (folder / "test" / "1st_manual").is_dir():
        return training, list(_of_drive(folder / "test"))
    print("DRIVE's test part has no masks here: every fourth training image is held out instead")
    held = training[HELD_OUT - 1 :: HELD_OUT]
    return [pair for pair in training if pair not in held], held


def chase(folder: Path) -> list[Pair]:
    images = sorted(folder.glob("Image_*.jpg"))
    return _found(folder, [(image.stem, image, folder / f"{image.stem}_1stHO.png") for image in images])


def _of_drive(folder: Path) -> Iterator[Pair]:
    images = sorted((folder / "images").glob("*.tif"))
    names = [image.stem.split("_")[0] for image in images]
    masks = [folder / "1st_manual" / f"{name}_manual1.gif" for name in names]
    yield from _found(folder, list(zip(names, images, masks, strict=True)))


def _found(folder: Path, pairs: list[Pair]) -> list[Pair]:
    if not pairs:
        raise SystemExit(f"{folder} has no images: expected the folder as it is published")
    for _, _, mask in pairs:
        if not mask.is_file():
            raise SystemExit(f"{mask} is missing: expected a mask of the first observer for every image")
    return pairs


def _write(pairs: list[Pair], folder: Path) -> int:
    for kind in ("images", "vessels"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for name, image, mask in pairs:
        with Image.open(image) as opened:
            _squared(opened.convert("RGB")).save(folder / "images" / f"{name}.png")
        with Image.open(mask) as opened:
            _squared(opened.convert("L").point(lambda value: 255 * (value > 127))).save(
                folder / "vessels" / f"{name}.png"
            )
    return len(pairs)


def _squared(image: Image.Image) -> Image.Image:
    side = max(image.size)
    square = Image.new(image.mode, (side, side))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square


if __name__ == "__main__":
    main()
