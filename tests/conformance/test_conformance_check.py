"""`fewfed check`: a method that breaks a promise is found out, by the promise it breaks, with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fewfed.conformance import suite
from fewfed.conformance.property import Property, Verdict
from fewfed.conformance.reference import Reference
from fewfed.conformance.suite import PROPERTIES, examine, verdict
from fewfed.errors import ConfigError
from run_support import called

pytestmark = pytest.mark.timeout(120)

HEAD = '''
from dataclasses import dataclass

import torch

from fewfed import tree
from fewfed.errors import ConfigError
from fewfed.method import Method
from fewfed.phase import Phase

CALLS = []


@dataclass(frozen=True)
class Bad(Method):
    """Breaks one promise."""

    name = "bad"
    family = "none"
    paper = "own work"
'''

BROKEN = {
    "it says what it is": "    family = ''\n",
    "worker processes compute the same bits": """
    def loss(self, work, ctx, batch):
        CALLS.append(1)  # What one process counts, several do not.
        return {name: term * (1 + len(CALLS) % 7) for name, term in super().loss(work, ctx, batch).items()}
""",
    "the order in which clients were drawn does not matter": """
    def loss(self, work, ctx, batch):
        first = ctx.plan.cohort(ctx.clock.round, 8, 4)[0]
        return {name: term * (1 + first) for name, term in super().loss(work, ctx, batch).items()}
""",
    "an interrupted run continues as if nothing had happened": """
    def server_init(self, setup):
        CALLS.clear()
        return super().server_init(setup)

    def client_init(self, setup):
        CALLS.append(1)  # Once more where a run is continued.
        return super().client_init(setup)

    def absorb(self, server, combined):
        return tree.map(lambda leaf: leaf * (1 + 0.01 * len(CALLS)), super().absorb(server, combined))
""",
    "nobody fails on ordinary clients": """
    def end(self, work, ctx):
        if ctx.client % 2:
            next(iter(ctx.shared["model"]["params"].values())).data.add_(1e-3)
        return super().end(work, ctx)
""",
    "clients take FedAvg's number of steps": """
    def phases(self, clock):
        return (Phase("train", self, 2 * clock.epochs),)
""",
    "clients weigh what the training says": """
    def end(self, work, ctx):
        return super().end(work, ctx)._replace(weight=0.5)
""",
    "the model becomes better": """
    def loss(self, work, ctx, batch):
        return {name: -term for name, term in super().loss(work, ctx, batch).items()}
""",
    "its neutral setting is FedAvg": """
    neutral = {"rho": 0.0}
    rho: float = 0.5

    def loss(self, work, ctx, batch):
        size = tree.dot(work["params"], work["params"])
        return {**super().loss(work, ctx, batch), "size": (self.rho + 1e-3) * size}
""",
    "it aims at the common optimum": """
    def loss(self, work, ctx, batch):
        return {**super().loss(work, ctx, batch), "size": 0.05 * tree.dot(work["params"], work["params"])}
""",
    "it corrects drift": "    corrects_drift = True\n",
    "clients with one sample or one class finish or are reported": """
    def absorb(self, server, combined):
        if len(combined.clients) == 5:
            raise ValueError("five are too many")
        return super().absorb(server, combined)
""",
    "steps recorded for a GPU compute the same, in float64": """
    def draw(self, random, ctx, size):
        return {"one": torch.ones(size, dtype=ctx.dtype)}

    def loss(self, work, ctx, batch):
        CALLS.append(1)
        noise = 1 + 1e-3 * (len(CALLS) % 7)
        return {name: term * noise for name, term in super().loss(work, ctx, batch).items()}
""",
}


def file(folder: Path, body: str) -> str:
    path = folder / "bad.py"
    path.write_text(HEAD + body)
    return str(path)


SLOW = ("it corrects drift", "it aims at the common optimum")


def broken() -> list[Any]:
    return [pytest.param(each, marks=pytest.mark.thorough) if each in SLOW else each for each in BROKEN]


@pytest.mark.parametrize("promise", broken())
def test_a_broken_promise_is_found(promise: str, tmp_path: Path) -> None:
    reference = Reference.of(file(tmp_path, BROKEN[promise]))
    (looked_at,) = (each for each in PROPERTIES if each.name == promise)
    found = verdict(looked_at, reference)
    assert found.state == "failed"
    assert found.reason
    assert "\n" not in found.reason


def test_a_method_that_cannot_run_at_all_fails_with_the_line(tmp_path: Path) -> None:
    method = file(tmp_path, "    def loss(self, work, ctx, batch):\n        return {'task': work['nothing']}\n")
    (only,) = examine(method)
    assert (only.name, only.state) == ("it runs", "failed")
    assert "bad.py, line" in only.reason


def test_a_method_that_does_not_fit_is_refused_as_everywhere(tmp_path: Path) -> None:
    method = file(tmp_path, "    def check(self, setup):\n        raise ConfigError('never')\n")
    with pytest.raises(ConfigError, match="never"):
        list(examine(method))


def test_what_cannot_be_recorded_is_told_and_no_failure() -> None:
    reference = Reference.of("fedfa-anchor")
    found = verdict(suite.RECORDED, reference)
    assert found.state == "does not apply"
    assert "its loss uses ctx.steps" in found.reason


def test_an_error_inside_a_promise_is_a_failure_of_it() -> None:
    def odd(reference: Reference) -> str:
        return str({}["missing"])

    found = verdict(Property("odd", odd), Reference.of("fedavg"))
    assert found.state == "failed"
    assert found.reason.startswith("KeyError: 'missing'")


def test_every_promise_has_a_name_of_its_own() -> None:
    assert len({each.name for each in PROPERTIES}) == len(PROPERTIES)


# The command.

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def quick(spec: str, values: object = None) -> list[Verdict]:
    return [Verdict("one", "passed"), Verdict("two", "failed", "no\nreason"), Verdict("three", "does not apply", "why")]


def test_a_line_a_promise_and_exit_code_2_where_one_is_broken(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr(suite, "examine", quick)
    code, out, err = called(capsys, monkeypatch, "check", "my.py", "--json")
    assert code == 2
    *lines, report = out.splitlines()
    assert lines == ["passed          one", "failed          two: no reason", "does not apply  three: why"]
    assert [each["state"] for each in json.loads(report)] == ["passed", "failed", "does not apply"]
    assert err == "error: 1 of 3 promises are not kept; the first: two\n"


@pytest.mark.thorough  # In test_documents.py an example of the guide does.
def test_fedavg_keeps_every_promise(capsys: Capture, monkeypatch: Patch) -> None:
    code, out, err = called(capsys, monkeypatch, "check", "fedavg")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == len(PROPERTIES) + 1
    assert "failed" not in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("flae",), "did you mean 'flea'?"),
        (("nowhere.py",), "there is no method file"),
        (("fedprox", "--set", "muu=1"), "did you mean 'mu'?"),
        (("fedprox", "--set", "mu"), "expected FIELD=VALUE"),
    ],
)
def test_a_typo_is_one_sentence(arguments: tuple[str, ...], says: str, capsys: Capture, monkeypatch: Patch) -> None:
    code, out, err = called(capsys, monkeypatch, "check", *arguments)
    assert (code, out) == (2, "")
    assert says in err


def test_methods_describes_a_file_a_preset_and_a_composition(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    own = file(tmp_path, "    rho: float = 0.5\n")
    found = {}
    for name in (own, f"sem({own})", "flea:official", "sem:released(fedprox:released)"):
        code, out, err = called(capsys, monkeypatch, "methods", name, "--json")
        assert (code, err) == (0, "")
        item = json.loads(out)
        found[item["name"]] = {each["name"]: each["default"] for each in item["parameters"]}
        assert called(capsys, monkeypatch, "methods", name)[0] == 0
    assert list(found) == ["bad", "sem(bad)", "flea:official", "sem:released(fedprox:released)"]
    assert found["bad"] == {"rho": 0.5}
    assert found["sem(bad)"]["inner.rho"] == 0.5
    assert found["sem:released(fedprox:released)"]["inner.mu"] == 0.001
    code, out, err = called(capsys, monkeypatch, "methods", f"{own}:none")
    assert (code, out) == (2, "")
    assert "unknown preset of method 'bad'" in err
