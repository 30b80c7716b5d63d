"""`fewfed predict` and `fewfed export` as a user types them."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, balanced_accuracy_score

from fewfed import Dataset, Examples, Experiment, Training, load, run
from fewfed.data.raw_inputs import RawInputs
from fewfed.data.readers.options import DataOptions
from run_support import SHORT, called, small
from trained.trained_support import SITES, cells_of, patients

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
BY_SITE = Experiment(split="client", clients=0, cohort=3.0, rounds=2, network="mlp", executor="sequential")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a common model and one with a model of each site, and new rows with and without labels."""
    root: Path = tmp_path_factory.mktemp("predict")
    data = patients()
    training, options = Training(epochs=20, lr=0.05), DataOptions(normalise="federated")
    run("fedavg", BY_SITE, training, data=data, options=options, out=root / "common")
    run("local", BY_SITE, training, data=data, options=options, out=root / "local")
    cells = cells_of(data)
    write(root / "labelled.csv", cells)
    write(root / "new.csv", {name: column for name, column in cells.items() if name not in ("label", "client")})
    return root


def write(path: Path, cells: dict[str, list[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(cells)
        writer.writerows(zip(*cells.values(), strict=True))


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_line_for_each_row(folders: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    out = tmp_path / "below" / "predictions.csv"
    asked = ("predict", str(folders / "common"), "--data", str(folders / "new.csv"), "--out", str(out))
    code, said, _ = called(capsys, monkeypatch, *asked, "--keep", "id, colour", "--json")
    assert code == 0
    found, data = lines(out), patients()
    assert list(found[0]) == ["row", "id", "colour", "predicted", "probability_ill", "probability_well"]
    assert [line["row"] for line in found] == [str(row) for row in range(1, 31)]
    assert [line["id"] for line in found] == cells_of(data)["id"]
    expected = load(folders / "common").predict_proba(data.test.x)
    shown = np.array([[float(line["probability_ill"]), float(line["probability_well"])] for line in found])
    np.testing.assert_allclose(shown, expected, atol=1e-6)
    assert [line["predicted"] for line in found] == [("ill", "well")[number] for number in expected.argmax(1)]
    told = json.loads(said.splitlines()[-1])
    assert told["rows"] == 30
    assert told["scores"] == {}
    assert sum(told["predicted"].values()) == 30


def test_labels_are_scored(folders: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    cells = cells_of(patients())
    cells["label"][:3] = ["", "dead", "dead"]
    write(tmp_path / "odd.csv", cells)
    out = tmp_path / "predictions.csv"
    asked = ("predict", str(folders / "common"), "--data", str(tmp_path / "odd.csv"), "--out", str(out))
    code, said, err = called(capsys, monkeypatch, *asked, "--json")
    assert code == 0
    assert "2 rows have a label that is none of the model's classes" in err
    truth, predicted = cells["label"][3:], [line["predicted"] for line in lines(out)][3:]
    scores = json.loads(said.splitlines()[-1])["scores"]
    assert scores["rows"] == 27
    assert scores["unknown"] == 2
    assert scores["accuracy"] == pytest.approx(accuracy_score(truth, predicted))
    assert scores["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(truth, predicted))


def test_every_row_by_its_own_sites_model(folders: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    asked = ("predict", str(folders / "local"), "--data")
    code, _, err = called(capsys, monkeypatch, *asked, str(folders / "new.csv"), "--out", str(tmp_path / "a.csv"))
    assert code == 2
    assert "--site NAME" in err
    assert "north, south, west" in err
    assert not (tmp_path / "a.csv").exists()
    out = tmp_path / "b.csv"
    assert called(capsys, monkeypatch, *asked, str(folders / "labelled.csv"), "--out", str(out))[0] == 0
    data = patients()
    for row, line in enumerate(lines(out)):
        site = SITES[data.test_groups["client"][row]]
        assert line["site"] == site
        expected = load(folders / "local", site=site).predict_proba(data.test.x[row : row + 1])
        assert float(line["probability_ill"]) == pytest.approx(expected[0, 0], abs=1e-5)
    one = tmp_path / "c.csv"
    new = str(folders / "new.csv")
    assert called(capsys, monkeypatch, *asked, new, "--site", "west", "--out", str(one))[0] == 0
    expected = load(folders / "local", site="west").predict_proba(data.test.x)
    np.testing.assert_allclose([float(line["probability_ill"]) for line in lines(one)], expected[:, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--data", "nowhere.csv"), "no file or folder nowhere.csv"),
        (("--data", "new.csv", "--keep", "name"), "'name'"),
        (("--data", "new.csv", "--site", "east"), "unknown site 'east'"),
        (("--data", "new.csv", "--client", "9"), "from 0 to 2"),
        (("--data", "new.csv", "--out", "new.csv"), "is there already"),
        (("--data", "short.csv"), "no column 'dose'"),
        (("--data", "."), "images"),
        ((), "Missing option '--data'"),
    ],
)
def test_mistakes_are_one_sentence(
    folders: Path, more: tuple[str, ...], said: str, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(folders)
    write(folders / "short.csv", {"age": [1], "colour": ["red"]})
    code, out, err = called(capsys, monkeypatch, "predict", "common", *more)
    assert code == 2
    assert said in err
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert not (folders / "predictions.csv").exists()


def test_images_are_named_and_their_folders_are_labels(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(256, size=(40, 8, 8), dtype=np.uint8)
    labels = np.arange(40) % 2
    pixels[labels == 1] //= 4
    x, y = torch.from_numpy(pixels[:, None] / np.float32(255)), torch.from_numpy(labels)
    rows = Examples(x, y)
    data = Dataset("shades", rows, rows, 2, ("bright", "dark"), inputs=RawInputs("images"))
    settings = small(split="iid", rounds=2, network="digits-cnn")
    run("fedavg", settings, Training(epochs=4, lr=0.01), data=data, out=tmp_path / "run")
    for number in range(4):
        folder = tmp_path / "new" / data.class_names[labels[number]]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[number]).save(folder / f"{number}.png")
    out = tmp_path / "out.csv"
    asked = ("predict", str(tmp_path / "run"), "--data", str(tmp_path / "new"), "--out", str(out), "--json")
    code, said, _ = called(capsys, monkeypatch, *asked)
    assert code == 0
    found = lines(out)
    assert [line["file"] for line in found] == ["bright/0.png", "bright/2.png", "dark/1.png", "dark/3.png"]
    right = sum(line["file"].startswith(line["predicted"]) for line in found)
    assert json.loads(said.splitlines()[-1])["scores"]["accuracy"] == right / 4
    code, _, err = called(capsys, monkeypatch, *asked)
    assert code == 2
    assert "--force" in err
    assert called(capsys, monkeypatch, *asked, "--force")[0] == 0


def test_masks_of_segmentation(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    x = torch.rand(8, 1, 16, 16)
    rows = Examples(x, (x[:, 0] > 0.5).long())
    data = Dataset("spots", rows, rows, 2, ("nothing", "spot"), task="segmentation", inputs=RawInputs("array"))
    settings = Experiment(split="iid", clients=2, cohort=1.0, rounds=1, executor="sequential")
    run("fedavg", settings, dataclasses.replace(SHORT, batch=4), data=data, out=tmp_path / "run")
    np.savez(tmp_path / "new.npz", x=x.numpy())
    asked = (
        "predict",
        str(tmp_path / "run"),
        "--data",
        str(tmp_path / "new.npz"),
        "--out",
        str(tmp_path / "masks.npz"),
    )
    assert called(capsys, monkeypatch, *asked)[0] == 0
    masks = np.load(tmp_path / "masks.npz")["masks"]
    np.testing.assert_array_equal(masks, load(tmp_path / "run").predict(x))


def test_export_beside_the_run(folders: Path, capsys: Capture, monkeypatch: Patch) -> None:
    code, said, _ = called(capsys, monkeypatch, "export", str(folders / "common"), "--to", "safetensors", "--json")
    assert code == 0
    file = Path(json.loads(said.splitlines()[-1])["file"])
    assert file == folders / "common-safetensors" / "model.safetensors"
    assert {path.name for path in file.parent.iterdir()} == {"model.safetensors", "README.md", "blueprint.json"}
    for more, said in (
        (("local", "--to", "state_dict"), "--site NAME"),
        (("common", "--to", "pickle"), "unknown format 'pickle'"),
        (("common", "--to", "safetensors"), "is there already"),
        (("nowhere", "--to", "onnx"), "is not a run folder"),
        (("common", "--to", "safetensors", "--out", str(folders / "common")), "holds a run"),
    ):
        code, _, err = called(capsys, monkeypatch, "export", str(folders / more[0]), *more[1:])
        assert code == 2
        assert said in err


def test_a_test_file_scores_as_the_run_did(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    """Text labels, a column of categories, missing cells, an index, semicolons and a site of one row."""
    random = np.random.default_rng(3)
    header = ["", "hospital", "age", "colour", "dose", "diagnosis"]

    def made(rows: int) -> list[list[Any]]:
        found = []
        for row in range(rows):
            age, colour, dose = random.integers(20, 90), random.choice(["red", "blue"]), random.random()
            label = "ill" if age / 90 + dose > 1 else "well"
            site = "tiny" if row == 0 else random.choice(["north", "south"])
            found.append([row, site, "NA" if row % 7 == 3 else age, "" if row % 9 == 4 else colour, dose, label])
        return found

    for name, rows, separator in (("train.csv", 80, ","), ("test.csv", 31, ";")):
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file, delimiter=separator).writerows([header, *made(rows)])
    options = DataOptions(label="diagnosis", site="hospital", missing="mean", test_data=str(tmp_path / "test.csv"))
    settings = Experiment(data=str(tmp_path / "train.csv"), rounds=2, network="mlp", executor="sequential")
    for method, scaled in (("fedavg", "federated"), ("fedavg", "site"), ("fedavg", "none")):
        folder = tmp_path / f"{method}-{scaled}"
        chosen = dataclasses.replace(options, normalise=scaled)
        result = run(method, settings, Training(epochs=5, lr=0.05), options=chosen, out=folder)
        out = str(tmp_path / f"{folder.name}.csv")
        asked = ("predict", str(folder), "--data", str(tmp_path / "test.csv"), "--out", out, "--keep", "hospital,age")
        code, said, _ = called(capsys, monkeypatch, *asked, "--json")
        assert code == 0
        assert json.loads(said.splitlines()[-1])["scores"]["accuracy"] == result.accuracy.last
        assert lines(Path(out))[3]["age"] == ""


def test_images_of_any_size_are_made_as_in_training(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    random = np.random.default_rng(5)
    for part, images in (("train", 24), ("test", 10)):
        for number in range(images):
            label = ("bright", "dark")[number % 2]
            (tmp_path / "data" / part / label).mkdir(parents=True, exist_ok=True)
            high, wide = random.integers(9, 20, size=2)
            pixels = random.integers(60 if label == "bright" else 1, 200, size=(high, wide, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / part / label / f"{number}.png")
    settings = Experiment(
        data=str(tmp_path / "data"), split="iid", clients=2, cohort=1.0, rounds=1, executor="sequential"
    )
    options = DataOptions(image_size=8)
    result = run("fedavg", settings, Training(epochs=3), options=options, out=tmp_path / "run")
    asked = ("predict", str(tmp_path / "run"), "--data", str(tmp_path / "data" / "test"), "--out", str(tmp_path / "p"))
    code, said, _ = called(capsys, monkeypatch, *asked, "--json")
    assert code == 0
    assert json.loads(said.splitlines()[-1])["scores"]["accuracy"] == result.accuracy.last
