"""`FewFed`: the scikit-learn habit, on rows as programs have them."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from fewfed import Examples, Experiment, FewFed, Training, compare
from fewfed.data.client_rows import dataset_of
from fewfed.errors import ConfigError, DataError
from run_support import SHORT, small

ROOT = Path(__file__).resolve().parents[2]
X, Y = load_digits(return_X_y=True)
NAMES = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
TEST = (X[1200:], NAMES[Y[1200:]])
SITES = {f"site {number}": (X[number:600:4], NAMES[Y[number:600:4]]) for number in range(4)}


def estimator(out: Path, **changes: Any) -> FewFed:
    settings = {"method": "fedavg", "rounds": 2, "training": {"epochs": 1}, "executor": "sequential"}
    return FewFed(**{**settings, "progress": False, "out": out, **changes})


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> FewFed:
    return estimator(tmp_path_factory.mktemp("estimator") / "run").fit(SITES, TEST)


def test_import_fewfed_does_not_load_scikit_learn() -> None:
    code = "import sys, fewfed; assert 'sklearn' not in sys.modules; fewfed.FewFed; assert 'sklearn' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(AttributeError, match="no attribute 'Fewfed'"):
        _ = __import__("fewfed").Fewfed


def test_parameters_are_those_of_the_constructor_and_survive_a_clone() -> None:
    original = FewFed("fedprox", rounds=7, values={"mu": 0.5})
    copy = clone(original)
    assert copy is not original
    assert copy.get_params() == original.get_params()
    assert copy.set_params(rounds=9, method="flea").get_params()["rounds"] == 9
    assert repr(original) == "FewFed(method='fedprox', rounds=7, values={'mu': 0.5})"
    assert is_classifier(original)
    with pytest.raises(ValueError, match="Invalid parameter"):
        original.set_params(epochs=3)


@pytest.mark.parametrize("use", ["history", "predict", "predict_proba", "score", "report", "model"])
def test_nothing_works_before_it_is_trained(use: str) -> None:
    new = FewFed()
    with pytest.raises(NotFittedError, match=r"fit\(clients, test\)"):
        {"history": lambda: new.history, "predict": lambda: new.predict(X), "report": new.report, "model": new.model,
         "predict_proba": lambda: new.predict_proba(X), "score": lambda: new.score(X, Y)}[use]()  # fmt: skip
    with pytest.raises(NotFittedError):
        check_is_fitted(new)


def test_labels_come_back_as_they_were_given_and_the_score_is_that_of_the_last_round(fitted: FewFed) -> None:
    check_is_fitted(fitted)
    assert fitted.classes_.tolist() == sorted(NAMES)
    assert fitted.sites_ == tuple(SITES)
    probabilities = fitted.predict_proba(TEST[0])
    assert probabilities.shape == (len(TEST[1]), 10)
    assert np.allclose(probabilities.sum(1), 1)
    assert (fitted.predict(TEST[0]) == fitted.classes_[probabilities.argmax(1)]).all()
    assert len(fitted.history) == 2
    assert fitted.score(*TEST) == pytest.approx(fitted.history[-1]["accuracy"])


def test_a_list_of_examples_with_numbers_trains_the_same_model(fitted: FewFed, tmp_path: Path) -> None:
    order = {name: number for number, name in enumerate(sorted(NAMES))}
    rows = [Examples(torch.tensor(x, dtype=torch.float32), torch.tensor([10 * order[label] for label in y]))
            for x, y in SITES.values()]  # fmt: skip
    test = (TEST[0].tolist(), [10.0 * order[label] for label in TEST[1]])
    other = estimator(tmp_path / "run").fit(rows, test)
    assert other.classes_.tolist() == [10 * number for number in range(10)]
    assert np.array_equal(other.predict_proba(X[:50]), fitted.predict_proba(X[:50]))


def test_a_class_that_only_test_rows_have_keeps_its_place(tmp_path: Path) -> None:
    few = {name: (x[y != "nine"], y[y != "nine"]) for name, (x, y) in SITES.items()}
    found = estimator(tmp_path / "run").fit(few, TEST)
    assert found.classes_.tolist() == sorted(NAMES)
    assert found.predict_proba(X[:3]).shape == (3, 10)
    assert found.score(*TEST) == pytest.approx(found.history[-1]["accuracy"])


def test_a_model_for_each_site_is_asked_for_by_its_name(tmp_path: Path) -> None:
    found = estimator(tmp_path / "run", method="local").fit(SITES, TEST)
    assert found.predict(X[:3], site="site 2").shape == (3,)
    with pytest.raises(ConfigError, match="say whose"):
        found.predict(X[:3])


@dataclass(frozen=True)
class Table:
    """What libraries for tables have in common: names of columns, and the numbers as an array."""

    columns: list[str]
    values: np.ndarray

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype)

    def __getitem__(self, name: str) -> np.ndarray:
        found: np.ndarray = self.values[:, self.columns.index(name)]
        return found


def table(x: np.ndarray, order: Sequence[int]) -> Table:
    return Table([f"pixel {place}" for place in order], x[:, list(order)])


def test_columns_of_tables_are_taken_by_their_names(fitted: FewFed, tmp_path: Path) -> None:
    """A client whose columns come in another order trains, and is predicted, as if they did not."""
    usual, turned = range(64), range(63, -1, -1)
    clients = {
        name: (table(x, usual if place % 2 == 0 else turned), y) for place, (name, (x, y)) in enumerate(SITES.items())
    }
    found = estimator(tmp_path / "run").fit(clients, (table(TEST[0], turned), TEST[1]))
    expected = fitted.predict_proba(X[:50])
    for given in (X[:50], table(X[:50], usual), table(X[:50], turned)):
        assert np.array_equal(found.predict_proba(given), expected)
    with pytest.raises(DataError, match="no column 'pixel 0'"):
        found.predict(table(X[:5], range(1, 64)))


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["a", "b", "d"], "client 'south' has no column 'c', which client 'north' has: expected the same"),
        (["a", "b", "c", "d"], "client 'north' has no column 'd', which client 'south' has: expected the same"),
        (["a", "b", "b"], "client 'south' has two columns of the same name: expected each once"),
    ],
)
def test_tables_of_other_columns_are_refused(names: list[str], says: str) -> None:
    y = [0, 1]
    north, south = Table(["a", "b", "c"], np.eye(2, 3)), Table(names, np.eye(2, len(names)))
    with pytest.raises(DataError, match=says):
        dataset_of({"north": (north, y), "south": (south, y)}, (north, y))


def test_a_column_of_text_is_named() -> None:
    rows = Table(["age", "town"], np.array([[1, "A"], [2, "B"]], dtype=object))
    with pytest.raises(DataError, match="client '0': inputs, column 'town' hold 'A': expected numbers"):
        dataset_of([(rows, [0, 1])], (rows, [0, 1]))


def test_truth_values_beside_measurements_are_numbers(tmp_path: Path) -> None:
    """A table of both is an array of objects."""
    mixed = Table([f"pixel {place}" for place in range(64)], X.astype(object))
    mixed.values[:, 3] = X[:, 3] > 0
    whole = [(Table(mixed.columns, mixed.values[place:200:2]), Y[place:200:2]) for place in range(2)]
    found = estimator(tmp_path / "run").fit(whole, (Table(mixed.columns, mixed.values[200:300]), Y[200:300]))
    assert found.predict(Table(mixed.columns, mixed.values[:3])).shape == (3,)


def test_numbers_too_large_to_train_on_are_one_sentence(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(DataError, match="infinity"):
        estimator(tmp_path / "run").fit([(X[:9] * 1e300, Y[:9])], (X, Y))
    assert not [warning for warning in recwarn if "overflow" in str(warning.message)]


@pytest.mark.parametrize(
    ("experiment", "says"),
    [
        ({"rounds": 3}, r"experiment names 'rounds': expected FewFed\(rounds=...\)"),
        (Experiment(seed=3), r"experiment names 'seed': expected FewFed\(seed=...\)"),
        ({"split": "dir:0.1"}, "experiment names 'split': expected the clients that fit is given"),
        ({"metrics": "auc"}, "did you mean 'metric'"),
        (7, "experiment"),
    ],
)
def test_an_experiment_does_not_contradict_the_arguments(experiment: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        estimator(tmp_path / "run", experiment=experiment).fit(SITES, TEST)


def test_an_experiment_may_be_an_object(tmp_path: Path) -> None:
    found = estimator(tmp_path / "run", experiment=Experiment(metric="macro_f1"), training=Training(epochs=1))
    assert found.fit(SITES, TEST).result_.metric == "macro_f1"


def test_columns_in_ordinary_units_are_scaled_on_request_in_training_and_in_use(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 300)
    x = np.stack([random.normal(1e4, 3e3, 300), y + random.normal(0, 0.3, 300)], 1)
    clients, test = [(x[place:200:4], y[place:200:4]) for place in range(4)], (x[200:], y[200:])
    settings = {"rounds": 5, "training": {"epochs": 5}}
    scaled = estimator(tmp_path / "scaled", options={"normalise": "federated"}, **settings).fit(clients, test)
    assert scaled.score(*test) == pytest.approx(scaled.history[-1]["accuracy"])
    assert scaled.score(*test) > 0.85
    assert clone(scaled).get_params()["options"] == {"normalise": "federated"}


def test_an_own_module_is_trained(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10))
    found = estimator(tmp_path / "run", network=net).fit(SITES, TEST)
    assert found.predict(X[:3]).shape == (3,)


BAD = {
    "clients are a ndarray": (X, TEST),
    "clients are a str": ("digits", TEST),
    "there are no clients": ([], TEST),
    "client '0' is a ndarray": ([X], TEST),
    "test is a NoneType": (SITES, None),
    "client '0': inputs of shape (5, 64) and labels of (4,)": ([(X[:5], Y[:4])], TEST),
    "client '1' has inputs of shape (63,) and client '0' of (64,)": ([(X[:5], Y[:5]), (X[:5, 1:], Y[:5])], (X, Y)),
    "some labels are numbers and some are texts": ([(X[:5], Y[:5])], TEST),
    "labels are no whole numbers": ([(X[:5], Y[:5] + 0.5)], (X, Y)),
    "inputs are <U": ([(X[:5].astype(str), Y[:5])], (X, Y)),
    "inputs hold 'north': expected numbers": ([(np.array([[1, "north"]], dtype=object), [0])], (X, Y)),
    "no client has a row, and test has none: expected some of two classes": ([(X[:0], Y[:0])], (X[:0], Y[:0])),
    "client '0' has masked values: expected a number for each": ([(np.ma.masked_greater(X[:5], 3), Y[:5])], TEST),
    "every row has the label '3': expected at least two classes": ([(X[:5], [3] * 5)], (X[:2], [3] * 2)),
    "labels are object": ([(X[:2], np.array([1, "a"], dtype=object))], (X, Y)),
    "two clients have the same name": ({1: SITES["site 0"], "1": SITES["site 1"]}, TEST),
}


@pytest.mark.parametrize("says", BAD)
def test_rows_that_will_not_do_are_one_sentence(says: str) -> None:
    clients, test = BAD[says]
    with pytest.raises(DataError) as refused:
        dataset_of(clients, test)
    assert says in str(refused.value)
    assert "expected" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_notebook_shows_numbers_and_curves(fitted: FewFed, tmp_path: Path) -> None:
    bundle = fitted._repr_mimebundle_()
    assert bundle["text/plain"] == repr(fitted)
    assert "FewFed(" in FewFed()._repr_html_()
    for shown in (bundle["text/html"], fitted.result_._repr_html_()):
        picture = shown.partition("base64,")[2].partition('"')[0]
        assert ElementTree.fromstring(base64.b64decode(picture)).tag.endswith("svg")
    folder = Path(fitted.result_.folder)
    folder.rename(tmp_path / "elsewhere")
    try:
        assert "<table>" in fitted._repr_html_()
        assert "base64" not in fitted._repr_html_()
    finally:
        (tmp_path / "elsewhere").rename(folder)


def test_a_comparison_shows_its_curves(tmp_path: Path) -> None:
    found = compare(["fedavg", "fedprox"], small(), SHORT, seeds=2, out=tmp_path / "table", progress=False)
    picture = base64.b64decode(found._repr_html_().partition("base64,")[2].partition('"')[0]).decode()
    assert "fedavg" in picture
    assert "fedprox" in picture
    assert "band" in picture


def test_the_report_is_written_beside_the_run(fitted: FewFed) -> None:
    written = fitted.report()
    assert written.page.parent == Path(fitted.result_.folder)
    assert "fedavg" in written.page.read_text()


@pytest.mark.timeout(300)
def test_the_notebook_runs_in_a_fresh_kernel_and_is_kept_without_outputs(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    path = ROOT / "examples" / "notebook" / "first_steps.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [output.get("data", {}).get("text/html", "") for cell in cells for output in cell.outputs]
    assert sum("data:image/svg+xml" in each for each in shown) == 2
    assert list((tmp_path / "runs").glob("*/report.html"))
