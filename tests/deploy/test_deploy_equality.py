"""A run between sites is the run that a simulation with the same seed and the same sites makes, to rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from federation import NAMES, Federation, difference, write_digits

from fewfed import Experiment, Training, run
from fewfed.data.readers.options import DataOptions
from fewfed.engine import storage
from fewfed.errors import ConfigError
from fewfed.runs.folder import CHECKPOINT, MODEL, RunFolder

METHODS = ("fedavg", "flea", "scaffold", "sem(fedavg)", "flair", "ccvr(fedavg)")


def simulated(method: str, folder: Path, rounds: int = 5, cohort: int = 5, **more: Any) -> Path:
    write_digits(folder)
    experiment = Experiment(
        data=str(folder / "all.npz"),
        network="mlp",
        rounds=rounds,
        cohort=cohort,
        seed=3,
        executor="sequential",
        leak=False,
        **more,
    )
    options = DataOptions(test_column="held")
    result = run(method, experiment, Training(epochs=2, batch=8, lr=0.05), options=options, out=folder / "simulated")
    return Path(result.folder)


@pytest.mark.parametrize("method", METHODS)
def test_sites_and_a_simulation_agree(method: str, tmp_path: Path) -> None:

    reference = simulated(method, tmp_path)
    federation = Federation(tmp_path, method)
    found = Path(federation.run().folder)
    ours, theirs = (RunFolder(place).metrics() for place in (found, reference))
    assert len(ours) == len(theirs) == 5
    assert difference(storage.load(found / CHECKPOINT)[0], storage.load(reference / CHECKPOINT)[0]) < 1e-5
    assert difference(storage.load(found / MODEL)[0], storage.load(reference / MODEL)[0]) < 1e-5
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["failed"] == other["failed"] == []
        assert mine["steps"] == other["steps"]
        assert mine["per_group"].keys() == set(NAMES)
        assert mine["per_group"] == pytest.approx(other["per_group"])
        assert mine["bytes"] == other["bytes"]
        assert mine["phases"].keys() == other["phases"].keys()


@pytest.mark.parametrize("method", ["scaffold", "flair"])
def test_sites_that_do_not_take_part_in_every_round_remember_what_they_should(method: str, tmp_path: Path) -> None:
    reference = simulated(method, tmp_path, rounds=6, cohort=2)
    federation = Federation(tmp_path, method, rounds=6, quorum=2, more="cohort = 2")
    found = Path(federation.run().folder)
    assert difference(storage.load(found / CHECKPOINT)[0], storage.load(reference / CHECKPOINT)[0]) < 1e-5


def test_robust_combination_between_sites_is_that_of_a_simulation(tmp_path: Path) -> None:
    reference = simulated("flea", tmp_path, rounds=3, robust="median", row_filter=2.0)
    federation = Federation(tmp_path, "flea", rounds=3, more='robust = "median"\nrow_filter = 2.0')
    found = Path(federation.run().folder)
    assert difference(storage.load(found / MODEL)[0], storage.load(reference / MODEL)[0]) < 1e-5
    ours, theirs = (
        [phase.get("defended") for line in RunFolder(place).metrics() for phase in line["phases"].values()]
        for place in (found, reference)
    )
    assert ours == theirs
    assert any(ours)


@pytest.mark.parametrize(
    ("more", "federation", "words"),
    [
        ('robust = "median"', "secure = true", "sums under masks hide"),
        ('attack = "sign-flip"\nattackers = "0"', "", "simulations only"),
        ('robust = "krum"\nrobust_attackers = 2', "", "not enough"),
    ],
)
def test_what_does_not_fit_real_sites_is_refused_before_anybody_is_asked(
    more: str, federation: str, words: str, tmp_path: Path
) -> None:
    write_digits(tmp_path)
    with pytest.raises(ConfigError, match=words):
        Federation(tmp_path, "fedavg", more=more, federation=federation).run()
    assert not (tmp_path / "run").exists()
