"""A digest of everything a data set is read from: any change is seen, and nothing is read twice."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fewfed.data import fingerprint as module
from fewfed.data.fingerprint import digest_file, fingerprint
from fewfed.data.readers.options import DataOptions
from fewfed.data.sources import files, load, names
from fewfed.errors import DataError

PLAIN = DataOptions()


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FEWFED_DATA", str(tmp_path))
    # Files of a test are always young; what that means is tested by itself.
    monkeypatch.setattr(module, "SETTLED_SECONDS", -1e9)
    return tmp_path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files whose content was asked for."""
    asked: list[Path] = []
    opened = module.open_regular

    def open_and_tell(path: Path, *rest: object) -> object:
        asked.append(path)
        return opened(path, *rest)

    monkeypatch.setattr(module, "open_regular", open_and_tell)
    return asked


def own(path: Path, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    np.savez(path, x=rng.random((40, 5)), y=np.arange(40) % 4)
    return path


def test_the_same_content_has_the_same_digest_wherever_it_lies(tmp_path: Path) -> None:
    one, other = own(tmp_path / "a.npz"), tmp_path / "deep" / "b.npz"
    other.parent.mkdir()
    shutil.copy(one, other)
    assert fingerprint(str(one), PLAIN) == fingerprint(str(other), PLAIN) == digest_file(one)
    assert len(digest_file(one)) == 64
    assert fingerprint(str(own(tmp_path / "c.npz", seed=1)), PLAIN) != digest_file(one)


def test_nothing_is_read_the_second_time(tmp_path: Path, reads: list[Path]) -> None:
    path = own(tmp_path / "a.npz")
    first = fingerprint(str(path), PLAIN)
    assert reads
    reads.clear()
    assert fingerprint(str(path), PLAIN) == first
    (tmp_path / "link.npz").symlink_to(path)
    assert fingerprint(str(tmp_path / "link.npz"), PLAIN) == first
    assert reads == []


def test_a_flipped_bit_is_seen_even_if_size_and_time_are_as_before(tmp_path: Path) -> None:
    path = own(tmp_path / "a.npz")
    first, before = digest_file(path), path.stat()
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    time.sleep(0.05)  # A system's clock for files may tick slowly; files that young are read again in any case.
    path.write_bytes(raw)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    changed = digest_file(path)
    assert changed != first
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    assert digest_file(path) == first


def test_another_file_under_the_same_name_is_seen(tmp_path: Path) -> None:
    path = own(tmp_path / "a.npz")
    first, before = digest_file(path), path.stat()
    os.replace(own(tmp_path / "b.npz", seed=1), path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest_file(path) != first


def test_young_files_are_read_again(tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two changes within one tick of the clock leave the same time."""
    monkeypatch.setattr(module, "SETTLED_SECONDS", 60.0)
    path = own(tmp_path / "a.npz")
    digest_file(path)
    reads.clear()
    digest_file(path)
    assert reads
    assert not (tmp_path / "cache" / "fewfed" / "digests.json").exists()


def test_pieces_are_put_together_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 100)
    found = set()
    for content in (
        b"",
        b"a" * 99,
        b"a" * 100,
        b"a" * 101,
        b"a" * 100 + b"b" * 100,
        b"b" * 100 + b"a" * 100,
        b"a" * 1001,
    ):
        (tmp_path / "file").write_bytes(content)
        found.add(digest_file(tmp_path / "file"))
        assert digest_file(tmp_path / "file") in found
    assert len(found) == 7


def damage(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"version": 1}',
        b'{"version": 1, "entries": {"a": 5}}',
        b'{"entries": []}',
    ],
)
def test_a_damaged_memory_costs_time_only(tmp_path: Path, content: bytes, reads: list[Path]) -> None:
    path = own(tmp_path / "a.npz")
    first = digest_file(path)
    damage(tmp_path / "cache" / "fewfed" / "digests.json", content)
    reads.clear()
    assert digest_file(path) == first
    assert reads
    reads.clear()
    assert digest_file(path) == first
    assert not reads, "and is mended on the way"


def test_of_a_partly_damaged_memory_only_digests_are_believed(tmp_path: Path) -> None:
    path = own(tmp_path / "a.npz")
    first = digest_file(path)
    memory = tmp_path / "cache" / "fewfed" / "digests.json"
    content = json.loads(memory.read_text())
    key = str(path.resolve())
    content["entries"][key][1] = "short"
    memory.write_text(json.dumps(content))
    assert digest_file(path) == first


def test_an_unwritable_memory_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = own(tmp_path / "a.npz")
    first = digest_file(path)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert digest_file(path) == first
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "full"))
    (tmp_path / "full" / "fewfed" / "digests.json").mkdir(parents=True)
    assert digest_file(path) == first
    assert [entry.name for entry in (tmp_path / "full" / "fewfed").iterdir()] == ["digests.json"], (
        "nothing is left over"
    )


def test_the_memory_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[Path]) -> None:
    monkeypatch.setattr(module, "MOST_REMEMBERED", 3)
    paths = [own(tmp_path / f"{number}.npz", number) for number in range(5)]
    for path in paths:
        digest_file(path)
    reads.clear()
    for path in paths[2:]:
        digest_file(path)
    assert reads == [], "the latest are known"
    digest_file(paths[0])
    assert reads == [paths[0]]


def test_digits_have_no_files_of_the_user() -> None:
    assert fingerprint("digits", PLAIN) == ""


def test_missing_data_and_special_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not on this machine"):
        fingerprint("mnist", PLAIN)
    with pytest.raises(DataError, match="there is no file"):
        fingerprint(str(tmp_path / "a.npz"), PLAIN)
    (tmp_path / "zero.npz").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="is a device"):
        fingerprint(str(tmp_path / "zero.npz"), PLAIN)


# --- every layout: each file that is read counts, and no other -----------------------------------------------------


def class_folders(root: Path) -> str:
    for label in "ab":
        for number in range(3):
            (root / "own" / label).mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4), number).save(root / "own" / label / f"{number}.png")
    return str(root / "own")


def parts_of_classes(root: Path) -> str:
    for part in ("train", "test"):
        shutil.move(class_folders(root / "any"), root / "both" / part)
    return str(root / "both")


def sites(root: Path) -> str:
    for site in ("one", "two"):
        for part in ("images", "masks"):
            (root / "sites" / site / part).mkdir(parents=True)
            for number in range(5):
                Image.new("L", (4, 4), number % 2).save(root / "sites" / site / part / f"{number}.png")
    return str(root / "sites")


def csv_parts(root: Path) -> str:
    (root / "tables").mkdir()
    for part in ("train", "test"):
        (root / "tables" / f"{part}.csv").write_text(f"a,label\n{len(part)},0\n2,1\n")
    return str(root / "tables")


def parquet_parts(root: Path) -> str:
    (root / "columns").mkdir()
    for part in ("train", "test"):
        pq.write_table(pa.table({"a": [1.0, len(part)], "label": [0, 1]}), root / "columns" / f"{part}.parquet")
    return str(root / "columns")


def saved(root: Path) -> str:
    for part in ("train", "test"):
        folder = root / "saved" / part
        folder.mkdir(parents=True)
        table = pa.table({"a": [1.0, len(part)], "label": [0, 1]})
        with pa.ipc.new_stream(str(folder / "data.arrow"), table.schema) as writer:
            writer.write_table(table)
        (folder / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    (root / "saved" / "dataset_dict.json").write_text("{}")
    return str(root / "saved")


def office(root: Path) -> str:
    for domain in ("amazon", "caltech", "dslr", "webcam"):
        class_folders(root / "office_caltech_10" / domain)
        for label in "ab":
            shutil.move(
                root / "office_caltech_10" / domain / "own" / label, root / "office_caltech_10" / domain / label
            )
        (root / "office_caltech_10" / domain / "own").rmdir()
    return "office"


def pneumonia(root: Path) -> str:
    images = np.zeros((4, 28, 28), np.uint8)
    arrays = {f"{part}_images": images for part in ("train", "test")}
    np.savez(root / "pneumoniamnist.npz", train_labels=[0, 1, 0, 1], test_labels=[0, 1, 0, 1], **arrays)
    return "pneumonia"


LAYOUTS = [class_folders, parts_of_classes, sites, csv_parts, parquet_parts, saved, office, pneumonia]


@pytest.mark.parametrize("make", LAYOUTS, ids=lambda make: make.__name__)
def test_every_file_of_a_layout_counts_and_no_other(
    tmp_path: Path, make: Callable[[Path], str], reads: list[Path]
) -> None:
    name = make(tmp_path)
    load(name, options=DataOptions(image_size=8) if name == "office" else PLAIN)
    place, found = files(name, PLAIN)
    first = fingerprint(name, PLAIN)
    assert set(reads) == set(found)
    reads.clear()
    (place / "notes.txt").write_text("nobody reads this")
    assert fingerprint(name, PLAIN) == first
    assert reads == []
    for file in {found[0], found[-1]}:
        whole = file.read_bytes()
        file.write_bytes(whole + b" ")
        assert fingerprint(name, PLAIN) != first
        file.write_bytes(whole)
    assert fingerprint(name, PLAIN) == first


def test_the_files_of_known_sets(tmp_path: Path) -> None:
    """By name, because what they read is fixed."""
    listed = {
        "cifar10": ("cifar-10-batches-py", [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch", "batches.meta"]),
        "cifar100": ("cifar-100-python", ["train", "test", "meta"]),
        "fashion-mnist": (
            "fashion-mnist",
            [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")],
        ),
        "har": (
            "UCI HAR Dataset",
            ["train/subject_train.txt", "train/y_train.txt", "test/y_test.txt"]
            + [f"{part}/Inertial Signals/body_acc_{axis}_{part}.txt" for part in ("train", "test") for axis in "xyz"],
        ),
    }
    for name, (folder, inner) in listed.items():
        for file in inner:
            damage(tmp_path / folder / file, file.encode())
        damage(tmp_path / folder / "readme", b"")
        assert sorted(files(name, PLAIN)[1]) == sorted(tmp_path / folder / file for file in inner)
        assert fingerprint(name, PLAIN)
    assert set(listed) < set(names())


def test_a_class_under_another_name_is_seen(tmp_path: Path) -> None:
    name = class_folders(tmp_path)
    first = fingerprint(name, PLAIN)
    os.rename(tmp_path / "own" / "a", tmp_path / "own" / "c")
    assert fingerprint(name, PLAIN) != first
    os.rename(tmp_path / "own" / "c", tmp_path / "own" / "a")
    assert fingerprint(name, PLAIN) == first
    os.rename(tmp_path / "own", tmp_path / "elsewhere")
    assert fingerprint(str(tmp_path / "elsewhere"), PLAIN) == first
