"""Rows are shared from where they are not as good as the inputs, unless somebody says that rows are public."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from torch import nn

from fewfed.data.federation import Federation
from fewfed.errors import ConfigError
from fewfed.methods.parts import cuts
from fewfed.methods.registry import choose
from fewfed.network import Network
from fewfed.runs.experiment import Experiment, resolve
from fewfed.runs.prepare import prepare
from support import digits_federation, job_of, run

OWN = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 32), nn.ReLU(), nn.Linear(32, 10))
"""Stages layer1 to layer6, of which the first two are affine; layer3 is wider than the input, layer4 is not."""
STRAIGHT = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Linear(32, 10))
CONVOLVED = nn.Sequential(
    nn.Conv2d(1, 4, 3),
    nn.BatchNorm2d(4),
    nn.AvgPool2d(2),
    nn.Flatten(),
    nn.Linear(36, 20),
    nn.Tanh(),
    nn.Linear(20, 10),
)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return digits_federation(4, 20)


def refused(spec: str, module: nn.Module, federation: Federation, **values: object) -> str:
    job = job_of(choose(spec, values).method, federation, net=Network.of(module))
    with pytest.raises(ConfigError) as raised:
        job.check()
    dataclasses.replace(job, rows_public=True).check()
    return str(raised.value)


def test_an_own_network_is_cut_behind_its_first_narrow_nonlinear_stage(federation: Federation) -> None:
    ended = run(job_of("flea", federation, net=Network.of(OWN)), rounds=2, cohort=2)
    assert ended.server["features"].shape[1:] == (32,)
    ended = run(job_of("flea", federation, net=Network.of(CONVOLVED)), rounds=1, cohort=2)
    assert ended.server["features"].shape[1:] == (20,)


@pytest.mark.parametrize("spec", ["flea", "flea:official", "sem(flea)", "ccvr"])
@pytest.mark.parametrize("cut", ["layer1", "layer2", "2"])
def test_an_affine_cut_is_refused_with_those_that_will_do(spec: str, cut: str, federation: Federation) -> None:
    name = "inner.cut" if spec.startswith("sem") else "cut"
    said = refused(spec, OWN, federation, **{name: cut})
    stage = f"layer{cut.removeprefix('layer')}"
    assert f"stage '{stage}' of network 'custom', which is an affine function of the input" in said
    assert "a cut behind a nonlinearity (layer3, layer4, layer5), or rows_public = true" in said


def test_what_is_convolved_normalised_and_averaged_is_still_affine(federation: Federation) -> None:
    for stage in range(1, 6):
        assert f"'layer{stage}'" in refused("flea", CONVOLVED, federation, cut=f"layer{stage}")
    job_of(choose("flea", {"cut": "layer6"}).method, federation, net=Network.of(CONVOLVED)).check()


@pytest.mark.parametrize("spec", ["flea", "ccvr"])
def test_the_inputs_themselves_are_refused(spec: str, federation: Federation) -> None:
    assert "share the rows themselves (cut = input)" in refused(spec, OWN, federation, cut="input")


def test_what_is_inside_a_wrapper_is_looked_at_too(federation: Federation) -> None:
    assert "method 'flea' would" in refused("ccvr(flea)", OWN, federation, **{"inner.cut": "layer2"})
    assert "method 'ccvr' would" in refused("ccvr(flea)", OWN, federation, cut="layer2")


def test_the_last_but_one_stage_is_refused_where_it_is_affine(federation: Federation) -> None:
    said = refused("ccvr", STRAIGHT, federation)
    assert "stage 'layer2'" in said
    assert "expected a network with such a cut" in said


def test_without_a_nonlinearity_there_is_no_default(federation: Federation) -> None:
    job = job_of("flea", federation, net=Network.of(STRAIGHT))
    with pytest.raises(ConfigError, match="no stage before its last whose output is not an affine function") as raised:
        job.check()
    assert "rows_public = true" in str(raised.value)
    named = dataclasses.replace(job, method=choose("flea", {"cut": "layer1"}).method)
    with pytest.raises(ConfigError, match="'layer1'"):
        named.check()
    dataclasses.replace(named, rows_public=True).check()


@pytest.mark.parametrize(("spec", "values"), [("flea", {"share": 0.0, "cut": "layer1"}), ("ccvr:gaussian", {})])
def test_who_shares_no_rows_is_not_concerned(spec: str, values: dict[str, object], federation: Federation) -> None:
    job_of(choose(spec, values).method, federation, net=Network.of(STRAIGHT)).check()


@pytest.mark.parametrize("spec", ["feddata", "fedmix", "fedavg", "moon", "fedproto", "fedfa"])
def test_who_cuts_nowhere_or_shares_inputs_by_its_name_is_not_concerned(spec: str, federation: Federation) -> None:
    job_of(spec, federation, net=Network.of(OWN)).check()


def test_the_cut_is_found_out_once(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of("flea", federation, net=Network.of(OWN))
    job.check()
    monkeypatch.setattr("fewfed.network.default_cut", lambda *_: pytest.fail("it is known"))
    monkeypatch.setattr("fewfed.network.is_affine_at", lambda *_: pytest.fail("it is known"))
    assert cuts.position(job.setup, "") == 4
    run(job, rounds=2, cohort=2)


def test_what_is_allowed_does_not_make_another_run_and_is_asked_of_the_experiment(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "from torch import nn\n"
        "def build(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes))\n"
    )
    common = {"network": f"{file}:build", "clients": 6, "rounds": 2, "cut": "layer2"}
    strict, public = resolve("flea", common), resolve("flea", {**common, "rows_public": "true"})
    assert strict.identity == public.identity
    with pytest.raises(ConfigError, match="rows_public = true"):
        prepare(strict)
    assert prepare(public).job.setup.rows_public
    assert Experiment().rows_public is False
