"""PneumoniaMNIST becomes forty clinics with twenty labelled X-rays each, and no two with the same mix of patients.

    python examples/xray/prepare.py FOLDER --out runs/examples/xray

The published images come from one hospital: the clinics are made here. Each draws its part of pneumonia from a Beta
distribution that favours the ends, so that some see little but pneumonia and some hardly any. The published
validation part is no clinic's: it is written to a file of its own, to predict at the end.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

FILE = "pneumoniamnist.npz"
CLASSES = ("normal", "pneumonia")
IMAGES = 20
"""Of each clinic."""
ENDS = 0.5
"""Both parameters of the Beta distribution: below 1 the ends are likelier than the middle."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, help=f"the folder with {FILE}")
    parser.add_argument("--out", type=Path, required=True, help="folder for clinics.json and new.npz")
    parser.add_argument("--clinics", type=int, default=40)
    arguments = parser.parse_args()
    if not (arguments.folder / FILE).is_file():
        raise SystemExit(f"{arguments.folder} has no {FILE}: expected the folder with the published file")
    with np.load(arguments.folder / FILE) as data:
        labels = data["train_labels"].reshape(-1)
        new, answers = data["val_images"], data["val_labels"].reshape(-1)
    clinics = drawn(labels, arguments.clinics, np.random.default_rng(0))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "clinics.json").write_text(json.dumps(clinics), encoding="utf-8")
    np.savez(arguments.out / "new.npz", x=new, y=np.array(CLASSES)[answers])
    ill = sorted(int(labels[rows].sum()) for rows in clinics)
    print(f"{len(clinics)} clinics of {IMAGES} X-rays; with pneumonia, clinic by clinic: {' '.join(map(str, ill))}")


def drawn(labels: np.ndarray, clinics: int, generator: np.random.Generator) -> list[list[int]]:
    """Rows of each clinic; no row is given twice."""
    stacks = [list(generator.permutation(np.flatnonzero(labels == label))) for label in range(len(CLASSES))]
    parts = []
    for share in generator.beta(ENDS, ENDS, clinics):
        ill = round(IMAGES * share)
        if len(stacks[1]) < ill or len(stacks[0]) < IMAGES - ill:
            raise SystemExit(f"{len(labels)} X-rays are too few for {clinics} clinics of {IMAGES}: ask for fewer")
        parts.append(sorted(int(stacks[label].pop()) for label in [1] * ill + [0] * (IMAGES - ill)))
    return parts


if __name__ == "__main__":
    main()
