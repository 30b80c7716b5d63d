"""Files that readers of the pages have: a table, new rows, methods, keys' owners, and data sets in their layouts.

The data sets are made, and small: tests need no download. They are in the folders and formats of the real ones.
"""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from documents import ROOT, code

SIGNALS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
STUDIES = ("flea/flea-table1.toml", "ours/ours-har.toml")
SHORTER = {
    "seeds = 5": "seeds = 3",
    "rounds = 100": "rounds = 1",
    "epochs = 5": "epochs = 1",
    "start = 91": "start = 1",
    '"dir:0.5", ': "",
    '"dir:0.3", ': "",
}
"""What is cut in a study, so that there are fewer cells and each takes a second."""


def of_a_user(folder: Path) -> None:
    """What the pages take for granted: a table, new rows, a configuration, a method, what a site allows."""
    random = np.random.default_rng(0)
    rows = [
        f"{age:.3f},{dose:.3f},{'ill' if age > dose else 'well'},site-{number % 4}"
        for number, (age, dose) in enumerate(random.normal(size=(80, 2)))
    ]
    (folder / "patients.csv").write_text("\n".join(["age,dose,diagnosis,hospital", *rows]) + "\n")
    np.savez(folder / "new.npz", x=random.random((3, 1, 8, 8), dtype=np.float32))
    (method,) = code(ROOT / "docs" / "add_method.md", "python")
    (folder / "anchored.py").write_text(method)
    (folder / "policy.toml").write_text('roles = ["model", "features", "labels"]\n')


def missing_values(folder: Path) -> None:
    """A row of the table without one of its values."""
    with (folder / "patients.csv").open("a") as table:
        table.write("1.0,,ill,site-0\n")


def own_arrays(folder: Path) -> None:
    random = np.random.default_rng(0)
    np.savez(folder / "my.npz", x=random.random((400, 6), dtype=np.float32), y=np.arange(400) % 4)


def other_policy(folder: Path) -> None:
    shutil.copy(folder / "policy.toml", folder / "other.toml")


def lung(folder: Path) -> None:
    """The table of the worked example, after it was prepared."""
    table = (folder / "patients.csv").read_text()
    (folder / "lung.csv").write_text(table.replace("diagnosis,hospital", "dead_in_year,inst", 1))


def own_method(folder: Path) -> None:
    """A method under every name that the pages give to one, and a wrapper."""
    for name in ("my_method.py", "my.py", "mine.py", "their/method.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(folder / "anchored.py", folder / name)
    (wrapper,) = (block for block in code(ROOT / "CONTRIBUTING.md", "python") if "Around[" in block)
    for name in ("decayed.py", "my_wrapper.py"):
        (folder / name).write_text(wrapper)


def begun_method(folder: Path) -> None:
    """Somebody who begins a method has none of that name."""
    for name in ("anchored.py", "my_method.py"):
        (folder / name).unlink(missing_ok=True)


def own_table(folder: Path) -> None:
    """What the first block of Python of `docs/own_data.md` writes into the current folder."""
    exec(code(ROOT / "docs" / "own_data.md", "python")[0], {"__name__": "made"})


def own_network(folder: Path) -> None:
    """The network of `docs/networks.md`, where its commands have it."""
    (file,) = (block for block in code(ROOT / "docs" / "networks.md", "python") if block.startswith("from torch"))
    for name in ("path/to/net.py", "net.py", "their/net.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(file)


def new_patients(folder: Path) -> None:
    """Rows to predict, with columns that no model reads, also of a site called north; and images of two classes."""
    lines = (folder / "patients.csv").read_text().splitlines()[:6]
    named = [f"{line},patient-{number},ward-{number % 2}" for number, line in enumerate(lines)]
    named[0] = lines[0] + ",patient,ward"
    (folder / "new.csv").write_text("\n".join(named).replace("site-1", "north") + "\n")
    table = (folder / "patients.csv").read_text()
    (folder / "patients.csv").write_text(table.replace("site-1", "north"))
    for place, images in (("images/zero", 8), ("images/one", 8), ("folder/of/images", 3)):
        for number in range(images):
            _picture(folder / place / f"{number}.png", number + 20 * (place == "images/one"), (8, 8))


def har(folder: Path) -> None:
    """The folder `UCI HAR Dataset`, every third person in its test part."""
    generator = np.random.default_rng(0)
    for part, persons in (("train", (1, 2, 4, 5, 7)), ("test", (3, 6))):
        place = folder / "data" / "UCI HAR Dataset" / part
        (place / "Inertial Signals").mkdir(parents=True)
        labels = np.tile(np.repeat(np.arange(1, 7), 10), len(persons))
        for signal in SIGNALS:
            x = generator.normal(labels[:, None], 1, (len(labels), 128))
            np.savetxt(place / "Inertial Signals" / f"{signal}_{part}.txt", x, fmt="%.1e")
        np.savetxt(place / f"y_{part}.txt", labels, fmt="%d")
        np.savetxt(place / f"subject_{part}.txt", np.repeat(persons, 60), fmt="%d")


def cifar10(folder: Path) -> None:
    """The pickles of `cifar-10-batches-py`, forty images each."""
    place = folder / "data" / "cifar-10-batches-py"
    place.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        pixels = generator.integers(256, size=(40, 3072), dtype=np.uint8)
        content = {b"data": pixels, b"labels": [number % 10 for number in range(40)]}
        (place / name).write_bytes(pickle.dumps(content, protocol=2))
    (place / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"any"] * 10}, protocol=2))


def office(folder: Path) -> None:
    """Four domains with a folder for each class."""
    for number, domain in enumerate(("amazon", "caltech", "dslr", "webcam")):
        for label in ("bike", "mug"):
            for each in range(6):
                _picture(folder / "data" / "office_caltech_10" / domain / label / f"{each}.png", number, (30, 20))


def eyes(folder: Path) -> None:
    """Images and masks of two sites of a user's own, and the two hospitals of `retina`."""
    retina = folder / "data" / "retina_vessels"
    for place, masks, names in (
        (folder / "eyes" / "north", "masks", [f"case{number:02}" for number in range(6)]),
        (folder / "eyes" / "south", "masks", [f"case{number:02}" for number in range(6)]),
        (retina / "drive" / "training", "vessels", [str(number) for number in range(21, 25)]),
        (retina / "drive" / "testing", "vessels", [f"{number:02}" for number in range(1, 3)]),
        (retina / "chase", "vessels", [f"Image_{child:02}{side}" for child in range(1, 15) for side in "LR"]),
    ):
        for number, name in enumerate(names):
            _picture(place / "images" / f"{name}.png", number, (32, 32))
            vessel = np.zeros((32, 32), np.uint8)
            vessel[8:16] = 255
            _save(Image.fromarray(vessel), place / masks / f"{name}.png")


def studies(folder: Path) -> None:
    """The studies that pages speak of, as in a clone, but shorter: copied, since records are kept beside them."""
    shutil.copytree(ROOT / "reproduce" / "published", folder / "reproduce" / "published")
    for name in STUDIES:
        text = (ROOT / "reproduce" / name).read_text()
        for long, short in SHORTER.items():
            text = text.replace(long, short)
        (folder / "reproduce" / name).parent.mkdir()
        (folder / "reproduce" / name).write_text(text)
    (folder / "docs").mkdir()


def public_part(folder: Path) -> None:
    """A site hands the public part of its keys to the coordinator."""
    shutil.copy(folder / "mine" / "north.public.toml", folder)


def _picture(path: Path, seed: int, size: tuple[int, int]) -> None:
    width, height = size
    _save(Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)), path)


def _save(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
