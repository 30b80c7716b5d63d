"""UCI-HAR: windows of 128 samples of a phone's motion sensors, thirty people, six activities."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch

from fewfed.data.examples import Dataset, Examples
from fewfed.data.limits import Limits
from fewfed.data.readers.labels import group_ids, whole_numbers
from fewfed.data.readers.opening import size_of
from fewfed.data.readers.options import DataOptions, refuse_unusable
from fewfed.errors import DataError

SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
ACTIVITIES = ("walking", "walking_upstairs", "walking_downstairs", "sitting", "standing", "laying")
PARTS = ("train", "test")
SUBJECTS = Path("train") / "subject_train.txt"
WINDOW = 128
PUBLISHED_ROWS = (7352, 2947)
HAPT_ROWS = (7415, 2996)


def read(folder: Path, options: DataOptions, seed: int) -> Dataset:
    """Inputs (1, 128, channels) in the files' own units, as the papers feed them; `groups` names the people."""
    refuse_unusable(options, "har", "other")
    train, test = (_part(folder, part, options) for part in PARTS)
    subjects = _column(folder / SUBJECTS, options.limits)
    if len(subjects) != len(train):
        raise DataError(f"{folder}: {len(subjects)} subjects for {len(train)} training windows; expected one a window")
    ids, names = group_ids("subjects", subjects)
    return Dataset(
        name="har",
        train=train,
        test=test,
        classes=len(ACTIVITIES),
        class_names=ACTIVITIES,
        groups={"subject": ids},
        group_names={"subject": names},
        note=_note(len(train), len(test)),
    )


def files(folder: Path, options: DataOptions) -> list[Path]:
    """What `read` reads."""
    parts = [[*_signal_files(folder, part, options), _label_file(folder, part)] for part in PARTS]
    return [folder / SUBJECTS, *parts[0], *parts[1]]


def _signal_files(folder: Path, part: str, options: DataOptions) -> list[Path]:
    return [folder / part / "Inertial Signals" / f"{signal}_{part}.txt" for signal in SIGNALS[: options.channels]]


def _label_file(folder: Path, part: str) -> Path:
    return folder / part / f"y_{part}.txt"


def _part(folder: Path, part: str, options: DataOptions) -> Examples:
    signals = [_numbers(file, np.float32, options.limits) for file in _signal_files(folder, part, options)]
    labels = _column(_label_file(folder, part), options.limits)
    for signal, name in zip(signals, SIGNALS, strict=False):
        if signal.shape != (len(labels), WINDOW):
            raise DataError(
                f"{folder}, {part}: {name} has {signal.shape[0]} rows of {signal.shape[1]} numbers; "
                f"expected {len(labels)} rows (one a label) of {WINDOW}"
            )
    windows = np.stack(signals, axis=-1)
    return Examples(torch.from_numpy(windows).unsqueeze(1), torch.from_numpy(labels - 1))


def _column(path: Path, limits: Limits) -> np.ndarray:
    # As floating point first: read as integers, 0.5 would silently become 0.
    column = _numbers(path, np.float64, limits)
    if column.shape[1] != 1:
        raise DataError(f"{path} has {column.shape[1]} numbers a line: expected one")
    return whole_numbers(str(path), column[:, 0])


def _numbers(path: Path, dtype: type[np.generic], limits: Limits) -> np.ndarray:
    if not path.is_file():
        raise DataError(f"{path} is missing: expected the folder layout of the published UCI HAR Dataset")
    if size_of(path, limits) == 0:
        raise DataError(f"{path} is empty: expected one line a window; get the data set again")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a file of blank lines is refused below, by its shape
            return np.loadtxt(path, dtype=dtype, ndmin=2)
    except (ValueError, OSError) as error:
        raise DataError(f"{path} is not a table of numbers ({error}): get the data set again") from error


def _note(train: int, test: int) -> str:
    if (train, test) == PUBLISHED_ROWS:
        return ""
    if (train, test) == HAPT_ROWS:
        return "HAPT windows, UCI-HAR style"
    return f"{train} / {test} windows, not the published {PUBLISHED_ROWS[0]} / {PUBLISHED_ROWS[1]}"
