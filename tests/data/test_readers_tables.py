"""A user's own files: .npz, .csv, .parquet and saved Hugging Face data sets, and every way they can be wrong."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fewfed.data import audio
from fewfed.data.sources import DataOptions, load
from fewfed.errors import ConfigError, DataError
from fewfed.runs.scaling import apply_known

RAW = DataOptions(normalise="none")


def rows_of(path: Path, options: DataOptions = RAW) -> dict[float, int]:
    """Label by first input, over both parts, for files whose first inputs are all different."""
    dataset = load(str(path), options=options)
    x = torch.cat([dataset.train.x, dataset.test.x]).flatten(1)[:, 0]
    return dict(zip(x.tolist(), torch.cat([dataset.train.y, dataset.test.y]).tolist(), strict=True))


# --- npz -------------------------------------------------------------------------------------------------------------


def test_npz_rows_labels_and_clients_come_back(tmp_path: Path) -> None:
    x = np.arange(40.0).reshape(20, 2)
    y = np.arange(20) % 4
    np.savez(tmp_path / "own.npz", x=x, y=y, client=np.array(["north", "south"] * 10))
    assert rows_of(tmp_path / "own.npz") == {2.0 * i: i % 4 for i in range(20)}
    dataset = load(str(tmp_path / "own.npz"), options=RAW)
    assert (dataset.name, dataset.classes, len(dataset.test)) == ("own", 4, 4)
    assert sorted(dataset.test.y.tolist()) == [0, 1, 2, 3]
    names = np.array(dataset.group_names["client"])[dataset.groups["client"]]
    rows = (dataset.train.x[:, 0] / 2).int().tolist()
    assert names.tolist() == ["south" if row % 2 else "north" for row in rows]


def test_npz_with_its_own_test_part_is_not_split(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.eye(4), y=[0, 1, 0, 1], x_test=np.ones((3, 4)), y_test=[1, 1, 0])
    dataset = load(str(tmp_path / "own.npz"), options=RAW)
    assert torch.equal(dataset.train.x, torch.eye(4))
    assert dataset.test.y.tolist() == [1, 1, 0]


def test_own_hold_out_follows_the_seed(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.arange(50.0), y=np.arange(50) % 2)
    parts = [load(str(tmp_path / "own.npz"), options=RAW, seed=seed).test.x for seed in (0, 0, 1)]
    assert torch.equal(parts[0], parts[1])
    assert not torch.equal(parts[0], parts[2])


def test_own_columns_are_scaled_with_the_training_part(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal([5, -300], [0.1, 40], size=(60, 2)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x[:50], y=np.arange(50) % 2, x_test=x[50:], y_test=np.arange(10) % 2)
    scaled = apply_known(load(str(tmp_path / "own.npz")), DataOptions())
    expected = (x[50:] - x[:50].mean(0, dtype=np.float64)) / x[:50].std(0, dtype=np.float64)
    np.testing.assert_allclose(scaled.test.x.numpy(), expected, atol=1e-3)


@pytest.mark.parametrize(
    ("stored", "shape"), [((6, 8, 9), (1, 8, 9)), ((6, 8, 9, 3), (3, 8, 9)), ((6, 3, 8, 9), (3, 8, 9)), ((6, 5), (5,))]
)
def test_bytes_are_taken_for_pixels(tmp_path: Path, stored: tuple[int, ...], shape: tuple[int, ...]) -> None:
    np.savez(tmp_path / "own.npz", x=np.full(stored, 255, np.uint8), y=np.arange(6) % 2)
    dataset = load(str(tmp_path / "own.npz"), options=RAW)
    assert dataset.shape == shape
    assert float(dataset.train.x.max()) == (255 if len(stored) == 2 else 1)


def test_own_images_can_be_augmented_but_own_tables_cannot(tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", x=np.random.default_rng(0).random((8, 1, 6, 6)), y=np.arange(8) % 2)
    np.savez(tmp_path / "table.npz", x=np.ones((8, 6)), y=np.arange(8) % 2)
    static = DataOptions(augment="static", normalise="none")
    changed = load(str(tmp_path / "images.npz"), options=static)
    assert not torch.equal(changed.train.x, load(str(tmp_path / "images.npz"), options=RAW).train.x)
    with pytest.raises(ConfigError, match="needs image data"):
        load(str(tmp_path / "table.npz"), options=static)


X, Y = np.ones((6, 2)), np.arange(6) % 2
NAN = np.where(np.arange(12).reshape(6, 2) == 7, np.nan, 1.0)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": X}, "no array 'y'"),
        ({"y": Y}, "no array 'x'"),
        ({"x": X, "y": Y[:5]}, "6 inputs but 5 labels"),
        ({"x": X[:0], "y": Y[:0]}, "'y' is empty"),
        ({"x": NAN, "y": Y}, "row 3 holds NaN"),
        ({"x": X * 1e300, "y": Y}, "row 0 holds NaN or infinity"),
        ({"x": X, "y": Y * 0 + 3}, "every row has the label '3'; expected at least two classes"),
        ({"x": X, "y": Y + 0.5}, "label 0.5"),
        ({"x": X, "y": np.where(Y == 1, np.nan, 0)}, "row 1 has label nan"),
        ({"x": X, "y": np.eye(6)}, r"shape \(6, 6\); expected one label a row"),
        ({"x": X, "y": Y.astype(complex)}, "expected whole numbers or text"),
        ({"x": X.astype(str), "y": Y}, "expected a rectangular array of numbers"),
        ({"x": np.array([[1], [1, 2]] * 3, dtype=object), "y": Y}, "'x' .* Python objects"),
        ({"x": X, "y": Y, "client": np.arange(4)}, r"'client' has shape \(4,\) for 6 rows"),
        ({"x": X, "y": Y, "x_test": X}, "only one of x_test and y_test"),
        ({"x": X, "y": Y, "xtest": X}, "did you mean 'x_test'"),
        ({"x": X, "y": Y, "x_test": np.ones((2, 3)), "y_test": [0, 1]}, r"shape \(2,\) but test inputs \(3,\)"),
        ({"x": X, "y": Y, "x_test": NAN, "y_test": Y}, "row 3 holds NaN"),
        ({"x": X[:2], "y": [0, 1]}, "too few to hold any out"),
    ],
)
def test_bad_npz(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=sentence) as caught:
        load(str(tmp_path / "own.npz"))
    assert "\n" not in str(caught.value)


def test_unreadable_npz(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    path.write_bytes(b"")
    with pytest.raises(DataError, match="is empty"):
        load(str(path))
    path.write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(DataError, match="cannot be read"):
        load(str(path))
    path.write_bytes(b"some text")
    with pytest.raises(DataError, match="cannot be read"):
        load(str(path))
    np.savez(path, x=np.random.default_rng(0).random((50, 20)), y=np.arange(50) % 2)
    whole = bytearray(path.read_bytes())
    whole[3000:3100] = bytes(100)
    path.write_bytes(bytes(whole))
    with pytest.raises(DataError, match="cannot be read"):
        load(str(path))
    np.save(tmp_path / "single.npy", X)
    (tmp_path / "single.npy").rename(path)
    with pytest.raises(DataError, match="single unnamed array"):
        load(str(path))


def test_a_site_that_lacks_classes_says_how_many_there_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "site.npz", x=X, y=np.array([1, 1, 1, 4, 4, 4]))
    assert load(str(tmp_path / "site.npz"), options=DataOptions(classes=6)).classes == 6
    with pytest.raises(DataError, match="label 4: expected 0 to 3"):
        load(str(tmp_path / "site.npz"), options=DataOptions(classes=4))


# --- csv -------------------------------------------------------------------------------------------------------------


def test_csv_with_text_labels_and_clients(tmp_path: Path) -> None:
    lines = ["height, weight,label,client"]
    lines += [f"{i},-{i}.5,{'sick' if i % 2 else 'healthy'},{'B' if i > 4 else 'A'}" for i in range(10)]
    (tmp_path / "ward.csv").write_text("\ufeff" + "\n".join(lines) + "\n\n", encoding="utf-8")
    assert rows_of(tmp_path / "ward.csv") == {float(i): i % 2 for i in range(10)}
    dataset = load(str(tmp_path / "ward.csv"), options=RAW)
    assert dataset.class_names == ("healthy", "sick")
    assert dataset.shape == (2,)
    assert torch.equal(dataset.train.x[:, 1], -dataset.train.x[:, 0] - 0.5)
    assert dataset.groups["client"].tolist() == (dataset.train.x[:, 0] > 4).int().tolist()
    assert dataset.group_names["client"] == ("A", "B")


def test_csv_columns_by_option(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("outcome,a,ward\n" + "".join(f"{i % 3},{i},{i // 6}\n" for i in range(12)))
    options = DataOptions(normalise="none", label="outcome", site="ward")
    dataset = load(str(tmp_path / "t.csv"), options=options)
    assert (dataset.classes, dataset.shape) == (3, (1,))
    assert dataset.groups["site"].tolist() == [int(x) // 6 for x in dataset.train.x[:, 0]]


def test_csv_folder_with_train_and_test(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("a,y\n1,b\n2,c\n")
    (tmp_path / "test.csv").write_text("a,y\n3,c\n")
    dataset = load(str(tmp_path), options=RAW)
    assert dataset.train.x.flatten().tolist() == [1, 2]
    assert dataset.test.y.tolist() == [1]


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("", RAW, "is empty"),
        ("a,y\n", RAW, "a header but no rows"),
        ("a,b\n1,2\n", RAW, "no column 'label' or 'y' .* a, b"),
        ("a,y\n1,2\n", DataOptions(label="lable"), "column 'lable'"),
        ("a,class\n1,2\n", DataOptions(label="clas"), "did you mean 'class'"),
        ("a,y,ward\n1,0,2\n", DataOptions(site="wart"), "did you mean 'ward'"),
        ("a,y\n1,0\n2\n", RAW, "row 2 has 1 cells: expected 2"),
        ("a,y\n1,0\nx,1\n", RAW, "column 'a', row 2 holds 'x': expected a number"),
        ("a,y\n1,0\n,1\n", RAW, "column 'a' has one missing cell: .* --missing mean .* --missing drop"),
        ("a,y\n1,0\n2,\n", RAW, "column 'y' has one missing cell: .* --missing drop"),
        ("a,y\n1,0\nnan,1\n", RAW, "column 'a' has one missing cell"),
        ("a,y\n1,0\ninf,1\n", RAW, "row 1 holds NaN or infinity"),
        ("a,a,y\n1,0,1\n", RAW, "two columns 'a'"),
        ("y\n1\n", RAW, "no input columns"),
        ("a,y\n1,b\n2,c\n", DataOptions(classes=5), "2 different text labels but classes = 5"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, options: DataOptions, sentence: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=sentence) as caught:
        load(str(tmp_path / "t.csv"), options=options)
    assert "\n" not in str(caught.value)


def test_csv_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("a,y\n1,f\xfcnf\n".encode("latin1"))
    with pytest.raises(DataError, match="UTF-8"):
        load(str(tmp_path / "t.csv"))


# --- parquet and saved Hugging Face data sets ------------------------------------------------------------------------


def table(**columns: Any) -> pa.Table:
    return pa.table(
        {name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in columns.items()}
    )


def png(shade: int, size: tuple[int, int] = (5, 4)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, (shade, 0, 255)).save(out, format="PNG")
    return out.getvalue()


def described(content: pa.Table, names: list[str]) -> pa.Table:
    features = {"label": {"names": names, "_type": "ClassLabel"}}
    return content.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def save_to_disk(folder: Path, content: pa.Table, shards: int = 1, stream: bool = True) -> None:
    """The files `Dataset.save_to_disk` writes."""
    folder.mkdir(parents=True)
    names = [f"data-{shard:05}-of-{shards:05}.arrow" for shard in range(shards)]
    size = -(-content.num_rows // shards)
    for shard, name in enumerate(names):
        opener = pa.ipc.new_stream if stream else pa.ipc.new_file
        with opener(str(folder / name), content.schema) as writer:
            writer.write_table(content.slice(shard * size, size))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text("{}")


def write_parquet(folder: Path, content: pa.Table) -> Path:
    pq.write_table(content, folder / "own.parquet")
    return folder / "own.parquet"


def write_saved(folder: Path, content: pa.Table) -> Path:
    save_to_disk(folder / "saved", content, shards=2)
    return folder / "saved"


both_kinds = pytest.mark.parametrize("write", [write_parquet, write_saved])
Write = Callable[[Path, pa.Table], Path]


@both_kinds
def test_arrow_scalars(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path, table(a=[float(i) for i in range(10)], b=list(range(10)), label=[i % 2 for i in range(10)]))
    assert rows_of(path) == {float(i): i % 2 for i in range(10)}
    assert load(str(path)).shape == (2,)


@both_kinds
def test_arrow_nested_lists_and_text_labels(tmp_path: Path, write: Write) -> None:
    windows = [[[float(i), 1.0, 2.0], [3.0, 4.0, 5.0]] for i in range(10)]
    path = write(
        tmp_path,
        table(x=windows, label=["no" if i % 2 else "yes" for i in range(10)], subject=[i // 5 for i in range(10)]),
    )
    assert rows_of(path) == {float(i): 1 - i % 2 for i in range(10)}
    dataset = load(str(path), options=RAW)
    assert dataset.shape == (2, 3)
    assert dataset.train.x[0, 1].tolist() == [3, 4, 5]
    assert dataset.class_names == ("no", "yes")
    assert dataset.groups["subject"].tolist() == [int(x) // 5 for x in dataset.train.x[:, 0, 0]]


@both_kinds
def test_arrow_images_ignore_the_columns_beside_them(tmp_path: Path, write: Write) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = pa.array([{"bytes": png(i), "path": f"{i}.png"} for i in range(10)], type=kind)
    content = table(image=images, label=[i % 2 for i in range(10)], coarse=["c"] * 10)
    path = write(tmp_path, described(content, ["even", "odd"]))
    dataset = load(str(path), options=RAW)
    assert dataset.shape == (3, 4, 5)
    assert dataset.class_names == ("even", "odd")
    for part in (dataset.train, dataset.test):
        assert torch.equal((part.x[:, 0, 0, 0] * 255).round().long() % 2, part.y)
        assert (part.x[:, 2] == 1).all()


def test_saved_parts_and_file_format(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "d" / "train", table(a=[1.0, 2.0], y=[0, 1]), stream=False)
    save_to_disk(tmp_path / "d" / "test", table(a=[3.0], y=[1]))
    (tmp_path / "d" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    dataset = load(str(tmp_path / "d"), options=RAW)
    assert dataset.train.x.flatten().tolist() == [1, 2]
    assert dataset.test.x.flatten().tolist() == [3]


def test_saved_rows_keep_the_order_of_the_state_file(tmp_path: Path) -> None:
    for part in ("train", "test"):
        save_to_disk(tmp_path / "d" / part, table(a=[1.0, 2.0, 3.0, 4.0], y=[0, 1, 0, 1]), shards=2)
    state = tmp_path / "d" / "train" / "state.json"
    files = json.loads(state.read_text())["_data_files"]
    state.write_text(json.dumps({"_data_files": files[::-1]}))
    (tmp_path / "d" / "dataset_dict.json").write_text("{}")
    assert load(str(tmp_path / "d"), options=RAW).train.x.flatten().tolist() == [3, 4, 1, 2]


def test_parquet_folder_with_train_and_test(tmp_path: Path) -> None:
    pq.write_table(table(a=[1.0, 2.0], y=[0, 1]), tmp_path / "train.parquet")
    pq.write_table(table(a=[5.0], y=[0]), tmp_path / "test.parquet")
    assert load(str(tmp_path), options=RAW).test.x.tolist() == [[5.0]]


@both_kinds
@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ({"a": [1.0, 2.0]}, RAW, "no column 'label' or 'y'"),
        ({"a": [1.0, 2.0], "target": [0, 1]}, DataOptions(label="tagret"), "did you mean 'target'"),
        ({"a": [1.0, None], "y": [0, 1]}, RAW, "'a' has one missing cell"),
        ({"a": [1.0, float("nan")], "y": [0, 1]}, RAW, "'a' has one missing cell"),
        ({"a": [1.0, 2.0], "y": [0, None]}, RAW, "'y' has one missing cell"),
        ({"a": [[1.0], [1.0, 2.0]], "y": [0, 1]}, RAW, "lists of 1 to 2 entries"),
        ({"a": [[1.0], None], "y": [0, 1]}, RAW, "'a' has 1 missing values"),
        ({"a": pa.array([1, 2], pa.timestamp("s")), "y": [0, 1]}, RAW, "'a' is of type timestamp.*--ignore 'a'"),
        ({"a": [[1.0], [2.0]], "b": ["u", "v"], "y": [0, 1]}, RAW, "'b' is of type string: expected numbers beside"),
        ({"a": pa.array([], pa.float64()), "y": pa.array([], pa.int64())}, RAW, "no rows"),
        ({"a": pa.array([b"", png(1)]), "y": [0, 1]}, RAW, "row 0 holds no image bytes"),
        ({"a": pa.array([png(1), b"junk"]), "y": [0, 1]}, RAW, "image of row 1 cannot be read"),
    ],
)
def test_bad_arrow(tmp_path: Path, write: Write, columns: dict[str, Any], options: DataOptions, sentence: str) -> None:
    path = write(tmp_path, table(**columns))
    with pytest.raises(DataError, match=sentence) as caught:
        load(str(path), options=options)
    assert "\n" not in str(caught.value)


def test_damaged_arrow_files(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, table(a=[1.0, 2.0], y=[0, 1]))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match=r"own\.parquet cannot be read"):
        load(str(path))
    saved = write_saved(tmp_path, table(a=[1.0, 2.0], y=[0, 1]))
    arrow = saved / "data-00001-of-00002.arrow"
    arrow.write_bytes(b"rubbish, not arrow")
    with pytest.raises(DataError, match=r"data-00001-of-00002\.arrow cannot be read"):
        load(str(saved))
    arrow.unlink()
    with pytest.raises(DataError, match=r"data-00001-of-00002\.arrow is missing"):
        load(str(saved))
    (saved / "state.json").write_text("{}")
    with pytest.raises(DataError, match=r"state\.json cannot be read"):
        load(str(saved))
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "dataset_dict.json").write_text("{}")
    with pytest.raises(DataError, match="no part 'train'"):
        load(str(tmp_path / "none"))


def read_sound(folder: Path) -> object:
    return audio.read_wave(folder / "clip.wav")


def read_table(folder: Path) -> object:
    (folder / "own.parquet").touch()
    return load(str(folder / "own.parquet"))


def read_pictures(folder: Path) -> object:
    (folder / "a").mkdir()
    (folder / "a" / "0.png").touch()
    return load(str(folder))


@pytest.mark.parametrize(
    ("modules", "extra", "read"),
    [
        (("soundfile",), "audio", read_sound),
        (("pyarrow", "pyarrow.parquet"), "tables", read_table),
        (("PIL", "PIL.Image"), "images", read_pictures),
    ],
)
def test_a_missing_optional_package_names_its_extra(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    modules: tuple[str, ...],
    extra: str,
    read: Callable[[Path], object],
) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=rf"'{modules[0]}'.*fewfed\[{extra}\]"):
        read(tmp_path)


def test_names_by_reference_are_read_and_missing_ones_are_named(tmp_path: Path) -> None:
    names = pa.array(["cat", "dog", None])
    for rows, unused in (([0, 1, 0, 1], True), ([0, 1, 2, 1], False)):
        label = pa.DictionaryArray.from_arrays(pa.array(rows, pa.int8()), names)
        table = pa.table(
            {"a": [1.0, 2.0, 3.0, 4.0], "label": label, "client": pa.array([7, 8, 7, 8]).dictionary_encode()}
        )
        folder = tmp_path / "saved"
        folder.mkdir(exist_ok=True)
        (folder / "dataset_info.json").write_text("{}")
        with pa.ipc.new_stream(str(folder / "data.arrow"), table.schema) as writer:
            writer.write_table(table)
        if unused:
            dataset = load(str(folder), options=RAW)
            assert (dataset.class_names, dataset.group_names["client"]) == (("cat", "dog"), ("7", "8"))
        else:
            with pytest.raises(DataError, match="column 'label' has one missing cell"):
                load(str(folder))


def test_parquet_with_many_names_by_reference_is_read(tmp_path: Path) -> None:
    """They are longer than the file, and every batch of rows refers to all of them."""
    labels = [f"{'long' * 200} {number % 300}" for number in range(3000)]
    column = pa.array(labels).dictionary_encode()
    pq.write_table(pa.table({"a": np.arange(3000.0), "label": column}), tmp_path / "own.parquet", row_group_size=100)
    dataset = load(str(tmp_path / "own.parquet"), options=RAW)
    assert dataset.classes == 300
    rows = torch.cat([dataset.train.x, dataset.test.x]).long()[:, 0]
    found = torch.cat([dataset.train.y, dataset.test.y])
    assert all(
        dataset.class_names[label] == labels[row] for row, label in zip(rows.tolist(), found.tolist(), strict=True)
    )
