"""CIFAR's pickles read without unpickling: what is plain comes back, and nothing else does anything at all."""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewfed.data.limits import Limits
from fewfed.data.readers import safe_pickle
from fewfed.data.readers.safe_pickle import load_plain
from fewfed.errors import DataError

KINDS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ">i4", ">f8"]


def read(folder: Path, content: bytes) -> Any:
    (folder / "batch").write_bytes(content)
    return load_plain(folder / "batch")


def same(one: Any, other: Any) -> bool:
    """Equal in value and type, whatever the byte order."""
    if isinstance(one, np.ndarray):
        alike = isinstance(other, np.ndarray) and one.dtype.newbyteorder("=") == other.dtype.newbyteorder("=")
        return alike and one.shape == other.shape and np.array_equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or one != one)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    order = draw(st.sampled_from("CF"))
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(draw(st.sampled_from(KINDS)), order=order)


TEXT = st.text(max_size=20) | st.binary(max_size=20)
PLAIN = st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats() | TEXT | arrays()
CONTENTS = st.dictionaries(
    TEXT,
    st.recursive(
        PLAIN,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(TEXT, inner, max_size=3)
            | st.lists(inner, max_size=4).map(tuple)
        ),
        max_leaves=8,
    ),
    max_size=5,
)


@settings(max_examples=150)
@given(CONTENTS, st.integers(0, 5))
def test_plain_contents_come_back_as_pickle_would_give_them(
    tmp_path_factory: pytest.TempPathFactory, content: dict[Any, Any], protocol: int
) -> None:
    written = pickle.dumps(content, protocol)
    found = read(tmp_path_factory.getbasetemp(), written)
    trusted = pickle.loads(written, encoding="bytes")
    assert same(found, trusted)


def test_a_batch_as_python_2_wrote_it(tmp_path: Path) -> None:
    """By hand, instruction by instruction, as in the published files: protocol 2, text as bytes, NumPy's old module."""
    pixels = bytes(range(256)) * 24
    written = (
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03U\x06labelsq\x04]q\x05(K\x06K\x09e"
        b"U\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09"
        b"(K\x01K\x02M\x00\x0c\x86cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNN"
        b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<i", len(pixels)) + pixels + b"tb"
        b"U\tfilenamesq\x0c]q\x0d(U\x05a.pngq\x0eU\x05b.pngq\x0feu."
    )
    found = read(tmp_path, written)
    assert found[b"batch_label"] == b"training batch 1 of 5"
    assert found[b"labels"] == [6, 9]
    assert found[b"filenames"] == [b"a.png", b"b.png"]
    assert found[b"data"].shape == (2, 3072)
    assert found[b"data"].tobytes() == pixels
    assert same(found, pickle.loads(written, encoding="bytes"))


def test_names_as_python_2_wrote_them_in_text(tmp_path: Path) -> None:
    written = b"(dp1\nS'num_vis'\np2\nI3072\nsS'label_names'\np3\n(lp4\nS'air\\x70lane'\np5\naS\"it's\"\np6\nas."
    assert read(tmp_path, written) == {b"num_vis": 3072, b"label_names": [b"airplane", b"it's"]}
    assert read(tmp_path, written) == pickle.loads(written, encoding="bytes")


def test_an_array_that_is_named_twice_is_one_array(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.uint8)
    for protocol in range(6):
        found = read(tmp_path, pickle.dumps({"a": array, "b": array, "c": [array]}, protocol))
        assert found["a"] is found["b"] is found["c"][0]


class Calls:
    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.reduced = (function, arguments, state) if state is not None else (function, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


RECONSTRUCT = np.empty(0).__reduce__()[0]
U1 = np.dtype("u1")
ATTACKS: dict[str, Any] = {
    "pointers": Calls(np.ndarray, (10,), "O", b"\x41" * 80),
    "pointers in place": Calls(np.ndarray, (10,), np.dtype("O"), b"\x41" * 80),
    "reconstructed objects": Calls(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (2,), np.dtype("O"), False, [1, 2])),
    "objects from bytes": Calls(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (2,), np.dtype("O"), False, b"a" * 16)),
    "too few bytes": Calls(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (1000,), U1, False, b"a")),
    "negative shape": Calls(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (-1, -1), U1, False, b"a")),
    "strides": Calls(np.ndarray, (10,), "u1", b"0123456789", 0, (1 << 40,)),
    "structured": Calls(np.dtype, [("a", "O")]),
    "type with state": Calls(np.dtype, "u1", False, True, state=(3, "|", None, ("a",), {"a": (U1, 0)}, 8, 1, 27)),
    "type with fields": Calls(np.dtype, "V8", False, True, state=(3, "|", None, ("a",), {"a": (U1, 0)}, 8, 1, 27)),
    "view": Calls(np.lib.stride_tricks.as_strided, np.zeros(1), (1 << 40,), (1,)),
    "code": Calls(eval, "1"),
    "lazy": Calls(getattr, "", "upper"),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("protocol", [2, 5])
def test_everything_else_is_refused(tmp_path: Path, attack: str, protocol: int) -> None:
    with pytest.raises(DataError, match=r"batch: the pickle .*: expected plain arrays") as caught:
        read(tmp_path, pickle.dumps({b"label_names": ATTACKS[attack]}, protocol))
    assert "\n" not in str(caught.value)


def test_no_attack_ends_the_process(tmp_path: Path) -> None:
    """In a process of their own, through the reader, so that a crash is seen; before, the first one was a SIGSEGV."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        content = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1]}
        (folder / name).write_bytes(pickle.dumps(content, 2))
    for number, attack in enumerate(ATTACKS.values()):
        (tmp_path / f"attack{number}").write_bytes(pickle.dumps({b"label_names": attack}, 2))
    code = """
import shutil, sys
from pathlib import Path
from fewfed.data.readers.cifar import read_cifar10
from fewfed.data.readers.options import DataOptions
from fewfed.errors import DataError
root = Path(sys.argv[1])
for attack in sorted(root.glob("attack*")):
    shutil.copy(attack, root / "cifar-10-batches-py" / "batches.meta")
    try:
        read_cifar10(root / "cifar-10-batches-py", DataOptions(), 0)
    except DataError as error:
        print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["refused"] * len(ATTACKS)), done.stderr[-2000:]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "cannot be read"),
        (b".", "cannot be read"),
        (b"}", "cannot be read"),
        (b"\x80\x04\x95", "cannot be read"),
        (b"(" * 1000, "nested more than"),
        (b"}" + b"0", "instruction 0x30"),
        (b"(I" + b"9" * 100_000 + b"\nl.", "very long number"),
        (b"\x8b\xff\xff\xff\x7f.", "very long number"),
        (b"X\xff\xff\xff\xff.", "cannot be read"),
        (b"\x8e" + b"\xff" * 8 + b".", "cannot be read"),
        (b"T\xff\xff\xff\xff.", "cannot be read"),
        (b"}I1\nI2\ns.", "keys are not text"),
        (b"cnumpy\ndtype\n.", "part of an array"),
        (b"]cnumpy\ndtype\na.", "part of an array"),
        (b"h\x05.", "cannot be read"),
        (b"I1\np-1\n.", "cannot be read"),
        (b"cos\nsystem\n.", "could run code"),
        (b"\x8c\x02os\x8c\x06system\x93.", "could run code"),
        (b"ios\nsystem\n.", "instruction 0x69"),
        (b"\x97.", "instruction 0x97"),
    ],
)
def test_damaged_and_odd_pickles(tmp_path: Path, content: bytes, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        read(tmp_path, content)


def test_small_pickles_that_grow_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The same text made into bytes again and again.
    again = b"c_codecs\nencode\nq\x01X\x00\x00\x01\x00" + b"a" * 65536 + b"q\x02X\x06\x00\x00\x00latin1\x86q\x03"
    with pytest.raises(DataError, match="repeats its content"):
        read(tmp_path, b"(" + again + b"h\x01h\x03R" * 1000 + b"l.")
    # Lists of lists of lists: two to the power of ninety leaves, if anybody counted them.
    doubling = b"]q\x00" + b"".join(b"(h%ch%clq%c" % (n, n, n + 1) for n in range(90)) + b"."
    start = time.perf_counter()
    assert len(read(tmp_path, doubling)) == 2
    assert time.perf_counter() - start < 1
    monkeypatch.setattr(safe_pickle, "MOST_STEPS", 1000)
    with pytest.raises(DataError, match="more than 1000 instructions"):
        read(tmp_path, b"]" * 2000 + b".")


def test_a_pickle_larger_than_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "batch").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(DataError, match="expected at most 5 bytes"):
        load_plain(tmp_path / "batch", Limits(most_bytes=5))
