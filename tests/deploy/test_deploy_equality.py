"""A run between sites is the run that a simulation with the same seed and the same sites makes, to rounding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from federation import NAMES, ROWS, Federation, difference, write_digits

from fewfed import Experiment, Training, run, tree
from fewfed.data.readers.options import DataOptions
from fewfed.engine import storage
from fewfed.errors import ConfigError
from fewfed.runs.folder import CHECKPOINT, MODEL, RunFolder

METHODS = ("fedavg", "flea", "scaffold", "sem(fedavg)", "flair", "ccvr(fedavg)")


AVERAGING: dict[str, dict[str, Any]] = {
    "grouped(flea)": {"k": 5, "inner.share": 0.5},
    "potluck": {"k": 5, "share": 0.5, "blur": 0.0},
}
"""Methods whose clients send averages of rows of a class, with settings under which sites of few rows have some.
Without noise, which is never a simulation's."""
MORE = ("amber", "birch", "cedar"), (60, 50, 40)
"""Sites with rows enough, and how many."""


def simulated(
    method: str,
    folder: Path,
    rounds: int = 5,
    cohort: int = 5,
    settings: Mapping[str, Any] = MappingProxyType({}),
    sites: tuple[tuple[str, ...], tuple[int, ...]] = (NAMES, ROWS),
    **more: Any,
) -> Path:
    write_digits(folder, *sites)
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
    training, out = Training(epochs=2, batch=8, lr=0.05), folder / "simulated"
    result = run(method, experiment, training, values=settings, options=options, out=out)
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


@pytest.mark.parametrize("method", AVERAGING)
def test_sites_that_send_averages_and_a_simulation_agree(method: str, tmp_path: Path) -> None:
    """No blank client sends any: sites must still know what will come of them."""
    reference = simulated(method, tmp_path, rounds=3, cohort=3, settings=AVERAGING[method], sites=MORE)
    more = written(AVERAGING[method])
    found = Path(Federation(tmp_path, method, rounds=3, quorum=3, names=MORE[0], more=more).run().folder)
    assert_agree(found, reference)
    assert rows_handed_on(found)


def written(settings: Mapping[str, Any]) -> str:
    """Settings of a method as lines of a file."""
    return "\n".join(f'"{name}" = {value}' for name, value in settings.items())


def rows_handed_on(found: Path) -> int:
    """How many rows the server has for clients at the end."""
    leaves = tree.leaves(storage.load(found / CHECKPOINT)[0])
    return max(len(leaf) for path, leaf in leaves if path.endswith("labels"))


def assert_agree(found: Path, reference: Path) -> None:
    """The same models to rounding, and nobody failed."""
    for name in (MODEL, CHECKPOINT):
        assert difference(storage.load(found / name)[0], storage.load(reference / name)[0]) < 1e-5
    for mine, other in zip(RunFolder(found).metrics(), RunFolder(reference).metrics(), strict=True):
        assert mine["failed"] == other["failed"] == []
        assert mine["per_group"] == pytest.approx(other["per_group"])


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
