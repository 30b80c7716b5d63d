"""A TOML file: its values, what wins over them, and the lines of what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from fewfed.cli.options import gather
from fewfed.errors import ConfigError, DataError
from fewfed.runs.config_file import ConfigFile, read
from fewfed.runs.experiment import resolve

WHOLE = """\
# a comment
methods = ["fedavg", "fedprox:paper"]
seeds = 3
data = "digits"
cohort = 0.5

[training]
lr = 0.01
"epochs" = 2

[experiment]
rounds = 9

[method]
form = "other"

[method.fedprox]
mu = 0.3

[data_options]
classes = 10
"""


def written(folder: Path, text: str) -> ConfigFile:
    path = folder / "experiment.toml"
    path.write_text(text)
    return read(path)


def line_of(file: ConfigFile, name: str) -> int:
    return next(place.line for place in file.places if place.name == name)


def test_all_kinds_of_values(tmp_path: Path) -> None:
    file = written(tmp_path, WHOLE)
    assert file.methods == ("fedavg", "fedprox:paper")
    assert file.seeds == 3
    assert file.values == {
        "data": "digits",
        "cohort": 0.5,
        "training.lr": 0.01,
        "training.epochs": 2,
        "experiment.rounds": 9,
        "method.form": "other",
        "fedprox.mu": 0.3,
        "data_options.classes": 10,
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("methods", "methods ="),
        ("cohort", "cohort ="),
        ("training.lr", "lr ="),
        ("training.epochs", '"epochs" ='),
        ("method.fedprox.mu", "mu ="),
        ("data_options.classes", "classes ="),
    ],
)
def test_every_key_has_its_line(name: str, text: str, tmp_path: Path) -> None:
    expected = next(number for number, line in enumerate(WHOLE.splitlines(), 1) if line.startswith(text))
    assert line_of(written(tmp_path, WHOLE), name) == expected


def test_the_same_key_in_two_tables_has_two_lines(tmp_path: Path) -> None:
    file = written(tmp_path, "[method.fedprox]\nmu = 1\n[method.moon]\nmu = 2\n")
    assert (line_of(file, "method.fedprox.mu"), line_of(file, "method.moon.mu")) == (2, 4)


def test_dotted_keys_and_inline_tables(tmp_path: Path) -> None:
    file = written(tmp_path, "training.lr = 0.5\n\nmethod = { mu = 0.1 }\n")
    assert file.values == {"training.lr": 0.5, "method.mu": 0.1}
    assert (line_of(file, "training.lr"), line_of(file, "method.mu")) == (1, 3)
    assert file.methods == ()


@pytest.mark.parametrize("text", ['method = "flea"', 'methods = "flea"', 'methods = ["flea"]'])
def test_one_method_in_any_spelling(text: str, tmp_path: Path) -> None:
    assert written(tmp_path, text).methods == ("flea",)


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert written(tmp_path, "") == ConfigFile((), 1, {}, (), str(tmp_path / "experiment.toml"))


def test_file_then_set_then_flags(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text("rounds = 1\nclients = 1\nseed = 1\n[training]\nlr = 0.1\nbatch = 1\nepochs = 1\n")
    sets = ["clients=2", "seed=2", "training.batch=2", "lr=0.2", "training.epochs=2"]
    given = gather(path, sets, {"seed": 3, "epochs": 3, "lr": None})
    made = resolve("fedavg", given.values)
    assert (made.experiment.rounds, made.experiment.clients, made.experiment.seed) == (1, 2, 3)
    assert (made.training.lr, made.training.batch, made.training.epochs) == (0.2, 2, 3)


def test_a_flag_wins_over_set_however_the_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text("lr = 0.1\n")
    assert resolve("fedavg", gather(path, ["training.lr=0.2"], {"lr": 0.3}).values).training.lr == 0.3
    assert resolve("fedavg", gather(path, ["lr=0.1", "training.lr=0.2"], {}).values).training.lr == 0.2


def test_errors_about_keys_and_about_values_get_the_line(tmp_path: Path) -> None:
    file = written(tmp_path, 'method = "flae"\ndata = "digit"\nrounds = 0\n')
    assert "line 3: rounds = 0" in str(file.explain(ConfigError("rounds = 0: expected >= 1", key="rounds", value=0)))
    unknown = ConfigError("unknown method 'flae': did you mean 'flea'?", key="method", value="flae")
    assert "line 1: unknown" in str(file.explain(unknown))
    blamed = file.explain(DataError("unknown data 'digit': did you mean 'digits'?", key="data", value="digit"))
    assert isinstance(blamed, DataError)
    assert "line 2: unknown" in str(blamed)


def test_the_file_is_not_blamed_for_what_was_suggested_or_came_from_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text("rounds = 3\nmu = 1\n")
    suggestion = ConfigError("unknown field 'rouns': did you mean 'rounds'?", key="rouns")
    assert read(path).explain(suggestion) is suggestion
    overridden = gather(path, ["mu=-1"], {}).file
    assert overridden is not None
    complaint = ConfigError("mu = -1.0: expected >= 0", key="mu", value=-1.0)
    assert overridden.explain(complaint) is complaint
