"""Tables as people have them: labels, categories, missing cells, separators, and columns that are no inputs."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.preprocessing import OneHotEncoder

from fewfed.data.examples import Dataset
from fewfed.data.raw_inputs import InputColumn
from fewfed.data.reading import LeftOut, MissingCells, Reading
from fewfed.data.sources import DataOptions, load
from fewfed.errors import ConfigError, DataError, FewfedError


def options(**given: Any) -> DataOptions:
    return DataOptions(normalise="none", **given)


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    """The same columns as a .csv file, or as .parquet with missing values in place of empty cells."""
    if path.suffix == ".parquet":
        pq.write_table(
            pa.table({name: [None if c == "" else c for c in cells] for name, cells in columns.items()}), path
        )
    else:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    return path


def rows(dataset: Dataset) -> dict[float, tuple[int, list[float]]]:
    """Label and inputs by the first input, over both parts, where first inputs are all different."""
    x, y = torch.cat([dataset.train.x, dataset.test.x]), torch.cat([dataset.train.y, dataset.test.y])
    return {row[0]: (label, row[1:]) for row, label in zip(x.tolist(), y.tolist(), strict=True)}


def reading_of(path: Path, **given: Any) -> Reading:
    found = load(str(path), options=options(**given)).reading
    assert found is not None
    return found


def refused(path: Path, sentence: str, **given: Any) -> None:
    with pytest.raises(FewfedError, match=sentence) as caught:
        load(str(path), options=options(**given))
    assert "\n" not in str(caught.value)


both = pytest.mark.parametrize("kind", [".csv", ".parquet"])


# --- labels ----------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([1, 2], ("1", "2")),
        ([10, 9, 1], ("1", "9", "10")),
        ([7, 199007], ("7", "199007")),
        ([-1, 1], ("-1", "1")),
        (["sick", "healthy"], ("healthy", "sick")),
        ([True, False], ("False", "True")),
        (["yes", "no"], ("no", "yes")),
        (["01", "10", "02"], ("01", "02", "10")),
        ([0, 1, 2], ()),
    ],
)
def test_labels_are_taken_as_they_are(tmp_path: Path, kind: str, labels: list[Any], names: tuple[str, ...]) -> None:
    written = [labels[i % len(labels)] for i in range(12)]
    path = write(tmp_path / f"t{kind}", {"a": [float(i) for i in range(12)], "y": written})
    found = load(str(path), options=options())
    called = names or tuple(map(str, range(found.classes)))
    assert (found.class_names, found.classes) == (names, len(labels))
    assert {int(a): called[label] for a, (label, _) in rows(found).items()} == {
        i: str(c) for i, c in enumerate(written)
    }


def test_classes_keeps_its_meaning(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", {"a": list(range(8)), "y": [1, 1, 4, 4] * 2})
    assert load(str(path), options=options()).class_names == ("1", "4")
    declared = load(str(path), options=options(classes=6))
    assert (declared.classes, declared.class_names) == (6, ())
    assert set(declared.train.y.tolist()) == {1, 4}
    one = write(tmp_path / "one.csv", {"a": list(range(8)), "y": [1] * 8})
    refused(one, "every row has the label '1'; expected at least two classes.*--label")
    assert load(str(one), options=options(classes=3)).classes == 3


def test_an_id_or_a_measurement_is_no_label(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(size=40).tolist()
    path = write(tmp_path / "t.csv", {"a": list(range(40)), "id": [f"P{i}" for i in range(40)], "dose": numbers})
    refused(path, "40 different labels in 40 rows .*--label", label="id", ignore=("dose",))
    refused(
        path,
        "40 different numbers in 40 rows: expected classes and not something measured",
        label="dose",
        ignore=("id",),
    )
    refused(path, r"no column 'label' or 'y' \(its columns are a, id, dose\).*--label NAME")


# --- categories and columns that are no inputs ------------------------------------------------------------------------


@both
def test_text_becomes_one_number_a_category_as_scikit_learn_has_it(tmp_path: Path, kind: str) -> None:
    draw = np.random.default_rng(1)
    sex, stage = draw.choice(["F", "M"], 40), draw.choice(["I", "II", "III", "IV"], 40)
    age = [float(i) for i in range(40)]
    columns = {"age": age, "sex": sex.tolist(), "dose": age[::-1], "stage": stage.tolist(), "y": [0, 1] * 20}
    found = load(str(write(tmp_path / f"t{kind}", columns)), options=options())
    expected = np.column_stack(
        [
            OneHotEncoder(sparse_output=False).fit_transform(sex[:, None]),
            age[::-1],
            OneHotEncoder(sparse_output=False).fit_transform(stage[:, None]),
        ]
    )
    assert {int(a): row for a, (_, row) in rows(found).items()} == dict(enumerate(expected.tolist()))
    columns_used = (
        InputColumn("age"),
        InputColumn("sex", ("F", "M")),
        InputColumn("dose"),
        InputColumn("stage", ("I", "II", "III", "IV")),
    )
    assert found.inputs is not None
    assert found.inputs.columns == columns_used
    assert found.reading is not None
    assert found.reading.columns == columns_used


def test_true_and_false_are_one_and_zero_in_any_file(tmp_path: Path) -> None:
    columns = {"a": list(range(8)), "smokes": [True, False, False, True] * 2, "y": [0, 1] * 4}
    found = [rows(load(str(write(tmp_path / f"t{kind}", columns)), options=options())) for kind in (".csv", ".parquet")]
    assert found[0] == found[1] == {i: (i % 2, [float(i % 4 in (0, 3))]) for i in range(8)}


@both
def test_names_are_refused_until_they_are_left_out(tmp_path: Path, kind: str) -> None:
    columns = {"name": [f"N{i}" for i in range(30)], "a": list(range(30)), "y": [0, 1, 1] * 10}
    path = write(tmp_path / f"t{kind}", columns)
    refused(path, "30 different texts in 30 rows .*--ignore 'name'")
    reading = reading_of(path, ignore=("name",))
    assert reading.left_out == (LeftOut("name", "asked"),)
    assert [column.name for column in reading.columns] == ["a"]
    refused(path, "did you mean 'name'", ignore=("nme",))
    refused(path, "option label: .*'y'", label="y", ignore=("y",))


def test_a_slip_among_numbers_is_no_category(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", {"a": [1, 2, "3O", 4, 5, 6], "y": [0, 1] * 3})
    refused(path, "column 'a', row 3 holds '3O': expected a number as elsewhere")


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_an_index_that_a_program_wrote_is_no_input(tmp_path: Path, name: str, first: int) -> None:
    path = write(tmp_path / "t.csv", {name: [first + i for i in range(6)], "a": [5, 3, 4, 1, 0, 2], "y": [0, 1] * 3})
    reading = reading_of(path)
    assert reading.left_out == (LeftOut("Unnamed: 0", "index"),)
    assert [column.name for column in reading.columns] == ["a"]


def test_other_columns_without_a_name_are_refused_and_empty_ones_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", {"": [4, 8, 9, 1], "a": [5, 3, 4, 1], "y": [0, 1] * 2})
    refused(path, "a column without a name .* does not count its rows.*--ignore 'Unnamed: 0'")
    assert reading_of(path, ignore=("Unnamed: 0",)).left_out == (LeftOut("Unnamed: 0", "asked"),)
    (tmp_path / "t.csv").write_text("a,y,\n" + "1,0,\n2,1,\n" * 3 + ",,\n")
    assert reading_of(tmp_path / "t.csv").left_out == (LeftOut("Unnamed: 2", "empty"),)


def test_a_named_column_that_counts_is_pointed_out(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", {"id": list(range(1, 9)), "a": [5, 3, 4, 1] * 2, "y": [0, 1] * 4})
    assert reading_of(path).counting == ("id",)


# --- missing cells ---------------------------------------------------------------------------------------------------

SPELLINGS = ["", "NA", "N/A", "NaN", "null", "?", "."]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_missing_cells_however_they_are_written(tmp_path: Path, spelling: str) -> None:
    dose = [spelling, "1.5", "2", spelling, "3", "4", "5", "6"]
    sex = ["F", "M", spelling, "F", "M", "F", "M", "F"]
    path = write(tmp_path / "t.csv", {"a": list(range(8)), "dose": dose, "sex": sex, "y": [0, 1] * 4})
    refused(path, "column 'dose' has 2 missing cells, and 1 other column has some: .*--missing mean .*--missing drop")
    dropped = load(str(path), options=options(missing="drop"))
    assert sorted(rows(dropped)) == [1, 4, 5, 6, 7]
    assert not dropped.missing
    assert dropped.reading is not None
    assert dropped.reading.dropped == 3
    assert dropped.reading.missing == (MissingCells("dose", 2), MissingCells("sex", 1))
    filled = load(str(path), options=options(missing="mean"))
    assert filled.missing
    found = rows(filled)
    assert sorted(found) == list(range(8))
    assert [i for i in found if np.isnan(found[i][1][0])] == [i for i in found if i in (0, 3)]
    assert found[2][1][1:] == [0, 0], "a category that is missing is none of them"


@both
def test_rows_without_label_or_site_are_dropped_if_anything_may_be(tmp_path: Path, kind: str) -> None:
    columns = {"a": [float(i) for i in range(10)], "ward": ["N", "S", ""] + ["N"] * 7, "y": ["u", "v"] * 4 + ["", "u"]}
    path = write(tmp_path / f"t{kind}", columns)
    refused(path, "column 'y' has one missing cell, and 1 other column has some: .*--missing drop", site="ward")
    for rule in ("mean", "drop"):
        found = load(str(path), options=options(site="ward", missing=rule))
        assert sorted(rows(found)) == [0, 1, 3, 4, 5, 6, 7, 9]
        assert found.reading is not None
        assert (found.reading.dropped, found.classes) == (2, 2)


def test_dropping_rows_takes_no_site_away(tmp_path: Path) -> None:
    columns = {"a": [1, 2, "", "", 5, 6], "ward": list("NNSSEE"), "y": [0, 1] * 3}
    path = write(tmp_path / "t.csv", columns)
    refused(path, "site 'S' would lose all of its 2 rows .*--missing mean", site="ward", missing="drop")
    assert len(reading_of(path, site="ward", missing="mean").sites) == 3


def test_columns_without_any_value(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", {"a": list(range(6)), "b": ["NA"] * 6, "y": [0, 1] * 3})
    for rule in ("refuse", "mean", "drop"):
        refused(path, "column 'b' holds no value at all: leave it out with --ignore 'b'", missing=rule)
    path = write(tmp_path / "t.csv", {"a": list(range(6)), "y": ["NA"] * 6})
    refused(path, "column 'y' holds no value at all: choose another", missing="drop")


def test_nan_in_arrays_is_dropped_or_left_for_later(tmp_path: Path) -> None:
    x = np.arange(20.0).reshape(10, 2)
    x[3, 1] = np.nan
    np.savez(tmp_path / "own.npz", x=x, y=[0, 1] * 5, ward=list("NS") * 5)
    refused(tmp_path / "own.npz", "row 3 holds NaN or infinity: .*--missing mean", site="ward")
    dropped = load(str(tmp_path / "own.npz"), options=options(site="ward", missing="drop"))
    assert len(dropped.train) + len(dropped.test) == 9
    filled = load(str(tmp_path / "own.npz"), options=options(site="ward", missing="mean"))
    assert filled.missing
    assert dropped.group_names["site"] == filled.group_names["site"] == ("N", "S")


# --- how a file is written -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_separators_and_encodings(tmp_path: Path, separator: str, encoding: str, end: str) -> None:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator, lineterminator=end)
    writer.writerow(["a", 'odd; "name", here', "y"])
    writer.writerows([[i, f"x{separator}{i % 2}", "müde" if i % 2 else "wach"] for i in range(8)])
    (tmp_path / "t.csv").write_bytes(out.getvalue().encode(encoding))
    found = load(str(tmp_path / "t.csv"), options=options())
    assert found.class_names == ("müde", "wach")
    assert found.reading is not None
    assert found.reading.separator == separator
    assert found.reading.columns[1] == InputColumn('odd; "name", here', (f"x{separator}0", f"x{separator}1"))


def test_decimal_commas(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b;y\n" + "".join(f"{i};{i},5;{i % 2}\n" for i in range(6)))
    assert {a: row for a, (_, row) in rows(load(str(path), options=options())).items()} == {
        i: [i + 0.5] for i in range(6)
    }
    path.write_text("a;b;y\n" + "".join(f"{i}.25;{i},5;{i % 2}\n" for i in range(6)))
    refused(path, "with a comma in column 'b' and with a point in column 'a'")
    path.write_text("a\tb\ty\n" + "".join(f"{i}\t{i},5\t{i % 2}\n" for i in range(6)))
    refused(path, "column 'b' holds 6 different texts .*numbers are written plainly")
    path.write_text("sep=;\na;y\n" + "1;0\n2;1\n" * 3)
    assert reading_of(path).separator == ";"


def test_other_encodings_are_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("a,y\n1,ja\n2,fünf\n".encode("latin1"))
    refused(tmp_path / "t.csv", r"line 3 holds a byte that is no UTF-8 \(0xfc\).*save it as UTF-8")
    (tmp_path / "t.csv").write_bytes("a,y\n1,ja\n".encode("utf-16-le"))
    refused(tmp_path / "t.csv", "NUL characters")


# --- the test part ---------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(("mark", "other"), [("test", "train"), (True, False), (1, 0), ("yes", "no"), ("Test", "")])
def test_a_column_marks_the_test_part(tmp_path: Path, kind: str, mark: Any, other: Any) -> None:
    marks = [mark if i % 4 == 0 else other for i in range(12)]
    columns = {"a": [float(i) for i in range(12)], "part": marks, "y": [0, 1] * 6}
    path = write(tmp_path / f"t{kind}", columns)
    found = load(str(path), options=options(test_column="part"))
    assert found.test.x.flatten().tolist() == [0, 4, 8]
    assert found.reading is not None
    assert (found.reading.test_part, found.reading.test_from) == ("column", "part")
    assert [column.name for column in found.reading.columns] == ["a"]


def test_marks_that_are_none(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", {"a": list(range(4)), "part": ["test", "train", "val", "train"], "y": [0, 1] * 2})
    refused(path, "column 'part', row 3 holds 'val': expected 'test' or 'train'", test_column="part")
    path = write(tmp_path / "t.csv", {"a": list(range(4)), "part": ["train"] * 4, "y": [0, 1] * 2})
    refused(path, "column 'part' marks no row for testing", test_column="part")


def test_another_file_is_the_test_part(tmp_path: Path) -> None:
    columns = {"a": [1, 2, 3, 4], "c": list("uvuv"), "ward": list("NNSS"), "y": list("pqpq")}
    train = write(tmp_path / "train.csv", columns)
    other = {"more": [9, 9], "y": ["q", "p"], "c": ["w", "u"], "a": [7, 8], "ward": ["S", "E"]}
    test = write(tmp_path / "later.parquet", other)
    found = load(str(train), options=options(test_data=str(test), site="ward"))
    assert found.train.x.tolist() == [[1, 1, 0], [2, 0, 1], [3, 1, 0], [4, 0, 1]]
    assert found.test.x.tolist() == [[7, 0, 0], [8, 1, 0]]
    assert found.test.y.tolist() == [1, 0]
    assert found.group_names["site"] == ("E", "N", "S")
    assert found.test_groups["site"].tolist() == [2, 0]
    assert found.reading is not None
    assert (found.reading.test_part, found.reading.test_from) == ("file", "later.parquet")
    assert found.reading.unknown == (MissingCells("c", 1),)
    assert LeftOut("more", "not in training") in found.reading.left_out
    write(test, {**other, "y": ["q", "Q"]})
    refused(train, "has 1 rows of a class 'Q' that the training rows lack", test_data=str(test))
    write(test, {"y": ["q", "p"], "a": [7, 8]})
    refused(train, "has no column 'c', which the training rows have", test_data=str(test))
    refused(train, "there is no file or folder", test_data=str(tmp_path / "none.csv"))
    np.savez(tmp_path / "x.npz", x=np.ones((4, 2)), y=[0, 1, 0, 1])
    refused(train, "is arrays but .* is a table", test_data=str(tmp_path / "x.npz"))
    np.savez(tmp_path / "z.npz", x=np.zeros((2, 2)), y=[0, 1])
    arrays = load(str(tmp_path / "x.npz"), options=options(test_data=str(tmp_path / "z.npz")))
    assert arrays.test.x.sum() == 0
    marked = write(tmp_path / "marked.csv", {**columns, "part": ["test", "", "", ""]})
    refused(marked, "marks test rows but .* has a test part", test_data=str(train), test_column="part")


def test_options_of_own_files_are_refused_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="label = 'y' says how tables and folders of your own are read, and 'digits'"):
        load("digits", options=DataOptions(label="y"))


# --- tables of others ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [load_iris, load_wine, load_breast_cancer])
def test_tables_of_scikit_learn(tmp_path: Path, source: Any) -> None:
    bunch = source()
    names = [str(bunch.target_names[target]) for target in bunch.target]
    columns = {name: bunch.data[:, place].tolist() for place, name in enumerate(bunch.feature_names)}
    path = write(tmp_path / "t.csv", {"": list(range(len(names))), **columns, "kind": names})
    found = load(str(path), options=options(label="kind"))
    assert found.class_names == tuple(sorted(map(str, bunch.target_names)))
    assert found.shape == (bunch.data.shape[1],)
    assert sorted(torch.cat([found.train.x, found.test.x]).tolist()) == sorted(bunch.data.astype(np.float32).tolist())


CELL = st.sampled_from(["1", "2", "3.5", "x", "y", "NA", "", "?", "True", "1,5", "2020-01-01", "-1e9", "é", "0"])


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    cells=st.lists(st.tuples(CELL, CELL, CELL, CELL), min_size=1, max_size=14),
    separator=st.sampled_from(",;\t"),
    given_options=st.builds(
        options,
        label=st.sampled_from(["", "c", "d"]),
        site=st.sampled_from(["", "", "b"]),
        missing=st.sampled_from(["refuse", "mean", "drop"]),
        ignore=st.sampled_from([(), ("b",), ("a", "c")]),
        test_column=st.sampled_from(["", "", "d"]),
    ),
)
def test_any_small_table_is_read_whole_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[str, ...]], separator: str, given_options: DataOptions
) -> None:
    path = tmp_path_factory.mktemp("any") / "t.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([("a", "b", "c", "d"), *cells])
    found, said = None, ""
    try:
        found = load(str(path), options=given_options)
    except (ConfigError, DataError) as error:
        said = str(error)
    assert len(said.splitlines()) <= 1
    assert len(said) < 700
    if found is None:
        return
    reading = found.reading
    assert reading is not None
    used = len([row for row in cells if any(cell.strip() for cell in row)])
    assert reading.rows + reading.test_rows + reading.dropped == used
    assert all(site.train for site in reading.sites) or given_options.test_column
    assert sum(column.width for column in reading.columns) == found.shape[0]
    assert bool(torch.isnan(found.train.x).any() | torch.isnan(found.test.x).any()) == found.missing
