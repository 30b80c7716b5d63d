"""UCI-HAR becomes thirty sites, one a person, each with the few windows that this person labelled first.

    python examples/activity/prepare.py "UCI HAR Dataset" --out runs/examples/activity

The published parts keep people apart: 21 train, 9 test. Here every person is a site and brings both: of each activity
the first windows are trained on and the last are tested on. Neighbouring windows overlap by half, so windows in
between are left out, and no sample is on both sides.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

SIGNALS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
ACTIVITIES = ("walking", "walking_upstairs", "walking_downstairs", "sitting", "standing", "laying")
TRAINED, TESTED = 8, 12
"""Windows of each person and activity."""
NEW_PERSON = 30
"""Whose tested windows are also written to a file of their own, to predict."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, help="UCI HAR Dataset, as it is published")
    parser.add_argument("--out", type=Path, required=True, help="folder for data.npz and person.npz")
    parser.add_argument("--windows", type=int, default=TRAINED, help="of each person and activity to train on")
    arguments = parser.parse_args()
    x, y, person = read(arguments.folder)
    rows, test = chosen(y, person, arguments.windows)
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = np.array(ACTIVITIES)[y]
    np.savez(arguments.out / "data.npz", x=x[rows], y=names[rows], site=person[rows], test=test)
    own = rows[test & (person[rows] == NEW_PERSON)]
    np.savez(arguments.out / "person.npz", x=x[own], y=names[own])
    print(
        f"{len(np.unique(person))} people, {(~test).sum()} windows to train on, {test.sum()} to test, "
        f"{len(y) - len(rows)} of {len(y)} left out; {arguments.out / 'data.npz'}"
    )


def read(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Windows (rows, 1, 128, 9), activities from 0 and people of both published parts, in the files' order: time."""
    parts = [_part(folder / part, part) for part in ("train", "test")]
    x, y, person = (np.concatenate(each) for each in zip(*parts, strict=True))
    return x[:, None], y - 1, person


def chosen(y: np.ndarray, person: np.ndarray, windows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that are used, and which of them are for testing."""
    rows, test = [], []
    for who in np.unique(person):
        for activity in np.unique(y):
            own = np.flatnonzero((person == who) & (y == activity))
            if len(own) < windows + TESTED + 1:
                raise SystemExit(
                    f"person {who} has {len(own)} windows of {ACTIVITIES[activity]}: expected {windows} to train on, "
                    f"{TESTED} to test and one between them; ask for fewer with --windows"
                )
            rows += [*own[:windows], *own[-TESTED:]]
            test += [False] * windows + [True] * TESTED
    return np.array(rows), np.array(test)


def _part(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if not (folder / "Inertial Signals").is_dir():
        raise SystemExit(f"{folder} has no folder 'Inertial Signals': expected UCI HAR Dataset, as it is published")
    files = [folder / "Inertial Signals" / f"{signal}_{part}.txt" for signal in SIGNALS]
    signals = [np.loadtxt(file, dtype=np.float32) for file in files]
    labels, people = (np.loadtxt(folder / f"{kind}_{part}.txt", dtype=np.int64) for kind in ("y", "subject"))
    return np.stack(signals, axis=-1), labels, people


if __name__ == "__main__":
    main()
