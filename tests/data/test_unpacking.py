"""Archives from strangers: what is whole and harmless comes out, everything else is one sentence."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fewfed.data import unpacking
from fewfed.data.limits import Limits
from fewfed.data.unpacking import unpack
from fewfed.errors import DataError

MEGABYTE = 1 << 20


def zip_of(path: Path, method: int = zipfile.ZIP_DEFLATED, **files: bytes) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def tar_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for member, content in members:
            archive.addfile(member, io.BytesIO(content))
    path.write_bytes(gzip.compress(out.getvalue(), 1))
    return path


def member(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size, made.type, made.linkname = size, kind, link
    return made


def refused(archive: Path, sentence: str, limits: Limits | None = None) -> None:
    target = archive.parent / "target"
    target.mkdir(exist_ok=True)
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(DataError, match=sentence) as caught:
        unpack(archive, target, limits)
    assert time.process_time() - start < 2
    assert tracemalloc.get_traced_memory()[1] < 40 * MEGABYTE
    tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert sum(file.stat().st_size for file in target.rglob("*") if file.is_file()) < MEGABYTE


def test_files_and_folders_come_out(tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(3 * MEGABYTE)
    zip_of(tmp_path / "a.zip", **{"set/": b"", "set/a/b": content, "c": b"1"})
    folder = member("set", kind=tarfile.DIRTYPE)
    files = [(member("./set/a/b", len(content)), content), (member("c", 1), b"1")]
    tar_of(tmp_path / "a.tar.gz", (folder, b""), *files)
    for name in ("a.zip", "a.tar.gz"):
        unpack(tmp_path / name, tmp_path / f"from {name}")
        found = {
            str(file.relative_to(tmp_path / f"from {name}")): file.read_bytes() for file in files_in(tmp_path, name)
        }
        assert found == {"set/a/b": content, "c": b"1"}


def files_in(root: Path, name: str) -> list[Path]:
    return [file for file in (root / f"from {name}").rglob("*") if file.is_file()]


@pytest.mark.parametrize("name", ["../a", "/a", "a/../../b", "a/..", ".."])
def test_entries_that_lie_outside(tmp_path: Path, name: str) -> None:
    refused(zip_of(tmp_path / "a.zip", **{name: b"1"}), "was refused: its entry .* lies outside")
    refused(tar_of(tmp_path / "a.tar.gz", (member(name, 1), b"1")), "was refused: its entry .* lies outside")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.tar.gz", "a.zip", "target"]


@pytest.mark.parametrize(
    "odd",
    [
        member("hard", kind=tarfile.LNKTYPE, link="nowhere"),
        member("soft", kind=tarfile.SYMTYPE, link="/etc/passwd"),
        member("pipe", kind=tarfile.FIFOTYPE),
        member("device", kind=tarfile.CHRTYPE),
    ],
    ids=lambda entry: entry.name,
)
def test_links_and_devices(tmp_path: Path, odd: tarfile.TarInfo) -> None:
    refused(tar_of(tmp_path / "a.tar.gz", (odd, b"")), f"'{odd.name}' is a link or a device")


def test_encrypted_and_strangely_packed_entries(tmp_path: Path) -> None:
    raw = zip_of(tmp_path / "a.zip", zipfile.ZIP_STORED, a=b"1").read_bytes()
    place = raw.index(b"PK\x01\x02")
    (tmp_path / "a.zip").write_bytes(raw[: place + 8] + b"\x01" + raw[place + 9 :])
    refused(tmp_path / "a.zip", "'a' is encrypted: expected one without a password")
    (tmp_path / "a.zip").write_bytes(raw[: place + 10] + b"\x63" + raw[place + 11 :])
    refused(tmp_path / "a.zip", "'a' is packed in an unknown way .method 99.")
    refused(zip_of(tmp_path / "a.zip", zipfile.ZIP_BZIP2, a=b"1"), "packed in an unknown way")


def test_zip_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(zip_of(tmp_path / "a.zip", a=bytes(70 * MEGABYTE)), r"a\.zip takes 73\.4 MB but is stored in")
    raw = zip_of(tmp_path / "a.zip", zipfile.ZIP_STORED, a=bytes(1000)).read_bytes()
    place = raw.index(b"PK\x01\x02")
    (tmp_path / "a.zip").write_bytes(raw[: place + 24] + struct.pack("<I", 2**30) + raw[place + 28 :])
    refused(tmp_path / "a.zip", "takes 1.0 GB but is stored in")
    # One packed piece that many entries share.
    (tmp_path / "a.zip").write_bytes(raw)
    refused(
        zip_of(tmp_path / "a.zip", a=bytes(5000), b=bytes(5000)), "takes 10.0 kB: expected at most 9.0 kB", Limits(9000)
    )
    monkeypatch.setattr(unpacking, "MOST_ENTRIES", 3)
    refused(zip_of(tmp_path / "a.zip", **{f"{number}": b"" for number in range(4)}), "more than 3 entries")
    refused(tar_of(tmp_path / "a.tar.gz", *[(member(f"{n}"), b"") for n in range(4)]), "more than 3 entries")


def test_a_zip_entry_that_is_longer_than_it_says(tmp_path: Path) -> None:
    raw = zip_of(tmp_path / "a.zip", a=bytes(50 * MEGABYTE)).read_bytes()
    (tmp_path / "a.zip").write_bytes(raw.replace(struct.pack("<I", 50 * MEGABYTE), struct.pack("<I", 100)))
    refused(tmp_path / "a.zip", "is damaged")


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    return member(name, size, kind).tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (lambda: header("a", 2**30), "takes 1.0 GB but is stored in"),
        (lambda: header("a", 2**40), "takes 1.0 TB: expected at most"),
        (lambda: header("a", 2**70), "expected at most"),
        (lambda: header("a", -512), "is a link or a device|is damaged"),
        (lambda: header("long", 2**30, tarfile.GNUTYPE_LONGNAME), "takes 1.0 GB but is stored in"),
        (lambda: header("long", -512, tarfile.GNUTYPE_LONGNAME), "is damaged"),
        (lambda: header("pax", 2**31, tarfile.XHDTYPE), "takes 2.1 GB but is stored in"),
        (lambda: (header("long", 512, tarfile.GNUTYPE_LONGNAME) + b"x" * 512) * 3000, "is damaged"),
        (lambda: header("a", 100) + bytes(10), "is damaged"),
        (lambda: header("a", 70 * MEGABYTE) + bytes(70 * MEGABYTE), "takes 73.4 MB but is stored in"),
        (lambda: header("a", 3) + b"123" + bytes(509) + header("a/b", 3) + b"123" + bytes(509), "is damaged"),
        (lambda: header("a\udcff" * 300, 1), "has a name that is too long"),
        (lambda: header("a/" * 101, 1), "has a name that is too long"),
        (lambda: b"no archive at all" * 100, "is damaged"),
        (lambda: b"", "is damaged"),
    ],
    ids=range(15),
)
def test_tar_files_that_lie(tmp_path: Path, content: Callable[[], bytes], sentence: str) -> None:
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(content(), 1))
    refused(tmp_path / "a.tar.gz", sentence)


def test_damaged_archives_are_deleted_and_refused_ones_kept(tmp_path: Path) -> None:
    for name in ("a.zip", "a.tar.gz"):
        (tmp_path / name).write_bytes(b"nothing")
        refused(tmp_path / name, "it was deleted, run this again")
        assert not (tmp_path / name).exists()
    refused(zip_of(tmp_path / "a.zip", **{"../a": b"1"}), "was refused")
    assert (tmp_path / "a.zip").exists()


def test_special_files_are_no_archives(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.zip")
    refused(tmp_path / "a.zip", "is a pipe")
    (tmp_path / "a.tar.gz").symlink_to("/dev/zero")
    refused(tmp_path / "a.tar.gz", "is a device")
