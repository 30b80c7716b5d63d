"""Natural sites: each keeps a row to train on, the test part is held out within them, and folders may be sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fewfed.data.examples import Dataset, Examples
from fewfed.data.fingerprint import fingerprint
from fewfed.data.readers.holdout import hold_out, hold_out_within
from fewfed.data.readers.options import DataOptions
from fewfed.data.sources import load
from fewfed.errors import ConfigError, DataError
from fewfed.runs.experiment import Experiment, resolve
from fewfed.runs.prepare import data_of, prepare, settled

RAW = DataOptions(normalise="none")


# --- what is held out ------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    rows=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4)), min_size=1, max_size=80),
    fraction=st.sampled_from([0.05, 0.2, 0.5, 0.9]),
    seed=st.integers(0, 5),
)
def test_every_site_and_every_class_keeps_a_training_row(
    rows: list[tuple[int, int]], fraction: float, seed: int
) -> None:
    sites, classes = (np.array(column) for column in zip(*rows, strict=True))
    kept, held = hold_out_within(sites, classes, fraction, seed)
    assert sorted([*kept, *held]) == list(range(len(rows)))
    assert set(sites[kept]) == set(sites)
    assert set(classes[kept]) == set(classes)
    again = hold_out_within(sites, classes, fraction, seed)
    assert np.array_equal(kept, again[0])
    for site in np.unique(sites):
        size, given_ = int((sites == site).sum()), int((sites[held] == site).sum())
        assert given_ <= np.floor(fraction * size + 1e-9) + 1
    assert len(held) <= len(hold_out(sites, fraction, seed)[1])


def test_classes_have_their_share_although_no_small_site_can_give_it() -> None:
    """100 sites with four rows of one class and one of another: a fifth of each class is held out all the same."""
    sites = np.repeat(np.arange(100), 5)
    classes = np.tile([0, 0, 0, 0, 1], 100)
    for seed in range(5):
        _, held = hold_out_within(sites, classes, 0.2, seed)
        assert np.bincount(sites[held], minlength=100).tolist() == [1] * 100
        assert abs(int((classes[held] == 1).sum()) - 20) <= 1


def test_large_sites_are_stratified_by_themselves() -> None:
    sites = np.repeat(np.arange(4), 200)
    classes = np.random.default_rng(0).integers(0, 3, 800)
    _, held = hold_out_within(sites, classes, 0.25, 3)
    for site in range(4):
        for label in range(3):
            whole = int(((sites == site) & (classes == label)).sum())
            assert abs(int(((sites[held] == site) & (classes[held] == label)).sum()) - whole / 4) < 2


def test_many_sites_are_held_out_quickly() -> None:
    draw = np.random.default_rng(0)
    _, held = hold_out_within(draw.integers(0, 6_000, 30_000), draw.integers(0, 10, 30_000), 0.2, 0)
    assert 5_700 < len(held) <= 6_000


@pytest.mark.parametrize("seed", range(6))
def test_a_site_of_one_row_trains_whatever_the_seed(tmp_path: Path, seed: int) -> None:
    """Its row went to the test part for some seeds, and nothing said so."""
    lines = [f"{i},{i % 2},{'tiny' if i == 7 else 'N' if i < 20 else 'S'}" for i in range(40)]
    (tmp_path / "t.csv").write_text("a,y,ward\n" + "\n".join(lines))
    found = load(str(tmp_path / "t.csv"), options=DataOptions(normalise="none", site="ward"), seed=seed)
    assert found.reading is not None
    sites = {site.name: (site.train, site.test) for site in found.reading.sites}
    assert sites["tiny"] == (1, 0)
    assert [sum(sites[name]) for name in ("N", "S")] == [19, 20]
    assert 7.0 in found.train.x
    assert found.reading.test_part == "fraction of each site"


def test_sites_of_one_row_each_leave_nothing_to_test_on(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y,site\n" + "".join(f"{i},{i % 2},s{i}\n" for i in range(8)))
    with pytest.raises(DataError, match=r"8 rows of 8 sites, too few to hold any out.*--test-data"):
        load(str(tmp_path / "t.csv"), options=RAW)


def test_an_array_of_an_npz_file_is_the_site(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.ones((8, 2)), truth=[0, 1] * 4, ward=["N", "S"] * 4, junk=np.ones(3))
    chosen = DataOptions(normalise="none", site="ward", label="truth", ignore=("junk",))
    found = load(str(tmp_path / "t.npz"), options=chosen)
    assert found.group_names == {"site": ("N", "S")}
    with pytest.raises(DataError, match=r"option site: .*did you mean 'ward'"):
        load(str(tmp_path / "t.npz"), options=DataOptions(site="wart", label="truth", ignore=("junk",)))
    with pytest.raises(DataError, match="--ignore 'junk'"):
        load(str(tmp_path / "t.npz"), options=DataOptions(site="ward", label="truth"))
    np.savez(tmp_path / "t.npz", x=np.ones((8, 2)), y=[0, 1] * 4, held=np.arange(8) > 5)
    with pytest.raises(DataError, match=r"to test on is named with --test-column 'held', .*--ignore 'held'"):
        load(str(tmp_path / "t.npz"), options=RAW)


# --- folders of images -----------------------------------------------------------------------------------------------


def pictures(root: Path, *folders: str, count: int = 3, size: tuple[int, int] = (4, 4)) -> Path:
    for shade, folder in enumerate(folders):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.new("L", size, 10 * shade + number).save(root / folder / f"{number}.png")
    return root


def test_site_folders_with_class_folders_are_recognised(tmp_path: Path) -> None:
    """They were read as if sites were classes."""
    root = pictures(tmp_path / "scans", "Bonn/ill", "Bonn/well", "Köln/ill", "Ulm/well", "Köln/well")
    found = load(str(root), options=RAW)
    assert found.class_names == ("ill", "well")
    assert found.group_names == {"site": ("Bonn", "Köln", "Ulm")}
    assert found.reading is not None
    assert [(site.name, site.train + site.test) for site in found.reading.sites] == [
        ("Bonn", 6),
        ("Köln", 6),
        ("Ulm", 3),
    ]
    for part, groups in ((found.train, found.groups), (found.test, found.test_groups)):
        shades = (part.x[:, 0, 0, 0] * 255).round().long() // 10
        assert shades.tolist() == [
            {(0, 0): 0, (0, 1): 1, (1, 0): 2, (2, 1): 3, (1, 1): 4}[(int(site), int(label))]
            for site, label in zip(groups["site"], part.y, strict=True)
        ]


def test_site_folders_below_train_and_test(tmp_path: Path) -> None:
    folders = [f"{part}/{site}/{label}" for part in ("train", "test") for site in "AB" for label in ("x", "y")]
    found = load(str(pictures(tmp_path / "scans", *folders)), options=RAW)
    assert (len(found.train), len(found.test), found.class_names) == (12, 12, ("x", "y"))
    assert found.group_names == {"site": ("A", "B")}
    plain = load(str(pictures(tmp_path / "plain", "train/x", "train/y", "test/x")), options=RAW)
    assert (len(plain.train), len(plain.test), plain.groups) == (6, 3, {})


AMBIGUOUS = {
    "sites without a common class": ("Bonn/ill", "Köln/well"),
    "one folder in a folder": ("Bonn/ill", "Bonn/well"),
    "images beside folders": ("Bonn", "Köln/ill", "Köln/well"),
}


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_folders_that_nobody_can_tell_apart_are_refused_until_stated(tmp_path: Path, case: str) -> None:
    root = pictures(tmp_path / "scans", *AMBIGUOUS[case])
    with pytest.raises(DataError, match=r"--set layout=sites .*--set layout=classes"):
        load(str(root), options=RAW)
    by_class = DataOptions(normalise="none", layout="classes", classes=2)
    if case != "one folder in a folder":
        assert load(str(root), options=by_class).class_names == ("Bonn", "Köln")
        assert fingerprint(str(root), by_class)
    stated = load(str(root), options=DataOptions(normalise="none", layout="sites"))
    assert set(stated.class_names) == {"ill", "well"}


def test_train_and_test_within_sites_are_refused(tmp_path: Path) -> None:
    root = pictures(tmp_path / "scans", "A/train/x", "A/test/x", "B/train/x", "B/test/x")
    with pytest.raises(DataError, match="expected train and test on top, as in train/SITE/CLASS/IMAGE"):
        load(str(root), options=RAW)


def test_another_folder_is_the_test_part_and_sizes_may_differ(tmp_path: Path) -> None:
    root = pictures(tmp_path / "scans", "ill", "well")
    later = pictures(tmp_path / "later", "ill", "well", size=(8, 6))
    chosen: dict[str, Any] = {"normalise": "none", "test_data": str(later)}
    with pytest.raises(DataError, match=r"images differ in size .*--size PIXELS"):
        load(str(root), options=DataOptions(**chosen))
    found = load(str(root), options=DataOptions(**chosen, image_size=5))
    assert (found.shape, len(found.train), len(found.test)) == ((1, 5, 5), 6, 6)
    with pytest.raises(ConfigError, match="site = 'ward' names a column, which folders of images have not"):
        load(str(root), options=DataOptions(site="ward"))
    before = fingerprint(str(root), DataOptions(**chosen))
    Image.new("L", (8, 6), 99).save(later / "ill" / "0.png")
    assert fingerprint(str(root), DataOptions(**chosen)) != before


# --- what is done where nobody says anything --------------------------------------------------------------------------


def table(path: Path, sites: int, rows: int = 4, column: str = "site") -> str:
    lines = [f"{i},{i % 2},s{i % sites}" for i in range(rows * sites)]
    path.write_text(f"a,y,{column}\n" + "\n".join(lines))
    return str(path)


@pytest.mark.parametrize(
    ("sites", "cohort", "members"), [(2, 2.0, 2), (5, 5.0, 5), (20, 20.0, 20), (21, 0.1, 2), (60, 0.1, 6)]
)
def test_sites_are_the_clients_and_all_of_few_take_part(
    tmp_path: Path, sites: int, cohort: float, members: int
) -> None:
    prepared = prepare(resolve("fedavg", {"data": table(tmp_path / "t.csv", sites)}))
    experiment = prepared.resolved.experiment
    assert (experiment.split, experiment.clients, experiment.cohort) == ("site", sites, cohort)
    assert (prepared.cohort, len(prepared.split)) == (members, sites)


def test_what_somebody_says_is_left_alone(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", 6)
    for said, expected in (
        ({"split": "iid"}, ("iid", 50, 0.1)),
        ({"clients": 3, "split": "iid"}, ("iid", 3, 0.1)),
        ({"cohort": 2}, ("site", 6, 2.0)),
        ({"split": "site", "clients": 0}, ("site", 0, 6.0)),
        ({"leave_out": "s3"}, ("site", 5, 5.0)),
    ):
        resolved = resolve("fedavg", {"data": path, **said})
        experiment = settled(resolved, data_of(resolved)).experiment
        assert (experiment.split, experiment.clients, experiment.cohort) == expected
    assert not Experiment(data=path).is_settled


@pytest.mark.parametrize(("column", "split"), [("site", "site"), ("client", "client"), ("subject", "subject")])
def test_columns_that_are_known_to_be_sites(tmp_path: Path, column: str, split: str) -> None:
    resolved = resolve("fedavg", {"data": table(tmp_path / "t.csv", 3, column=column)})
    assert settled(resolved, data_of(resolved)).experiment.split == split


def test_data_sets_known_by_name_and_data_without_sites_stay_as_they_were(tmp_path: Path) -> None:
    for name in ("digits", "har", "office"):
        experiment = resolve("fedavg", {"data": name}).experiment
        assert (experiment.split, experiment.clients, experiment.cohort) == ("qua:2", 50, 0.1)
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(200)))
    resolved = resolve("fedavg", {"data": str(tmp_path / "t.csv")})
    experiment = settled(resolved, data_of(resolved)).experiment
    assert (experiment.split, experiment.clients, experiment.cohort) == ("qua:2", 50, 0.1)


def test_labels_and_rows_of_plain_files_are_as_they_were(tmp_path: Path) -> None:
    """Without sites the rows held out are those of a search by class, as always."""
    y = np.random.default_rng(0).integers(0, 3, 50)
    np.savez(tmp_path / "t.npz", x=np.arange(50.0), y=y)
    found = load(str(tmp_path / "t.npz"), options=RAW, seed=4)
    kept, held = hold_out(y, 0.2, 4)
    assert torch.equal(found.train.x.flatten(), torch.tensor(kept).float())
    assert torch.equal(found.test.y, torch.tensor(y[held]))


def test_sites_of_data_made_in_python_are_the_clients() -> None:
    rows = Examples(torch.arange(12.0)[:, None], torch.arange(12) % 2)
    own = Dataset("mine", rows, rows, 2, groups={"client": np.arange(12) % 3, "domain": np.arange(12) % 2})
    experiment = prepare(resolve("fedavg", {"data": "mine"}), data=own).resolved.experiment
    assert (experiment.split, experiment.clients, experiment.cohort) == ("client", 3, 3.0)
