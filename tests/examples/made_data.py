"""Small sets in exactly the layouts in which the real ones are published."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

SIGNALS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
LUNG = ("", "inst", "time", "status", "age", "sex", "ph.ecog", "ph.karno", "pat.karno", "meal.cal", "wt.loss")


def write_har(folder: Path, people: list[int], windows: int) -> None:
    """The folder `UCI HAR Dataset`, every third person in its test part."""
    generator = np.random.default_rng(0)
    for part, persons in (("train", [p for p in people if p % 3]), ("test", [p for p in people if not p % 3])):
        place = folder / "UCI HAR Dataset" / part
        (place / "Inertial Signals").mkdir(parents=True)
        labels = np.tile(np.repeat(np.arange(1, 7), windows), len(persons))
        for signal in SIGNALS:
            x = generator.normal(labels[:, None], 1, (len(labels), 128))
            np.savetxt(place / "Inertial Signals" / f"{signal}_{part}.txt", x, fmt="%.2e")
        np.savetxt(place / f"y_{part}.txt", labels, fmt="%d")
        np.savetxt(place / f"subject_{part}.txt", np.repeat(persons, 6 * windows), fmt="%d")


def write_pneumonia(folder: Path) -> None:
    """pneumoniamnist.npz with fewer images; three in four of the training part show pneumonia."""
    generator = np.random.default_rng(0)
    arrays = {}
    for part, rows in (("train", 2400), ("val", 20), ("test", 24)):
        labels = (np.arange(rows) % 4 > 0).astype(np.uint8)
        arrays[f"{part}_images"] = generator.integers(0, 200, (rows, 28, 28), np.uint8) + 50 * labels[:, None, None]
        arrays[f"{part}_labels"] = labels[:, None]
    np.savez(folder / "pneumoniamnist.npz", **arrays)


def write_drive(folder: Path, test_masks: bool = True) -> None:
    """`training` with images 21 ... and `test` with 01 ..., photographs as .tif, masks as .gif."""
    for part, name, numbers in (("training", "training", range(21, 25)), ("test", "test", range(1, 3))):
        for number in numbers:
            photograph, mask = _eye(number, (57, 59))
            _save(photograph, folder / part / "images" / f"{number:02}_{name}.tif")
            if test_masks or part == "training":
                _save(mask, folder / part / "1st_manual" / f"{number:02}_manual1.gif")


def write_chase(folder: Path) -> None:
    for child in (1, 2):
        for side in "LR":
            photograph, mask = _eye(child, (64, 60))
            _save(photograph, folder / f"Image_{child:02}{side}.jpg")
            _save(mask.convert("1"), folder / f"Image_{child:02}{side}_1stHO.png")
            _save(mask.convert("1"), folder / f"Image_{child:02}{side}_2ndHO.png")


def write_lung(path: Path) -> None:
    """Three institutions, one patient of unknown institution, missing values, and two who were lost early."""
    generator = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(LUNG)
        for number in range(1, 38):
            measured = [*generator.integers(40, 80, 1), 1 + number % 2, number % 3, 90, 80, 1000 + number, number]
            institution, status, time = 1 + number % 3, 1 + (number % 9 > 0), int(generator.integers(200, 900))
            if number % 4 == 0:
                status, time = 2, 20 + number
            row = [number, institution, time, status, *measured]
            if number in (5, 6):
                row[2:4] = [100, 1]
            if number == 7:
                row[1] = "NA"
            if number in (8, 9):
                row[-2] = "NA"
            writer.writerow(row)


def _eye(seed: int, size: tuple[int, int]) -> tuple[Image.Image, Image.Image]:
    """A photograph, and a mask of 0 and 255 in the form of a vessel."""
    width, height = size
    pixels = np.random.default_rng(seed).integers(0, 100, (height, width, 3), np.uint8)
    vessel = np.zeros((height, width), np.uint8)
    vessel[height // 3 : height // 3 + 6] = 255
    pixels[vessel > 0] += 100
    return Image.fromarray(pixels), Image.fromarray(vessel)


def _save(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
