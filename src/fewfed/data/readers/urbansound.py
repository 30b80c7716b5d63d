"""UrbanSound8K: four-second clips of city sounds in ten classes."""

from __future__ import annotations

import csv
import hashlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fewfed.data.audio import FRAMES, MELS, clip_features
from fewfed.data.examples import Dataset, Examples
from fewfed.data.readers.folders import cache_folder
from fewfed.data.readers.labels import group_ids
from fewfed.data.readers.options import DataOptions, refuse_unusable
from fewfed.errors import DataError

CLASSES = (
    "air_conditioner",
    "car_horn",
    "children_playing",
    "dog_bark",
    "drilling",
    "engine_idling",
    "gun_shot",
    "jackhammer",
    "siren",
    "street_music",
)
METADATA = Path("metadata") / "UrbanSound8K.csv"
COLUMNS = ("slice_file_name", "fsID", "fold", "classID")
PUBLISHED_CLIPS = 8732
TRAIN_SHARE = 0.8
FEATURES_VERSION = 1
TRAIN_DRAWS, TEST_DRAWS = 1, 2


@dataclass(frozen=True)
class Clip:
    file: Path
    recording: int
    fold: int
    label: int


def read(folder: Path, options: DataOptions, seed: int) -> Dataset:
    """Log-mel clips (2, 64, 344), split over clips as published, or over source recordings with `group_split`."""
    refuse_unusable(options, "urbansound8k", "audio")
    clips = _clips(folder)
    recordings = np.array([clip.recording for clip in clips])
    train, test = _by_recording(recordings, seed) if options.group_split else _by_clip(len(clips), seed)
    train_x, test_x = _inputs(clips, train, test, options, seed)
    labels = torch.tensor([clip.label for clip in clips])
    groups = {
        "recording": group_ids(recordings[train]),
        "fold": group_ids(np.array([clips[row].fold for row in train])),
    }
    return Dataset(
        name="urbansound8k",
        train=Examples(train_x, labels[torch.from_numpy(train)]),
        test=Examples(test_x, labels[torch.from_numpy(test)]),
        classes=len(CLASSES),
        class_names=CLASSES,
        groups={name: ids for name, (ids, _) in groups.items()},
        group_names={name: names for name, (_, names) in groups.items()},
        note=_note(len(clips), options.group_split),
    )


def _clips(folder: Path) -> list[Clip]:
    path = folder / METADATA
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        clips = [
            Clip(
                folder / "audio" / f"fold{int(row['fold'])}" / Path(row["slice_file_name"]).name,
                int(row["fsID"]),
                int(row["fold"]),
                int(row["classID"]),
            )
            for row in rows
        ]
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path} cannot be read ({error!r}): expected the columns {', '.join(COLUMNS)}") from error
    if len(clips) < 2:
        raise DataError(f"{path} lists {len(clips)} clips: expected at least two")
    missing = [clip.file for clip in clips if not clip.file.is_file()]
    if missing:
        raise DataError(
            f"{len(missing)} of the {len(clips)} clips in {path} are missing, the first is {missing[0]}: "
            "get the data set again, or remove their lines"
        )
    return clips


def _by_clip(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy()
    kept = round(TRAIN_SHARE * count)
    return order[:kept], order[kept:]


def _by_recording(recordings: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Whole recordings in random order go to the test part until it has its share of clips."""
    names, ids = np.unique(recordings, return_inverse=True)
    if len(names) < 2:
        raise DataError("group_split = true needs clips of at least two recordings: found one; leave it out")
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed)).numpy()
    clips_so_far = np.cumsum(np.bincount(ids)[order])
    wanted = len(recordings) - round(TRAIN_SHARE * len(recordings))
    chosen = order[: min(int(np.searchsorted(clips_so_far, wanted)) + 1, len(names) - 1)]
    in_test = np.isin(ids, chosen)
    return np.flatnonzero(~in_test), np.flatnonzero(in_test)


def _inputs(
    clips: Sequence[Clip], train: np.ndarray, test: np.ndarray, options: DataOptions, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    files = [clip.file for clip in clips]
    if not options.audio_augment:
        features = log_mels(files)
        train_x, test_x = features[train], features[test]
    else:
        train_x = log_mels([files[row] for row in train], (seed, TRAIN_DRAWS))
        test_files = [files[row] for row in test]
        test_x = log_mels(test_files, (seed, TEST_DRAWS)) if options.augment_test else log_mels(files)[test]
    if options.standardise_audio:
        mean, deviation = train_x.mean(dtype=np.float64), train_x.std(dtype=np.float64)
        scale = np.float32(deviation) if deviation > 0 else np.float32(1)
        train_x, test_x = (train_x - np.float32(mean)) / scale, (test_x - np.float32(mean)) / scale
    return torch.from_numpy(train_x), torch.from_numpy(test_x)


def log_mels(files: Sequence[Path], draws: tuple[int, int] | None = None) -> np.ndarray:
    """Spectrograms of all files, kept in the cache folder under a key of the files and the draws."""
    cached = cache_folder() / "log-mel" / f"{_key(files, draws)}.npy"
    if cached.is_file():
        try:
            kept: np.ndarray = np.load(cached, allow_pickle=False)
            if kept.shape == (len(files), 2, MELS, FRAMES):
                return kept
        except (OSError, ValueError, EOFError):
            pass  # an unreadable cache entry is worth no more than none: it is written again
    features = np.empty((len(files), 2, MELS, FRAMES), dtype=np.float32)
    for row, file in enumerate(files):
        features[row] = clip_features(file, None if draws is None else np.random.default_rng((*draws, row)))
    _store(cached, features)
    return features


def _key(files: Sequence[Path], draws: tuple[int, int] | None) -> str:
    digest = hashlib.sha256(f"{FEATURES_VERSION} {draws}".encode())
    for file in files:
        status = file.stat()
        digest.update(f"\n{file.parent.name}/{file.name} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:32]


def _store(path: Path, features: np.ndarray) -> None:
    """Written aside and renamed, so that two runs at once never read half a file; a full disk only costs the cache."""
    scratch = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            scratch = file.name
            np.save(file, features)
        os.replace(scratch, path)
    except OSError:
        if scratch:
            Path(scratch).unlink(missing_ok=True)


def _note(clips: int, by_recording: bool) -> str:
    counted = f"{clips:,}".replace(",", " ")
    parts = [] if clips == PUBLISHED_CLIPS else [f"UrbanSound8K, {counted} clips"]
    return "; ".join(parts + (["split by source recording"] if by_recording else []))
