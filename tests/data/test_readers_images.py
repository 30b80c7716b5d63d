"""Image layouts: CIFAR pickles, idx files, image folders, office domains, MedMNIST."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fewfed.data.sources import DataOptions, load
from fewfed.errors import DataError
from fewfed.runs.scaling import apply_known

RAW = DataOptions(normalise="none")


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FEWFED_DATA", str(tmp_path))
    return tmp_path


def write_cifar10(root: Path, protocol: int = 2, images: int = 20) -> dict[str, tuple[np.ndarray, list[int]]]:
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    rng = np.random.default_rng(0)
    written = {}
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        pixels = rng.integers(256, size=(images, 3072), dtype=np.uint8)
        labels = [int(label) for label in rng.integers(10, size=images)]
        with (folder / name).open("wb") as file:
            pickle.dump({b"data": pixels, b"labels": labels, b"batch_label": b"any"}, file, protocol=protocol)
        written[name] = pixels, labels
    with (folder / "batches.meta").open("wb") as file:
        pickle.dump({b"label_names": [b"plane", b"car"]}, file, protocol=protocol)
    return written


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_cifar10_batches_come_back_pixel_by_pixel(data_folder: Path, protocol: int) -> None:
    written = write_cifar10(data_folder, protocol)
    dataset = load("cifar10", options=RAW)
    assert dataset.shape == (3, 32, 32)
    assert (len(dataset.train), len(dataset.test), dataset.classes) == (100, 20, 10)
    assert dataset.class_names == ("plane", "car")
    pixels, labels = written["data_batch_3"]
    red, green, blue = pixels[7, :1024], pixels[7, 1024:2048], pixels[7, 2048:]
    expected = np.stack([plane.reshape(32, 32) for plane in (red, green, blue)]) / 255
    np.testing.assert_allclose(dataset.train.x[47].numpy(), expected, atol=1e-6)
    assert dataset.train.y[40:60].tolist() == labels
    assert dataset.test.y.tolist() == written["test_batch"][1]


def test_cifar10_pickles_of_python_2_are_read(data_folder: Path) -> None:
    write_cifar10(data_folder)
    # The published files name numpy's old module, which this numpy may no longer write by itself.
    for file in (data_folder / "cifar-10-batches-py").glob("*_batch*"):
        old = file.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        assert b"cnumpy.core.multiarray\n_reconstruct" in old
        file.write_bytes(old)
    assert len(load("cifar10").train) == 100


def test_cifar10_is_scaled_with_the_released_constants(data_folder: Path) -> None:
    write_cifar10(data_folder)
    plain, scaled = load("cifar10", options=RAW), apply_known(load("cifar10"), DataOptions())
    mean = torch.tensor([0.49139968, 0.48215827, 0.44653124]).view(3, 1, 1)
    std = torch.tensor([0.24703233, 0.24348505, 0.26158768]).view(3, 1, 1)
    torch.testing.assert_close(scaled.test.x, (plain.test.x - mean) / std)


def test_cifar100_takes_fine_labels(data_folder: Path) -> None:
    folder = data_folder / "cifar-100-python"
    folder.mkdir()
    for part, offset in (("train", 0), ("test", 50)):
        content = {
            b"data": np.full((6, 3072), 51, np.uint8),
            b"fine_labels": [offset + i for i in range(6)],
            b"coarse_labels": [0] * 6,
        }
        with (folder / part).open("wb") as file:
            pickle.dump(content, file, protocol=2)
    dataset = load("cifar100", options=RAW)
    assert dataset.classes == 100
    assert dataset.test.y.tolist() == [50, 51, 52, 53, 54, 55]
    assert torch.allclose(dataset.train.x, torch.tensor(0.2))


class Malicious:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (Path.touch, (self.target,))


def test_a_malicious_pickle_does_not_run(data_folder: Path) -> None:
    write_cifar10(data_folder)
    evidence = data_folder / "evidence"
    bad = data_folder / "cifar-10-batches-py" / "data_batch_2"
    bad.write_bytes(pickle.dumps({b"data": Malicious(evidence), b"labels": []}))
    with pytest.raises(DataError, match="could run code"):
        load("cifar10")
    assert not evidence.exists()
    pickle.loads(bad.read_bytes())
    assert evidence.exists(), "the pickle is harmful indeed where it is trusted"


@pytest.mark.parametrize(
    "call", [b"cbuiltins\neval\n(S'1'\ntR.", b"cposix\nsystem\n(S'true'\ntR.", b"c_codecs\nencode\n(Vab\nVrot13\ntR."]
)
def test_other_calls_in_a_pickle_are_refused(data_folder: Path, call: bytes) -> None:
    write_cifar10(data_folder)
    (data_folder / "cifar-10-batches-py" / "data_batch_1").write_bytes(call)
    with pytest.raises(DataError, match="expected plain arrays"):
        load("cifar10")


def test_damaged_cifar_batches(data_folder: Path) -> None:
    write_cifar10(data_folder)
    batch = data_folder / "cifar-10-batches-py" / "data_batch_4"
    whole = batch.read_bytes()
    batch.write_bytes(whole[:500])
    with pytest.raises(DataError, match="data_batch_4 cannot be read"):
        load("cifar10")
    batch.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(DataError, match="no entry 'data'"):
        load("cifar10")
    batch.write_bytes(pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, protocol=4))
    with pytest.raises(DataError, match="2 images but 1 labels"):
        load("cifar10")
    batch.write_bytes(pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 10]}, protocol=4))
    with pytest.raises(DataError, match="label 10: expected 0 to 9"):
        load("cifar10")
    batch.unlink()
    with pytest.raises(DataError, match="data_batch_4 is missing"):
        load("cifar10")


def write_idx(path: Path, array: np.ndarray, zipped: bool) -> None:
    raw = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw) if zipped else raw)


def write_mnist(folder: Path, zipped: bool, dot: str = "-") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    ending = "-ubyte.gz" if zipped else "-ubyte"
    written = {}
    for part, count in (("train", 12), ("t10k", 5)):
        written[f"{part} x"] = rng.integers(256, size=(count, 28, 28), dtype=np.uint8)
        written[f"{part} y"] = rng.integers(10, size=count, dtype=np.uint8)
        write_idx(folder / f"{part}-images{dot}idx3{ending}", written[f"{part} x"], zipped)
        write_idx(folder / f"{part}-labels{dot}idx1{ending}", written[f"{part} y"], zipped)
    return written


@pytest.mark.parametrize(
    ("name", "place", "zipped", "dot"),
    [
        ("mnist", "mnist", True, "-"),
        ("mnist", "MNIST/raw", False, "."),
        ("fashion-mnist", "fashion-mnist", True, "-"),
        ("fashion-mnist", "FashionMNIST/raw", False, "-"),
    ],
)
def test_idx_files_come_back(data_folder: Path, name: str, place: str, zipped: bool, dot: str) -> None:
    written = write_mnist(data_folder / place, zipped, dot)
    dataset = load(name, options=RAW)
    np.testing.assert_allclose(dataset.train.x[:, 0].numpy() * 255, written["train x"], atol=1e-4)
    np.testing.assert_allclose(dataset.test.x[:, 0].numpy() * 255, written["t10k x"], atol=1e-4)
    assert dataset.train.y.tolist() == written["train y"].tolist()
    assert dataset.test.y.tolist() == written["t10k y"].tolist()
    assert dataset.classes == len(dataset.class_names) == 10


def test_images_are_resized_on_request(data_folder: Path) -> None:
    write_mnist(data_folder / "mnist", zipped=False)
    assert load("mnist", options=DataOptions(image_size=14)).shape == (1, 14, 14)


def test_damaged_idx_files(data_folder: Path) -> None:
    write_mnist(data_folder / "mnist", zipped=True)
    labels = data_folder / "mnist" / "train-labels-idx1-ubyte.gz"
    whole = labels.read_bytes()
    for damaged, sentence in [
        (whole[:15], "cannot be read"),
        (b"no gzip", "cannot be read"),
        (gzip.compress(b"\0\0\x0d\x01\0\0\0\x00"), "not an idx file of bytes"),
        (gzip.compress(b"\0\0\x08\x03\0\0"), "ends inside its header"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x0cabc"), "holds 3 bytes of content: expected 12"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x03abc"), r"expected \(n, height, width\) and \(n,\)"),
    ]:
        labels.write_bytes(damaged)
        with pytest.raises(DataError, match=sentence):
            load("mnist")
    labels.unlink()
    with pytest.raises(DataError, match="train-labels-idx1-ubyte"):
        load("mnist")


def paint(path: Path, colour: int | tuple[int, int, int], size: tuple[int, int] = (6, 4), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def test_image_folder_keeps_colours_classes_and_axes(tmp_path: Path) -> None:
    root = tmp_path / "pets"
    for index in range(5):
        paint(root / "dog" / f"{index}.png", (255, 51 * index, 0))
        paint(root / "cat" / f"{index}.png", (0, 51 * index, 255))
    dataset = load(str(root), options=RAW)
    assert dataset.name == "pets"
    assert dataset.class_names == ("cat", "dog")
    assert dataset.shape == (3, 4, 6)
    assert (len(dataset.train), len(dataset.test)) == (8, 2)
    assert sorted(dataset.test.y.tolist()) == [0, 1]
    for part in (dataset.train, dataset.test):
        assert torch.equal(part.x[:, 0, 0, 0], part.y.float())
        assert torch.equal(part.x[:, 2, 0, 0], 1 - part.y.float())


def test_image_folder_with_its_own_test_part(tmp_path: Path) -> None:
    root = tmp_path / "scans"
    for part, shade in (("train", 10), ("test", 20)):
        for label in ("a", "b"):
            paint(root / part / label / "one.png", shade, mode="L")
    dataset = load(str(root), options=RAW)
    assert dataset.shape == (1, 4, 6)
    assert torch.allclose(dataset.train.x, torch.tensor(10 / 255))
    assert torch.allclose(dataset.test.x, torch.tensor(20 / 255))
    paint(root / "test" / "c" / "one.png", 3, mode="L")
    with pytest.raises(DataError, match="class 'c' that train lacks"):
        load(str(root))


def test_sixteen_bit_images_keep_their_scale(tmp_path: Path) -> None:
    for label in ("a", "b"):
        for index in range(2):
            path = tmp_path / "deep" / label / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 4), 13107, np.uint16)).save(path)
    assert torch.allclose(load(str(tmp_path / "deep"), options=RAW).train.x, torch.tensor(0.2))


def test_images_of_different_sizes_need_a_common_one(tmp_path: Path) -> None:
    for label in ("a", "b"):
        paint(tmp_path / "mixed" / label / "0.png", 9, (4, 4), "L")
        paint(tmp_path / "mixed" / label / "1.jpg", (9, 9, 9), (8, 4))
    with pytest.raises(DataError, match=r"4 x 4, .* 8 x 4.*--size PIXELS"):
        load(str(tmp_path / "mixed"))
    assert load(str(tmp_path / "mixed"), options=DataOptions(image_size=5)).shape == (3, 5, 5)


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    for index in range(3):
        paint(tmp_path / "bad" / "a" / f"{index}.png", 9, (64, 64), "L")
    (tmp_path / "bad" / "a" / "3.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"3\.png cannot be read as an image"):
        load(str(tmp_path / "bad"))
    rng = np.random.default_rng(0)
    noise = tmp_path / "bad" / "a" / "3.png"
    Image.fromarray(rng.integers(256, size=(64, 64), dtype=np.uint8)).save(noise)
    noise.write_bytes(noise.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"3\.png cannot be read as an image"):
        load(str(tmp_path / "bad"))


def test_office_reads_domains_at_256_and_splits_within_each(data_folder: Path) -> None:
    shades = {"amazon": 0, "caltech": 85, "dslr": 170, "webcam": 255}
    counts = {"amazon": 10, "caltech": 6, "dslr": 5, "webcam": 5}
    for domain, shade in shades.items():
        for label in ("bike", "mug"):
            for index in range(counts[domain]):
                paint(data_folder / "office_caltech_10" / domain / label / f"{index:02}.png", (shade,) * 3, (30, 20))
    dataset = load("office")
    assert dataset.shape == (3, 256, 256)
    assert dataset.class_names == ("bike", "mug")
    assert dataset.group_names["domain"] == ("amazon", "caltech", "dslr", "webcam")
    domain_of_pixel = (dataset.train.x[:, 0, 0, 0] * 3).round().long().numpy()
    np.testing.assert_array_equal(dataset.groups["domain"], domain_of_pixel)
    tested = np.bincount((dataset.test.x[:, 0, 0, 0] * 3).round().long().numpy())
    assert tested.tolist() == [4, 3, 2, 2], "a fifth of each domain, rounded up"
    assert float(dataset.train.x.min()) == 0
    assert float(dataset.train.x.max()) == 1
    small = load("office", options=DataOptions(image_size=8))
    assert small.shape == (3, 8, 8)


def test_office_names_a_missing_domain(data_folder: Path) -> None:
    paint(data_folder / "office_caltech_10" / "amazon" / "mug" / "0.png", (0, 0, 0))
    with pytest.raises(DataError, match="no folder 'caltech'"):
        load("office")


def test_pneumonia_comes_back(data_folder: Path) -> None:
    rng = np.random.default_rng(2)
    arrays = {}
    for part, count in (("train", 8), ("val", 2), ("test", 4)):
        arrays[f"{part}_images"] = rng.integers(256, size=(count, 28, 28), dtype=np.uint8)
        arrays[f"{part}_labels"] = rng.integers(2, size=(count, 1), dtype=np.uint8)
    np.savez(data_folder / "pneumoniamnist.npz", **arrays)
    dataset = load("pneumonia", options=RAW)
    assert (len(dataset.train), len(dataset.test)) == (8, 4)
    np.testing.assert_allclose(dataset.train.x[:, 0].numpy() * 255, arrays["train_images"], atol=1e-4)
    assert dataset.test.y.tolist() == arrays["test_labels"][:, 0].tolist()
    del arrays["test_labels"]
    np.savez(data_folder / "pneumoniamnist.npz", **arrays)
    with pytest.raises(DataError, match="no array 'test_labels'"):
        load("pneumonia")
