"""Small files that claim, or unpack to, far too much: refused quickly, from their headers, with little memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import socket
import struct
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from PIL import Image

from fewfed.data.audio import read_wave
from fewfed.data.limits import FREE_BYTES, Limits, readable
from fewfed.data.readers.opening import open_regular
from fewfed.data.sources import DataOptions, load
from fewfed.errors import ConfigError, DataError
from fewfed.runs.scaling import apply_known

MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEWFED_DATA", str(tmp_path))
    return tmp_path


@contextmanager
def cheap(most_bytes: int = 40 * MEGABYTE) -> Iterator[None]:
    """What happens inside takes no time and little memory."""
    tracemalloc.start()
    start = time.process_time()
    try:
        yield
        assert time.process_time() - start < 2
        assert tracemalloc.get_traced_memory()[1] < most_bytes
    finally:
        tracemalloc.stop()


def refused(path: Path | str, sentence: str, options: DataOptions = DataOptions()) -> None:  # noqa: B008
    with cheap(), pytest.raises((DataError, ConfigError), match=sentence) as caught:
        load(str(path), options=options)
    assert "\n" not in str(caught.value)


def npy(kind: str, shape: str, content: bytes = b"") -> bytes:
    header = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    padded = header + b" " * (63 - (10 + len(header)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded + content


def npz(path: Path, method: int = zipfile.ZIP_DEFLATED, **arrays: bytes) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return path


LABELS = npy("'<i8'", "(4,)", np.array([0, 1, 0, 1]).tobytes())


# --- in all, and by ratio --------------------------------------------------------------------------------------------


def test_limits_are_settings(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((10, 100)), y=np.arange(10) % 2)
    assert load(str(tmp_path / "own.npz"), options=DataOptions(most_bytes=9000)).shape == (100,)
    refused(
        tmp_path / "own.npz", r"takes 8\.\d kB: expected at most 8\.0 kB; set most_bytes", DataOptions(most_bytes=8000)
    )
    refused(tmp_path / "own.npz", "most_bytes = 0: expected >= 1", DataOptions(most_bytes=0))
    refused(tmp_path / "own.npz", "most_ratio = 0.5: expected >= 1", DataOptions(most_ratio=0.5))


def test_the_ratio_counts_from_64_mib_on() -> None:
    limits = Limits(most_bytes=1 << 40, most_ratio=10)
    limits.check("a file", FREE_BYTES, 1)
    limits.check("a file", 10 * FREE_BYTES, FREE_BYTES)
    with pytest.raises(DataError, match=r"a file takes 67\.1 MB but is stored in 1 bytes: expected at most 10 times"):
        limits.check("a file", FREE_BYTES + 1, 1)
    with pytest.raises(DataError, match="10 times as much"):
        limits.check("a file", 10 * FREE_BYTES + 1, FREE_BYTES)
    with pytest.raises(DataError, match="set most_bytes higher"):
        limits.check("a file", (1 << 40) + 1, 1 << 40)
    assert limits.ceiling(0) == FREE_BYTES
    assert Limits(100, float("inf")).ceiling(5) == 100


def test_sizes_are_readable() -> None:
    found = [readable(size) for size in (0, 999, 1000, 2_149_999_999, 10**15, 10**400)]
    assert found == ["0 bytes", "999 bytes", "1.0 kB", "2.1 GB", "1000 TB", "over 10^12 TB"]


# --- special files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet"])
def test_endless_devices_and_pipes_are_refused(tmp_path: Path, suffix: str) -> None:
    for device in ("zero", "urandom", "null"):
        link = tmp_path / f"{device}{suffix}"
        link.symlink_to(f"/dev/{device}")
        refused(link, "is a device: expected a regular file")
    os.mkfifo(tmp_path / f"pipe{suffix}")
    refused(tmp_path / f"pipe{suffix}", "is a pipe: expected a regular file")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / f"s{suffix}"))
        refused(tmp_path / f"s{suffix}", "is a socket: expected a regular file")


def test_a_link_to_a_file_is_followed_and_an_endless_file_read_by_its_size(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("a,label\n" + "1,0\n2,1\n" * 4)
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.txt")
    assert load(str(tmp_path / "link.csv")).shape == (1,)
    (tmp_path / "dangling.csv").symlink_to(tmp_path / "nowhere")
    refused(tmp_path / "dangling.csv", "there is no file or folder")
    if Path("/proc/self/pagemap").exists():
        (tmp_path / "pages.csv").symlink_to("/proc/self/pagemap")
        refused(tmp_path / "pages.csv", "is empty")


def test_special_files_among_those_of_a_set_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte").symlink_to("/dev/zero")
        (folder / f"{part}-labels-idx1-ubyte").symlink_to("/dev/zero")
    refused("mnist", "has no train-images")
    (tmp_path / "pneumoniamnist.npz").symlink_to("/dev/zero")
    refused("pneumonia", "is a device")
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "dataset_info.json").write_text("{}")
    (folder / "data.arrow").symlink_to("/dev/zero")
    refused(folder, "is a device")


def test_what_is_opened_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name may come to mean something else between the look at it and the opening."""
    (tmp_path / "a").write_text("1")
    os.mkfifo(tmp_path / "pipe")
    opened = os.open
    monkeypatch.setattr(os, "open", lambda path, flags: opened(tmp_path / "pipe", flags))
    with pytest.raises(DataError, match="is a pipe"):
        open_regular(tmp_path / "a", Limits())


def test_what_cannot_be_opened_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be opened"):
        open_regular(tmp_path / "missing", Limits())
    with pytest.raises(DataError, match="is a folder"):
        open_regular(tmp_path, Limits())
    for odd in ("x" * 5000 + ".npz", "a\0b.csv", "~nobody-of-that-name/x.csv"):
        refused(odd, "there is no file or folder")
    refused("y" * 5000, "unknown data")


# --- .npz ------------------------------------------------------------------------------------------------------------


def test_an_npz_bomb(tmp_path: Path) -> None:
    """Two gigabytes in two megabytes: the ratio of the file in the report."""
    path = npz(tmp_path / "bomb.npz", zipfile.ZIP_STORED, y=LABELS, x=npy("'|u1'", "(4, 500000000)", bytes(2_000_000)))
    raw = path.read_bytes()
    directory = raw.rindex(b"PK\x01\x02")
    claimed = struct.pack("<I", 2_000_000_128)
    path.write_bytes(raw[: directory + 24] + claimed + raw[directory + 28 :])
    refused(path, r"bomb\.npz takes 2\.0 GB but is stored in 2\.0 MB: expected at most 200 times as much")
    np.savez_compressed(path, x=np.zeros((4, 20_000_000), np.uint8), y=[0, 1, 0, 1])
    refused(path, r"bomb\.npz takes 80\.0 MB but is stored in 7\d\.\d kB")
    assert load(str(path), options=DataOptions(most_ratio=2000, normalise="none")).shape == (20_000_000,)


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (npy("'<f8'", "(1000000000000, 1)"), "takes 8.0 TB: expected at most 17.1 GB"),
        (npy("'<f8'", "(100, 1)", bytes(8)), "'x' does not fill its shape"),
        (npy("'<f8'", "(1, 1)", bytes(800)), "'x' does not fill its shape"),
        (npy("'<U0'", "(1000000000000,)"), "'x' is of type <U0"),
        (npy("'<f8'", "(1000000000000, 0)"), "at least one number in every row"),
        (npy("'<f8'", "(-4, 1)", bytes(32)), "'x' holds no plain numbers"),
        (npy("'<f8'", "(" + "1, " * 40 + ")", bytes(8)), "with 40 axes"),
        (npy("[('a', '<f8')]", "(4,)", bytes(32)), "'x' holds no plain numbers"),
        (npy("__import__('os')", "(4,)", bytes(32)), "'x' holds no plain numbers"),
        (npy("'f8,f8'", "(4,)", bytes(64)), "'x' is of type f8,f8"),
        (npy("'|O'", "(4,)", bytes(32)), "'x' .* holds Python objects"),
        (npy("'<U99999999999'", "(4,)"), "'x' is of type"),
        (npy("'<f8'", "(4, 1)", bytes(32))[:-20], "'x' does not fill its shape"),
        (b"\x93NUMPY\x09\x00" + bytes(100), "'x' is no array"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f", "'x' has a header of 2147483647 bytes"),
        (b"", "'x' is no array"),
    ],
)
def test_headers_in_an_npz_that_lie(tmp_path: Path, x: bytes, sentence: str) -> None:
    refused(npz(tmp_path / "own.npz", x=x, y=LABELS), sentence)


def test_arrays_of_other_writers_are_read(tmp_path: Path) -> None:
    header = b'{"shape": (4L, 2L), "fortran_order": True, "descr": ">i2"}'
    for version, size in ((b"\x01\x00", "<H"), (b"\x02\x00", "<I"), (b"\x03\x00", "<I")):
        content = np.arange(8, dtype=">i2").tobytes()
        x = b"\x93NUMPY" + version + struct.pack(size, len(header)) + header + content
        path = npz(tmp_path / "own.npz", x=x, y=LABELS)
        dataset = load(str(path), options=DataOptions(normalise="none"))
        rows = sorted([*dataset.train.x.tolist(), *dataset.test.x.tolist()])
        assert rows == [[0, 4], [1, 5], [2, 6], [3, 7]]


def declared(raw: bytes, central: int, local: int, value: bytes) -> bytes:
    """Every entry of a .zip with a field of its two headers changed."""
    changed = bytearray(raw)
    for mark, offset in ((b"PK\x01\x02", central), (b"PK\x03\x04", local)):
        place = changed.find(mark)
        while place >= 0:
            changed[place + offset : place + offset + len(value)] = value
            place = changed.find(mark, place + 4)
    return bytes(changed)


def test_encrypted_and_strangely_packed_npz(tmp_path: Path) -> None:
    x = npy("'<f8'", "(4, 1)", bytes(32))
    raw = npz(tmp_path / "own.npz", zipfile.ZIP_STORED, x=x, y=LABELS).read_bytes()
    (tmp_path / "own.npz").write_bytes(declared(raw, 8, 6, b"\x01"))
    refused(tmp_path / "own.npz", r"'x\.npy' is encrypted: expected one without a password")
    (tmp_path / "own.npz").write_bytes(declared(raw, 10, 8, b"\x63"))
    refused(tmp_path / "own.npz", "packed in an unknown way .method 99.")
    refused(npz(tmp_path / "own.npz", zipfile.ZIP_LZMA, x=x, y=LABELS), "packed in an unknown way")
    refused(npz(tmp_path / "own.npz", **{f"a{n}": x for n in range(1001)}), "1001 arrays: expected at most 1000")


def test_an_entry_that_is_longer_than_it_says_is_read_no_further(tmp_path: Path) -> None:
    long = npy("'<f8'", "(4, 1)", bytes(32))
    path = npz(tmp_path / "own.npz", x=long + bytes(50 * MEGABYTE), y=LABELS)
    raw = path.read_bytes()
    path.write_bytes(raw.replace(struct.pack("<I", len(long) + 50 * MEGABYTE), struct.pack("<I", len(long))))
    refused(path, "cannot be read")


def test_text_in_an_npz_that_is_no_text(tmp_path: Path) -> None:
    x = npy("'<f8'", "(3, 1)", bytes(24))
    for codes in (b"\xff\xff\xff\x7f" * 3, b"\x00\xd8\x00\x00" * 3):
        refused(npz(tmp_path / "own.npz", x=x, y=npy("'<U1'", "(3,)", codes)), "'y' holds text that is none")


def test_a_row_of_a_million_columns_is_scaled_at_once(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(5, 3, (4, 1_000_000)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=[0, 1, 0, 1], x_test=x[:1], y_test=[0])
    start = time.process_time()
    found = apply_known(load(str(tmp_path / "own.npz")), DataOptions()).train.x[:, :1000].numpy()
    assert time.process_time() - start < 5
    few = x[:, :1000].astype(np.float64)
    np.testing.assert_allclose(found, (few - few.mean(0)) / few.std(0), atol=1e-4)


# --- tables ----------------------------------------------------------------------------------------------------------


def test_one_long_cell_does_not_make_every_cell_long(tmp_path: Path) -> None:
    for row in ("1," + "z" * 100_000, "1" * 100_000 + ",0", "1" * 1001 + ",0"):
        (tmp_path / "own.csv").write_text("a,label\n" + "1,0\n" * 20_000 + row + "\n")
        refused(tmp_path / "own.csv", "set most_ratio higher|row 20001 holds '111")


def test_a_csv_is_measured_by_its_cells(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("a,label\n" + "1,0\n" * 1000)
    refused(tmp_path / "own.csv", "as cells of text takes", DataOptions(most_bytes=100_000))
    (tmp_path / "own.csv").write_text(",".join(f"c{n}" for n in range(30_000)) + "\n" + "1," * 29_999 + "1\n")
    refused(tmp_path / "own.csv", r"no column 'label' or 'y' \(its columns are c0, .*, c49, \.\.\.\)")


def test_parquet_that_repeats_itself(tmp_path: Path) -> None:
    same = np.zeros(40_000_000, np.int8)
    pq.write_table(pa.table({"a": same, "label": same}), tmp_path / "own.parquet")
    del same
    refused(tmp_path / "own.parquet", "takes 80.0 MB but is stored in")
    text = pa.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), ["x" * 1_000_000])
    pq.write_table(pa.table({"a": np.zeros(20_000), "label": text}), tmp_path / "own.parquet")
    refused(tmp_path / "own.parquet", "set most_bytes higher")
    picture = pa.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), pa.array([b"x" * 1_000_000]))
    table = pa.table({"image": picture, "label": np.zeros(20_000, np.int64)})
    pq.write_table(table, tmp_path / "own.parquet", store_schema=False)
    refused(tmp_path / "own.parquet", "takes .* but is stored in")


def saved(folder: Path, table: Any, compression: str | None = None, file: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    options = pa.ipc.IpcWriteOptions(compression=compression)
    opener = pa.ipc.new_file if file else pa.ipc.new_stream
    with opener(str(folder / "data.arrow"), table.schema, options=options) as writer:
        writer.write_table(table)
    return folder


def test_saved_tables_that_are_packed(tmp_path: Path) -> None:
    good = pa.table({"a": np.arange(6.0), "label": ["a", "b"] * 3})
    for compression in (None, "zstd", "lz4"):
        for file in (False, True):
            assert load(str(saved(tmp_path / "saved", good, compression, file))).class_names == ("a", "b")
    folder = saved(tmp_path / "saved", pa.table({"a": np.zeros(10_000_000), "label": np.zeros(10_000_000)}), "zstd")
    refused(folder, "takes 160 MB but is stored in")
    folder = saved(folder, pa.table({"a": pa.nulls(2**31 - 1), "label": pa.nulls(2**31 - 1)}))
    refused(folder, r"takes 4\.2 GB but is stored in")
    folder = saved(folder, pa.table({"a": np.zeros(1000), "label": np.arange(1000) % 2}), "zstd")
    raw = (folder / "data.arrow").read_bytes()
    assert raw.count(struct.pack("<q", 8000)) == 2
    (folder / "data.arrow").write_bytes(raw.replace(struct.pack("<q", 8000), struct.pack("<q", 1 << 40)))
    refused(folder, "takes 2.1 TB|takes 1.0 TB")


def test_saved_tables_whose_insides_point_outside(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", pa.table({"a": np.zeros(6), "label": ["aaaa", "bbbb"] * 3}))
    raw = (folder / "data.arrow").read_bytes()
    offsets = struct.pack("<7i", 0, 4, 8, 12, 16, 20, 24)
    assert raw.count(offsets) == 1
    (folder / "data.arrow").write_bytes(raw.replace(offsets, struct.pack("<7i", 0, 4, 8, 1 << 30, 16, 20, 24)))
    refused(folder, "expected an undamaged .arrow file")


@pytest.mark.parametrize(
    "state", ["[" * 100_000, '{"_data_files": [{"filename": 5}]}', '{"_data_files": 5}', "[]", "", "\xff"]
)
def test_odd_states_of_saved_tables(tmp_path: Path, state: str) -> None:
    saved(tmp_path / "saved", pa.table({"a": [1.0], "label": [0]}))
    (tmp_path / "saved" / "state.json").write_text(state, encoding="latin1")
    refused(tmp_path / "saved", r"state\.json cannot be read")


# --- pictures and sound ----------------------------------------------------------------------------------------------


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (png(10_000, 10_000), "10000 x 10000 pixels takes 400 MB but is stored in"),
        (png(2**31 - 1, 2**31 - 1), "cannot be read as an image .DecompressionBombError."),
        (png(0, 5), "cannot be read as an image|0 x 5 pixels"),
        (b"P6 0 3 255\n", "cannot be read as an image|pixels"),
        (b"P6 50000 3000 255\n", "50000 x 3000 pixels takes"),
        (b"GIF89a\0\0\0\0\0\0\0;", "cannot be read as an image|pixels"),
        (POSTSCRIPT, "cannot be read as an image"),
    ],
)
def test_pictures_that_claim_too_much(tmp_path: Path, content: bytes, sentence: str) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    for label in "ab":
        for number in range(2):
            (tmp_path / "own" / label).mkdir(parents=True, exist_ok=True)
            (tmp_path / "own" / label / f"{number}.png").write_bytes(content)
    refused(tmp_path / "own", sentence)
    site = tmp_path / "site"
    for part in ("images", "masks"):
        (site / part).mkdir(parents=True)
        for number in range(5):
            Image.new("L", (4, 4)).save(site / part / f"{number}.png")
    (site / "masks" / "0.png").write_bytes(content)
    refused(site, sentence)
    table = pa.table({"image": [content] * 4, "label": [0, 1, 0, 1]})
    pq.write_table(table, tmp_path / "own.parquet")
    refused(tmp_path / "own.parquet", sentence)
    assert limit == Image.MAX_IMAGE_PIXELS, "a setting of the user's, which nobody changes"


def test_images_are_not_blown_up(tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / "own" / label).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8)).save(tmp_path / "own" / label / f"{number}.png")
    refused(tmp_path / "own", "image_size = 1000000: expected >= 0 and <= 16384", DataOptions(image_size=1_000_000))
    refused(tmp_path / "own", r"6 images of 16384 x 16384 pixels takes 19\.3 GB", DataOptions(image_size=16384))
    np.savez(tmp_path / "own.npz", x=np.zeros((9, 4, 4), np.uint8), y=np.arange(9) % 3)
    refused(tmp_path / "own.npz", "9 images of 1000 x 1000", DataOptions(image_size=1000, most_bytes=30 * MEGABYTE))


def wave(rate: int, frames: int) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, np.zeros(frames, np.int16), rate, format="WAV", subtype="PCM_16")
    return out.getvalue()


def test_sounds_that_claim_too_much(tmp_path: Path) -> None:
    path = tmp_path / "sound"
    for rate in (1, 999, 2_000_000, 2**31 - 1):
        path.write_bytes(wave(8000, 100).replace(struct.pack("<I", 8000), struct.pack("<I", rate)))
        with cheap(), pytest.raises(DataError, match=f"has {rate} samples a second"):
            read_wave(path)
    soundfile.write(path, np.zeros(3_000_000, np.int16), 8000, format="FLAC")
    assert path.stat().st_size < 200_000
    with cheap(), pytest.raises(DataError, match=r"3000000 samples of 1 channels takes 84\.0 MB but is stored in"):
        read_wave(path)
    path.write_bytes(wave(8000, 100))
    assert read_wave(path)[0].shape == (1, 100)
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="is a device"):
        read_wave(tmp_path / "zero")


# --- idx -------------------------------------------------------------------------------------------------------------


def idx(*shape: int) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (lambda: idx(1000, 1000, 1000), "takes 1.0 GB but is stored in"),
        (lambda: idx(*[2**32 - 1] * 3), "takes over 10.12 TB"),
        (lambda: idx(*[1] * 255) + b"\0", "has 255 axes"),
        (lambda: idx(2, 2, 2) + bytes(20 * MEGABYTE), "holds more than 8 bytes of content: expected 8"),
        (lambda: idx(2, 0, 2), "expected .n, height, width."),
    ],
)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_files_that_claim_too_much(tmp_path: Path, images: Callable[[], bytes], sentence: str, ending: str) -> None:
    (tmp_path / "mnist").mkdir()
    for part in ("train", "t10k"):
        for stem, content in (("images-idx3", images()), ("labels-idx1", idx(2) + b"\0\1")):
            packed = gzip.compress(content, 1) if ending else content
            (tmp_path / "mnist" / f"{part}-{stem}-ubyte{ending}").write_bytes(packed)
    refused("mnist", sentence)
