"""A run can start from the model another one ended with."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fewfed import FewfedError, resume, run
from fewfed.conformance.differences import differences
from fewfed.engine import storage
from fewfed.runs.folder import MODEL, RESULT
from run_support import SHORT, called, records, small

SGD = dataclasses.replace(SHORT, optimizer="sgd", lr_decay=0.0)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("first") / "run"
    run("fedavg", small(rounds=2), SGD, out=out)
    return out


def test_the_first_broadcast_is_the_other_runs_model(first: Path, tmp_path: Path) -> None:
    """With a learning rate of next to nothing the model stays what it was."""
    still = dataclasses.replace(SGD, lr=1e-30, lr_floor=0.0)
    out = tmp_path / "run"
    run("fedprox", small(rounds=1, start_from=str(first)), still, out=out)
    before, after = (storage.load(folder / MODEL)[0] for folder in (first, out))
    assert differences(before["params"], after["params"]) == []
    assert records(out)[0]["accuracy"] == pytest.approx(records(first)[-1]["accuracy"], abs=0.1)


def test_it_is_resumed_only_from_the_same_model(first: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    run("fedavg", small(rounds=2), SGD, out=copy)
    out = tmp_path / "run"
    settings = small(rounds=2, start_from=str(copy))
    run("fedavg", settings, SGD, out=out)
    (out / RESULT).unlink()
    run("fedavg", small(rounds=3), SGD, out=tmp_path / "other")
    for name in (MODEL, RESULT, "metrics.jsonl", "config.json"):
        (copy / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(FewfedError, match="started with another network"):
        resume(out)


def test_what_cannot_be_started_from_is_refused(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("local", small(rounds=1), SGD, out=tmp_path / "personal")
    cases = {
        "nothing": ("'nothing' is not a run folder", "mlp"),
        str(tmp_path / "personal"): ("has no common one", "mlp"),
        str(first): ("does not fit network 'digits-cnn'", "digits-cnn"),
    }
    for start, (said, network) in cases.items():
        few = ("--rounds", "1", "--clients", "6", "--network", network, "--start-from", start)
        code, _, err = called(capsys, monkeypatch, "run", "fedavg", *few)
        assert code == 2
        assert said in err, err
