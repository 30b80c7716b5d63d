"""UrbanSound8K: four-second clips of city sounds in ten classes."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fewfed.data.audio import FRAMES, MELS, clip_features
from fewfed.data.examples import Dataset, Examples
from fewfed.data.limits import Limits
from fewfed.data.readers.folders import cache_folder
from fewfed.data.readers.labels import group_ids
from fewfed.data.readers.opening import read_bytes
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
LIMITS = (("fold", 1000), ("fsID", 1 << 31), ("classID", len(CLASSES)))
"""Columns of numbers, and what they stay below."""
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
    clips = _clips(folder, options.limits)
    recordings = np.array([clip.recording for clip in clips])
    train, test = _by_recording(recordings, seed) if options.group_split else _by_clip(len(clips), seed)
    train_x, test_x = _inputs(clips, train, test, options, seed)
    labels = torch.tensor([clip.label for clip in clips])
    groups = {
        "recording": group_ids("recordings", recordings[train]),
        "fold": group_ids("folds", np.array([clips[row].fold for row in train])),
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


def files(folder: Path, options: DataOptions) -> list[Path]:
    """What `read` reads."""
    return [folder / METADATA, *(clip.file for clip in _clips(folder, options.limits))]


def _clips(folder: Path, limits: Limits) -> list[Clip]:
    path = folder / METADATA
    try:
        text = read_bytes(path, limits).decode("utf-8")
        clips = [_clip(folder, row) for row in csv.DictReader(io.StringIO(text, newline=""))]
    except (csv.Error, KeyError, ValueError, TypeError) as error:
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


def _clip(folder: Path, row: Mapping[str, str]) -> Clip:
    fold, recording, label = (_below(row[name], limit) for name, limit in LIMITS)
    return Clip(folder / "audio" / f"fold{fold}" / Path(row["slice_file_name"]).name, recording, fold, label)


def _below(text: str, limit: int) -> int:
    number = int(text)
    if not 0 <= number < limit:
        raise ValueError(f"{text[:20]} is out of range")
    return number


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
    sounds = [clip.file for clip in clips]
    limits = options.limits
    if not options.audio_augment:
        features = log_mels(sounds, limits)
        train_x, test_x = features[train], features[test]
    else:
        train_x = log_mels([sounds[row] for row in train], limits, (seed, TRAIN_DRAWS))
        tested = [sounds[row] for row in test]
        test_x = (
            log_mels(tested, limits, (seed, TEST_DRAWS)) if options.augment_test else log_mels(sounds, limits)[test]
        )
    if options.standardise_audio:
        mean, deviation = train_x.mean(dtype=np.float64), train_x.std(dtype=np.float64)
        scale = np.float32(deviation) if deviation > 0 else np.float32(1)
        train_x, test_x = (train_x - np.float32(mean)) / scale, (test_x - np.float32(mean)) / scale
    return torch.from_numpy(train_x), torch.from_numpy(test_x)


def log_mels(sounds: Sequence[Path], limits: Limits, draws: tuple[int, int] | None = None) -> np.ndarray:
    """Spectrograms of all sounds, kept in the cache folder under a key of the files and the draws."""
    limits.check_total(f"{len(sounds)} spectrograms", 4 * len(sounds) * 2 * MELS * FRAMES)
    cached = cache_folder() / "log-mel" / f"{_key(sounds, draws)}.npy"
    if cached.is_file():
        try:
            kept: np.ndarray = np.load(cached, allow_pickle=False)
            if kept.shape == (len(sounds), 2, MELS, FRAMES):
                return kept
        except (OSError, ValueError, EOFError):
            pass  # an unreadable cache entry is worth no more than none: it is written again
    features = np.empty((len(sounds), 2, MELS, FRAMES), dtype=np.float32)
    for row, sound in enumerate(sounds):
        features[row] = clip_features(sound, None if draws is None else np.random.default_rng((*draws, row)), limits)
    _store(cached, features)
    return features


def _key(sounds: Sequence[Path], draws: tuple[int, int] | None) -> str:
    digest = hashlib.sha256(f"{FEATURES_VERSION} {draws}".encode())
    for sound in sounds:
        status = sound.stat()
        digest.update(f"\n{sound.parent.name}/{sound.name} {status.st_size} {status.st_mtime_ns}".encode())
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
