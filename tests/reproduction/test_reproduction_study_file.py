"""Reading studies: what becomes a run, with which settings, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_study import STUDY, TABLE, write_study

from fewfed.errors import ConfigError
from fewfed.reproduction.library import Library
from fewfed.reproduction.study import Study


def read(tmp_path: Path, text: str = STUDY, table: str = TABLE) -> Study:
    return Library.at(write_study(tmp_path, text, table)).study("small")


def test_every_combination_is_one_run(tmp_path: Path) -> None:
    study = read(tmp_path)
    places = [(run.at["split"], run.at["method"], run.at["seed"]) for run in study.runs]
    expected = [(s, m, k) for s in ("qua:2", "iid") for m in ("fedavg", "flea, half") for k in (0, 1)]
    assert places == expected
    assert study.axes == ("data", "split", "clients", "method")
    assert len({run.name for run in study.runs}) == len(study.runs)
    for run in study.runs:
        assert run.resolved.experiment.seed == run.at["seed"]
        assert run.resolved.training.epochs == 1


def test_labels_and_rules_set_fields_of_their_runs_only(tmp_path: Path) -> None:
    fields = {(run.at["split"], run.at["method"]): dict(run.resolved.values) for run in read(tmp_path).runs}
    assert fields == {
        ("qua:2", "fedavg"): {},
        ("iid", "fedavg"): {},
        ("qua:2", "flea, half"): {"beta": float("inf"), "cut": "hidden1"},
        ("iid", "flea, half"): {"beta": float("inf"), "cut": "hidden1", "share": 0.5},
    }


def test_common_fields_are_not_taken_for_the_methods_own(tmp_path: Path) -> None:
    text = STUDY.replace('"fedavg", "flea, half"]', '"fedavg", "flea, half", "ccvr"]')
    text += "\n[[set]]\nwhen = { method = 'ccvr', split = 'iid' }\nmethod.epochs = 3\n"
    runs = {run.at["split"]: run.resolved for run in read(tmp_path, text).runs if run.at["method"] == "ccvr"}
    assert runs["qua:2"].training.epochs == 1
    assert runs["qua:2"].chosen.method.epochs == 20  # type: ignore[attr-defined]
    assert runs["iid"].chosen.method.epochs == 3  # type: ignore[attr-defined]


def test_a_sweep_is_an_axis_and_wins_over_the_label(tmp_path: Path) -> None:
    text = STUDY.replace("[[set]]", "[block.sweep]\nbeta = [1.0, 2.0]\nvolume = 0.5\n\n[[set]]", 1)
    text = text.replace('["fedavg", "flea, half"]', '"flea, half"').replace('method = "method"\n', "")
    text = text.replace('[published.spelling.method]\n"flea, half" = "FLea*"', "")
    study = read(tmp_path, text, "where,mean,std\nQuantity(2),1,1\n")
    assert study.axes == ("data", "split", "clients", "beta", "volume", "method")
    assert {(run.at["beta"], run.resolved.values["beta"]) for run in study.runs} == {(1.0, 1.0), (2.0, 2.0)}
    assert {run.resolved.experiment.volume for run in study.runs} == {0.5}


def test_wrapped_methods_have_dotted_fields(tmp_path: Path) -> None:
    text = STUDY.replace('"fedavg", "flea, half"]', '"fedavg", "flea, half", "sem(fedprox)"]')
    text += '\n[method."sem(fedprox)"]\ninner.mu = 0.5\n'
    runs = [run for run in read(tmp_path, text).runs if run.at["method"] == "sem(fedprox)"]
    assert all(run.resolved.chosen.method.inner.mu == 0.5 for run in runs)  # type: ignore[attr-defined]


def test_the_same_run_twice_is_one_and_with_other_settings_refused(tmp_path: Path) -> None:
    again = '\n[[block]]\ndata = "digits"\nsplit = "iid"\nclients = 6\nmethods = "fedavg"\n'
    assert len(read(tmp_path, STUDY + again).runs) == 8
    with pytest.raises(ConfigError, match="different settings"):
        read(tmp_path, STUDY + again + "volume = 0.5\n")


def test_seeds_may_be_listed(tmp_path: Path) -> None:
    study = read(tmp_path, STUDY.replace("seeds = 2", "seeds = [1, 10]"))
    assert study.values["seed"] == [1, 10]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('name = "small"', 'name = "other"', "name = 'other': expected 'small'"),
        ("[common]", "[comon]", "did you mean 'common'"),
        ("seeds = 2", "seeds = 0.5", "seeds = 0.5"),
        ("network =", "netwrk =", "did you mean 'network'"),
        ("share = 0.5", "share = 5", "share = 5"),
        ('when = { split = "iid"', 'when = { split = "idd"', "fits no run"),
        ('split = ["qua:2", "iid"]\n', "", "block 1 has no 'split'"),
        ('use = "flea"', 'use = "fleaa"', "did you mean 'flea'"),
        ('where = "split"', 'wher = "split"', "did you mean 'where'"),
        ('where = "split"', 'where = "splits"', "did you mean 'split'"),
        ('"qua:2" = "Quantity(2)"', '"qua:2" = "Qty(2)"\niid = "equal"', "no run has a row"),
        ('sd = "std"', 'sd = "std"\ncompare = "first"', "compare = 'first'"),
        ('table = "small.csv"', 'table = "none.csv"', "cannot read the published table"),
        ('method = "method"', "", "2 rows for"),
        ('"fedavg", "flea, half"', '"fedavg"', "used by no block"),
        ("[[set]]", '[[curve]]\nquantity = "best"\nround = 1\nvalue = 1\n\n[[set]]', "one setting and one method"),
        ("[[block]]", "[[block]]\nsweep = { seed = [1] }", "already is a column"),
        ("[common]", "[common", "not TOML"),
    ],
)
def test_mistakes_are_named_with_the_file(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert old in STUDY
    text = STUDY.replace(old, new, 1)
    if old == 'method = "method"':
        text = text.replace('[published.spelling.method]\n"flea, half" = "FLea*"', "")
    with pytest.raises(ConfigError, match=r"small\.toml") as raised:
        read(tmp_path, text)
    assert sentence in str(raised.value)


def test_an_unknown_name_and_a_missing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library.at(write_study(tmp_path))
    with pytest.raises(ConfigError, match="did you mean 'small'"):
        library.study("smal")
    monkeypatch.chdir(tmp_path / "mine")
    with pytest.raises(ConfigError, match="--from DIR"):
        Library.at(None)
