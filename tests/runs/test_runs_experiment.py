"""Sorting values into the parts of an experiment, the size of a cohort, and the record that is read back."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewfed import Experiment, Training, run
from fewfed.data.readers.options import DataOptions
from fewfed.errors import ConfigError
from fewfed.methods.registry import choose, presets_of, registered
from fewfed.runs.experiment import Resolved, accepts, known_fields, layered, resolve
from run_support import SMALL, assert_same_end, called, small


def test_values_go_to_the_part_that_has_them() -> None:
    made = resolve("fedprox", {"mu": "0.5", "rounds": "7", "epochs": 3, "label": "kind"})
    assert made.chosen.method == choose("fedprox", {"mu": 0.5}).method
    assert (made.experiment.rounds, made.training.epochs, made.options.label) == (7, 3, "kind")


def test_a_part_before_the_dot_decides() -> None:
    made = resolve("fedprox", {"method.mu": 0.5, "training.lr": 0.2, "experiment.seed": 3, "data_options.classes": 4})
    assert made.values == {"mu": 0.5}
    assert (made.training.lr, made.experiment.seed, made.options.classes) == (0.2, 3, 4)


def test_of_two_names_for_one_field_the_later_wins() -> None:
    assert resolve("fedavg", {"lr": 0.1, "training.lr": 0.2}).training.lr == 0.2
    assert resolve("fedavg", {"training.lr": 0.2, "lr": 0.1}).training.lr == 0.1


def test_a_preset_brings_its_training_and_a_value_wins_over_it() -> None:
    brought = dict(choose("flea:official").training)
    assert brought
    made = resolve("flea:official", {})
    assert {name: getattr(made.training, name) for name in brought} == brought
    assert resolve("flea:official", {"batch": 5}).training.batch == 5


@given(cohort=st.integers(1, 99), clients=st.integers(1, 400))
def test_a_fraction_is_rounded_half_up_and_never_to_nobody(cohort: int, clients: int) -> None:
    size = Experiment(cohort=cohort / 100).cohort_size(clients)
    exact = Fraction(cohort, 100) * clients
    nearest = {int(exact), int(exact) + 1}
    assert size == 1 if exact < 1 else size in nearest
    assert abs(size - exact) <= Fraction(1, 2) + Fraction(1, 10**9) or size == 1
    assert 1 <= size <= clients


@given(count=st.integers(1, 50), clients=st.integers(1, 50))
def test_a_count_is_taken_as_it_is_or_refused(count: int, clients: int) -> None:
    experiment = Experiment(cohort=float(count))
    if count <= clients:
        assert experiment.cohort_size(clients) == count
    else:
        with pytest.raises(ConfigError, match=rf"cohort = {count} .* clients = {clients}"):
            experiment.cohort_size(clients)


@pytest.mark.parametrize("cohort", [1.5, float("inf"), 10.0])
def test_a_cohort_that_cannot_be(cohort: float) -> None:
    with pytest.raises(ConfigError, match="cohort = "):
        Experiment(cohort=cohort).cohort_size(9)


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ("fedavg", {}),
        ("fedprox", {"mu": "0.25", "rounds": "3", "lr": 0.5}),
        ("flea:official", {"share": 0.2, "split": "dir:0.1", "seed": 4}),
        ("flea", {"beta": float("inf"), "checkpoint_seconds": 1}),
        ("sem(flea)", {"inner.share": 0.5}),
        ("fedavg", {"executor": "cuda", "cuda.precision": "bf16", "cuda.kernels": "no", "cuda.streams": 4}),
    ],
)
def test_a_record_read_back_is_the_same(spec: str, values: dict[str, object]) -> None:
    made = resolve(spec, values)
    again = Resolved.from_json(json.loads(json.dumps(made.as_json())))
    assert again == made
    assert again.chosen == made.chosen


@pytest.mark.parametrize("missing", ["method", "method_fields", "experiment", "training", "data_options", "executors"])
def test_a_record_that_lacks_a_part_is_refused(missing: str) -> None:
    record = resolve("fedavg", {}).as_json()
    del record[missing]
    with pytest.raises(ConfigError, match=re.escape(f"damaged ('{missing}')")):
        Resolved.from_json(record)


def test_settings_made_in_python_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="rounds = 0"):
        run("fedavg", Experiment(rounds=0))
    with pytest.raises(ConfigError, match="lr = -1"):
        run("fedavg", Experiment(), Training(lr=-1))


def every_preset() -> list[str]:
    plain = [name if preset == "paper" else f"{name}:{preset}" for name in registered() for preset in presets_of(name)]
    return [*plain, "sem(scaffold)", "ccvr(flea:official)", "fedfa:released(scaffold)"]


@pytest.mark.parametrize("spec", every_preset())
def test_the_command_line_and_python_layer_settings_alike(spec: str) -> None:
    for said in ({}, {"epochs": 2}, {"optimizer": "adam", "lr": 1e-3}):
        typed = resolve(spec, {f"training.{name}": str(value) for name, value in said.items()})
        made = layered(spec, {}, Experiment(), Training(**said).stated(), DataOptions())
        assert typed == made
        own = choose(spec).training
        assert all(getattr(made.training, name) == value for name, value in {**own, **said}.items())


def test_python_and_the_command_line_run_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("scaffold", small(seed=3), Training(epochs=1), out=tmp_path / "python")
    arguments = ("run", "scaffold", *SMALL, "--seed", "3", "--executor", "sequential", "--out", str(tmp_path / "typed"))
    assert called(capsys, monkeypatch, *arguments)[0] == 0
    assert_same_end(tmp_path / "python", tmp_path / "typed")
    recorded = [json.loads((tmp_path / door / "config.json").read_text()) for door in ("python", "typed")]
    assert recorded[0] == recorded[1]
    assert (recorded[0]["training"]["optimizer"], recorded[0]["training"]["epochs"]) == ("sgd", 1)


def test_what_was_named_survives_copies() -> None:
    """`replace` names every field: only what differs from the default counts then."""
    named = Training(epochs=5, optimizer="adam")
    assert named.stated() == {"epochs": 5, "optimizer": "adam"}
    assert Training("sgd", 0.9).stated() == {"optimizer": "sgd", "momentum": 0.9}
    assert copy.deepcopy(named).stated() == named.stated()
    assert dataclasses.replace(Training(epochs=2), lr=0.1).stated() == {"epochs": 2, "lr": 0.1}
    assert Training().stated() == {}
    assert named == Training()


def test_what_a_method_accepts() -> None:
    assert accepts("fedprox", "mu")
    assert accepts("fedprox", "rounds")
    assert not accepts("fedavg", "mu")
    assert not accepts("fedavg", "fedprox.mu")
    assert {"mu", "rounds", "lr", "label"} <= known_fields("fedprox")


def test_fields_of_methods_inside_a_composition_can_be_named_by_method_or_alone() -> None:
    by_method = resolve("mixup(ccvr(flea))", {"flea.share": 0.3, "ccvr.samples": 7, "mixup.alpha": 0.5})
    assert by_method.values == {"inner.inner.share": 0.3, "inner.samples": 7, "alpha": 0.5}
    method = by_method.chosen.method
    assert [layer.name for layer in method.layers] == ["mixup", "ccvr", "flea"]
    assert method.layers[2].share == 0.3  # type: ignore[attr-defined]
    alone = resolve("mixup(flea)", {"decorrelate": 0, "lr": 0.5})
    assert alone.values == {"inner.decorrelate": 0}
    assert alone.training.lr == 0.5


def test_a_field_that_two_methods_inside_have_must_be_told_apart() -> None:
    with pytest.raises(ConfigError, match="share"):  # Of ccvr and of flea.
        resolve("mixup(ccvr(flea))", {"share": 0.3})
    assert resolve("ccvr(flea)", {"share": 0.3}).values == {"share": 0.3}, "the outer method's own comes first"


def test_an_executors_option_is_not_taken_for_a_method() -> None:
    assert resolve("mixup(flea)", {"workers.processes": 2}).executors == {"workers": {"processes": 2}}
