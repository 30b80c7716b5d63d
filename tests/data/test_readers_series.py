"""Sensor windows and sound clips in their published layouts."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from fewfed.data import audio
from fewfed.data.readers import har, urbansound
from fewfed.data.sources import DataOptions, load
from fewfed.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FEWFED_DATA", str(tmp_path))
    return tmp_path


def write_har(root: Path, train: int = 12, test: int = 6) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    written = {}
    for part, count in (("train", train), ("test", test)):
        folder = root / "UCI HAR Dataset" / part
        (folder / "Inertial Signals").mkdir(parents=True)
        x = rng.normal(size=(count, 128, 9))
        order = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in ("x", "y", "z")]
        for channel, name in enumerate(order):
            np.savetxt(folder / "Inertial Signals" / f"{name}_{part}.txt", x[:, :, channel], fmt="%16.7e")
        np.savetxt(folder / f"y_{part}.txt", np.arange(count) % 6 + 1, fmt="%d")
        np.savetxt(folder / f"subject_{part}.txt", np.arange(count) // 4 * 2 + 1, fmt="%d")
        written[part] = x
    return written


@pytest.mark.parametrize("channels", [1, 3, 9])
def test_har_windows_labels_and_people_come_back(data_folder: Path, channels: int) -> None:
    written = write_har(data_folder)
    dataset = load("har", options=DataOptions(channels=channels))
    assert dataset.shape == (1, 128, channels)
    np.testing.assert_allclose(dataset.train.x[:, 0].numpy(), written["train"][:, :, :channels], atol=1e-5)
    np.testing.assert_allclose(dataset.test.x[:, 0].numpy(), written["test"][:, :, :channels], atol=1e-5)
    assert dataset.test.y.tolist() == [0, 1, 2, 3, 4, 5]
    assert dataset.groups["subject"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert dataset.group_names["subject"] == ("1", "3", "5")
    assert "12 / 6 windows" in dataset.note


def test_har_notes_tell_the_published_windows_from_others() -> None:
    assert har._note(7352, 2947) == ""
    assert har._note(7415, 2996) == "HAPT windows, UCI-HAR style"


def test_har_refuses_what_only_images_have(data_folder: Path) -> None:
    write_har(data_folder)
    with pytest.raises(ConfigError, match="needs image data, which 'har' is not"):
        load("har", options=DataOptions(augment="static"))


def test_damaged_har_files(data_folder: Path) -> None:
    write_har(data_folder)
    root = data_folder / "UCI HAR Dataset" / "train"
    signal = root / "Inertial Signals" / "body_acc_y_train.txt"
    whole = signal.read_text()
    for damaged, sentence in [
        ("", "is empty"),
        ("1 2 x\n", "not a table of numbers"),
        ("1 2 3\n4 5\n", "not a table of numbers"),
        (whole.partition("\n")[2], "body_acc_y has 11 rows of 128 numbers; expected 12"),
        (whole.replace(whole.split()[5], "nan", 1), "row 0 holds NaN"),
    ]:
        signal.write_text(damaged)
        with pytest.raises(DataError, match=sentence):
            load("har")
    signal.unlink()
    with pytest.raises(DataError, match=r"body_acc_y_train\.txt is missing"):
        load("har")
    signal.write_text(whole)
    (root / "y_train.txt").write_text("7\n" * 12)
    with pytest.raises(DataError, match="label 6: expected 0 to 5"):
        load("har")
    np.savetxt(root / "y_train.txt", np.ones(12), fmt="%d")
    (root / "subject_train.txt").write_text("1\n2\n")
    with pytest.raises(DataError, match="2 subjects for 12 training windows"):
        load("har")


def write_urbansound(root: Path, clips: int = 10) -> list[Path]:
    folder = root / "UrbanSound8K"
    rows, files = [], []
    for index in range(clips):
        fold, recording, label = index % 2 + 1, 100 + index // 2, index % 10
        name = f"{recording}-{label}-0-{index}.wav"
        file = folder / "audio" / f"fold{fold}" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        rate = (44_100, 22_050)[index % 2]
        time = np.arange(rate) / rate
        tone = 0.5 * np.sin(2 * np.pi * (500 + 300 * index) * time)
        soundfile.write(file, np.stack([tone, tone / 2], 1) if index % 3 == 0 else tone, rate, subtype="PCM_16")
        rows.append([name, recording, 0, 1, 1, fold, label, "any"])
        files.append(file)
    (folder / "metadata").mkdir()
    with (folder / "metadata" / "UrbanSound8K.csv").open("w", newline="") as file_out:
        writer = csv.writer(file_out)
        writer.writerow(["slice_file_name", "fsID", "start", "end", "salience", "fold", "classID", "class"])
        writer.writerows(rows)
    return files


def test_urbansound_is_split_by_the_seeded_permutation(data_folder: Path) -> None:
    files = write_urbansound(data_folder)
    dataset = load("urbansound8k", options=DataOptions(standardise_audio=False), seed=1)
    assert dataset.shape == (2, 64, 344)
    torch.manual_seed(1)
    order = torch.randperm(10)
    assert dataset.train.y.tolist() == order[:8].tolist()
    assert dataset.test.y.tolist() == order[8:].tolist()
    for row, clip in enumerate(order[:8].tolist()):
        np.testing.assert_array_equal(dataset.train.x[row].numpy(), audio.clip_features(files[clip]))
    recordings = np.array(dataset.group_names["recording"])[dataset.groups["recording"]]
    assert recordings.tolist() == [str(100 + clip // 2) for clip in order[:8].tolist()]
    assert dataset.note == "UrbanSound8K, 10 clips"
    assert urbansound._note(2985, False) == "UrbanSound8K, 2 985 clips"
    assert urbansound._note(8732, False) == ""


def test_urbansound_is_standardised_with_the_training_part(data_folder: Path) -> None:
    write_urbansound(data_folder)
    plain = load("urbansound8k", options=DataOptions(standardise_audio=False))
    scaled = load("urbansound8k")
    mean, std = plain.train.x.double().mean(), plain.train.x.double().std(correction=0)
    torch.testing.assert_close(scaled.test.x.double(), (plain.test.x.double() - mean) / std, atol=1e-4, rtol=1e-4)


def test_urbansound_group_split_never_shares_a_recording(data_folder: Path) -> None:
    write_urbansound(data_folder)
    for seed in range(4):
        dataset = load("urbansound8k", options=DataOptions(group_split=True), seed=seed)
        assert len(dataset.test) == 2
        train, test = ({int(label) // 2 for label in part.y} for part in (dataset.train, dataset.test))
        assert not train & test
        assert "split by source recording" in dataset.note


def test_urbansound_is_computed_once(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_urbansound(data_folder)
    first = load("urbansound8k")

    def refuse(*_: object) -> np.ndarray:
        raise AssertionError("the clip was read again")

    with monkeypatch.context() as patch:
        patch.setattr(urbansound, "clip_features", refuse)
        assert torch.equal(load("urbansound8k").train.x, first.train.x)
        assert len(load("urbansound8k", seed=3).train) == 8, "other seeds share the cached spectrograms"
    soundfile.write(files[0], np.zeros(1000), 44_100)
    changed = load("urbansound8k", options=DataOptions(standardise_audio=False))
    row = changed.train.y.tolist().index(0) if 0 in changed.train.y else None
    silent = changed.train.x[row] if row is not None else changed.test.x[changed.test.y.tolist().index(0)]
    assert torch.allclose(silent, torch.tensor(-100.0)), "a changed clip is computed anew"


def test_a_damaged_cache_entry_is_replaced(data_folder: Path) -> None:
    write_urbansound(data_folder)
    first = load("urbansound8k")
    (entry,) = (data_folder / "cache" / "fewfed" / "log-mel").iterdir()
    entry.write_bytes(b"broken")
    assert torch.equal(load("urbansound8k").train.x, first.train.x)
    assert np.load(entry).shape == (10, 2, 64, 344)


def test_audio_augmentation_is_frozen_and_leaves_the_test_part_alone(data_folder: Path) -> None:
    write_urbansound(data_folder)
    raw = DataOptions(standardise_audio=False)
    augmented = DataOptions(standardise_audio=False, audio_augment=True)
    plain, one, same = (load("urbansound8k", options=options) for options in (raw, augmented, augmented))
    assert torch.equal(one.train.x, same.train.x)
    assert not torch.equal(one.train.x, plain.train.x)
    assert torch.equal(one.test.x, plain.test.x)
    accident = load("urbansound8k", options=DataOptions(standardise_audio=False, audio_augment=True, augment_test=True))
    assert not torch.equal(accident.test.x, plain.test.x)


def test_damaged_urbansound(data_folder: Path) -> None:
    files = write_urbansound(data_folder)
    files[3].write_bytes(b"RIFFnoise")
    with pytest.raises(DataError, match="cannot be read as sound"):
        load("urbansound8k")
    files[3].unlink()
    with pytest.raises(DataError, match=r"1 of the 10 clips .* are missing"):
        load("urbansound8k")
    metadata = data_folder / "UrbanSound8K" / "metadata" / "UrbanSound8K.csv"
    metadata.write_text(metadata.read_text().replace("fsID", "id", 1))
    with pytest.raises(DataError, match="expected the columns slice_file_name, fsID"):
        load("urbansound8k")
