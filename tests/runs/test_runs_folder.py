"""A run folder that was damaged, forged, sent by a stranger or shared by two processes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fewfed import FewfedError, resume, run
from fewfed.data.examples import Dataset, Examples
from fewfed.engine import storage
from fewfed.engine.own_folder import File
from fewfed.errors import RunError
from fewfed.runs import folder as run_folder
from fewfed.runs.experiment import resolve
from fewfed.runs.folder import BEFORE, CHECKPOINT, CONFIG, ENVIRONMENT, METRICS, MODEL, RESULT, SPLIT
from fewfed.runs.seals import read_sealed, write_sealed
from fewfed.runs.verify import verify
from run_support import SHORT, assert_same_end, called, forked, killed_after, rounds_written, small, wait_until

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

ROUNDS = 4


def experiment() -> Any:
    return small(rounds=ROUNDS, checkpoint_seconds=0.0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("finished") / "run"
    run("local", experiment(), SHORT, out=out)
    return out


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Killed after three of four rounds."""
    out: Path = tmp_path_factory.mktemp("stopped") / "run"
    killed_after(3, out, lambda halt: run("local", experiment(), SHORT, out=out, observers=[halt]))
    return out


@pytest.fixture
def copy(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def problems(out: Path) -> dict[str, str]:
    return {finding.name: finding.problem for finding in verify(out) if finding.problem}


# Damage.


def test_every_file_of_a_run_is_verified(finished: Path, stopped: Path) -> None:
    for out in (finished, stopped):
        assert problems(out) == {}
        written = {str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()} - {"lock"}
        known = {finding.name for finding in verify(out)}
        older = {name for name in written - known if name.startswith("clients/")}  # Of the checkpoint before.
        assert known <= written
        assert written - known == older


@pytest.mark.parametrize("seed", range(40))
def test_any_flipped_bit_of_any_file_is_noticed(seed: int, finished: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    draw = random.Random(seed)
    file = draw.choice([path for finding in verify(out) if (path := out / finding.name).is_file()])
    content = bytearray(file.read_bytes())
    place = draw.randrange(len(content))
    content[place] ^= 1 << draw.randrange(8)
    file.write_bytes(content)
    if file.name == CONFIG:  # Nothing can be said about a run without its configuration.
        with pytest.raises(FewfedError):
            verify(out)
    else:
        assert str(file.relative_to(out)) in problems(out), (file.name, place)


def test_an_edited_accuracy_is_noticed_wherever_it_is_shown(finished: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    lines = (out / METRICS).read_text().splitlines()
    record = json.loads(lines[1])
    record["accuracy"] = 0.99
    (out / METRICS).write_text("\n".join([lines[0], json.dumps(record), *lines[2:]]) + "\n")
    with pytest.raises(RunError, match="from round 2 on"):
        run_folder.RunFolder(out).metrics()
    (out / METRICS).write_text("\n".join([lines[1], lines[0], *lines[2:]]) + "\n")
    with pytest.raises(RunError, match="digests do not fit"):
        run_folder.RunFolder(out).metrics()
    content = json.loads((out / RESULT).read_text())
    content["accuracy"]["best"] = 0.99
    (out / RESULT).write_text(json.dumps(content))
    with pytest.raises(RunError, match="does not fit its digest"):
        resume(out)


def test_a_result_that_was_forged_whole_does_not_fit_its_metrics(finished: Path, tmp_path: Path) -> None:
    """The last line of metrics is gone, and the digest of the result was computed anew."""
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    lines = (out / METRICS).read_text().splitlines(keepends=True)
    (out / METRICS).write_text("".join(lines[:-1]))
    content, _ = read_sealed(File.at(out / RESULT))
    write_sealed(File.at(out / RESULT), {**content, "steps": 1})
    assert {METRICS, RESULT} & problems(out).keys()


def test_the_checkpoint_before_is_used_where_the_last_is_damaged(copy: Path, finished: Path) -> None:
    content = bytearray((copy / CHECKPOINT).read_bytes())
    content[-50] ^= 16
    (copy / CHECKPOINT).write_bytes(content)
    assert CHECKPOINT in problems(copy)
    resume(copy)
    assert_same_end(copy, finished)
    events = [event["what"] for line in (copy / METRICS).open() for event in json.loads(line)["events"]]
    assert [f"{CHECKPOINT}' is damaged" in event and "the run goes on from round " in event for event in events] == [
        True
    ]


def test_a_damaged_state_of_a_client_leads_back_to_the_checkpoint_before(copy: Path, finished: Path) -> None:
    last = {name for name, _ in storage.load(copy / CHECKPOINT)[1]["states"].values()}
    before = {name for name, _ in storage.load(copy / BEFORE)[1]["states"].values()}
    victim = copy / "clients" / sorted(last - before)[0]
    victim.write_bytes(victim.read_bytes()[:-3])
    assert list(problems(copy)) == [f"clients/{victim.name}"]
    resume(copy)
    assert_same_end(copy, finished)


def test_swapped_states_of_clients_are_noticed(copy: Path, finished: Path) -> None:
    one, two = (copy / "clients" / name for name, _ in list(storage.load(copy / CHECKPOINT)[1]["states"].values())[:2])
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)
    assert len(problems(copy)) == 2


@pytest.mark.parametrize("damage", ["lost", "emptied", "edited", "cut"])
def test_metrics_that_are_lost_or_damaged_cost_nothing(damage: str, copy: Path, finished: Path) -> None:
    file = copy / METRICS
    if damage == "lost":
        file.unlink()
    elif damage == "emptied":
        file.write_bytes(b"")
    elif damage == "edited":
        file.write_text(file.read_text().replace('"accuracy": 0.', '"accuracy": 0.9'))
    else:
        file.write_bytes(file.read_bytes()[:-400])
    resume(copy)
    assert_same_end(copy, finished)
    assert problems(copy) == {}


def test_a_damaged_checkpoint_before_does_not_matter(copy: Path, finished: Path) -> None:
    (copy / BEFORE).write_bytes(b"nothing")
    resume(copy)
    assert_same_end(copy, finished)


def test_a_model_that_is_lost_or_damaged_is_made_again(finished: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    (out / MODEL).unlink()
    resume(out)
    assert_same_end(out, finished)
    (out / MODEL).write_bytes((out / MODEL).read_bytes()[:-1])
    resume(out)
    assert_same_end(out, finished)
    assert problems(out) == {}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"nul", b"\xff" * 9, b'{"a":' * 50_000, b"0" * 5000])
@pytest.mark.parametrize("name", [CONFIG, RESULT, METRICS, CHECKPOINT, "choices.json", "clients"])
def test_no_content_of_any_file_is_a_traceback(name: str, content: bytes, copy: Path) -> None:
    target = copy / name
    if target.is_dir():
        shutil.rmtree(target)
    target.write_bytes(content)
    for use in (resume, verify):
        with contextlib.suppress(FewfedError):
            use(copy)


FORGED: dict[str, Callable[[Path], object]] = {
    "states are a number": lambda out: forge(out / CHECKPOINT, states=3),
    "a state is a number": lambda out: forge(out / CHECKPOINT, states={"0": 3}),
    "a state is nothing": lambda out: forge(out / CHECKPOINT, states={"0": []}),
    "what is held is a list": lambda out: forge(out / CHECKPOINT, held=[1]),
    "a round is a text": lambda out: forge(out / CHECKPOINT, round="x"),
    "a result is empty": lambda out: write_sealed(File.at(out / RESULT), {}),
    "a result has another accuracy": lambda out: write_sealed(File.at(out / RESULT), {"accuracy": {"best": 1, "x": 2}}),
}


def forge(file: Path, **facts: Any) -> None:
    server, recorded = storage.load(file)
    storage.save(file, server, {**recorded, **facts})


@pytest.mark.parametrize("what", FORGED)
def test_what_fits_its_digest_and_is_still_no_run_is_a_sentence(what: str, copy: Path) -> None:
    FORGED[what](copy)
    with contextlib.suppress(FewfedError):  # Going on from the checkpoint before is as good.
        resume(copy)
    FORGED[what](copy)
    with contextlib.suppress(FewfedError):
        verify(copy)


def test_a_limit_on_data_is_no_part_of_what_a_run_is() -> None:
    usual, raised = (resolve("fedavg", values) for values in ({}, {"most_bytes": 10**12, "most_ratio": 9999}))
    assert usual.identity == raised.identity
    assert raised.on("sequential").options.most_bytes == 10**12
    assert usual.identity != resolve("fedavg", {"test_fraction": 0.3}).identity


# Strangers.


def test_links_in_a_run_folder_are_neither_followed_nor_cleared_away(copy: Path, tmp_path: Path) -> None:
    strange = tmp_path / "strange"
    strange.mkdir()
    for name in ("7-1.safetensors", "letter"):
        (strange / name).write_text("mine")
    links: dict[str, Callable[[], object]] = {
        "clients": lambda: (shutil.rmtree(copy / "clients"), (copy / "clients").symlink_to(strange)),
        f"{CHECKPOINT}.new.part": lambda: (copy / f"{CHECKPOINT}.new.part").symlink_to(strange / "letter"),
        f"{METRICS}.part": lambda: (copy / f"{METRICS}.part").symlink_to(strange / "letter"),
        METRICS: lambda: ((copy / METRICS).unlink(), (copy / METRICS).symlink_to(strange / "letter")),
    }
    for name, make in links.items():
        make()
        with pytest.raises(RunError, match="is a link, which is not followed"):
            resume(copy)
        (copy / name).unlink()
        assert {file.name: file.read_text() for file in strange.iterdir()} == {
            "7-1.safetensors": "mine",
            "letter": "mine",
        }


def test_a_pipe_in_a_run_folder_does_not_block(copy: Path) -> None:
    (copy / METRICS).unlink()
    os.mkfifo(copy / METRICS)
    with pytest.raises(RunError, match="neither a file nor a folder"):
        resume(copy)


def test_nothing_is_written_through_a_link_that_appears_while_a_run_goes_on(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    out = tmp_path / "run"

    class Link:
        def after_round(self, view: Any) -> None:
            for name in (f"{CHECKPOINT}.new.part", f"{MODEL}.part", f"{RESULT}.part"):
                if not os.path.lexists(out / name):
                    (out / name).symlink_to(victim)

    run("fedavg", experiment(), SHORT, out=out, observers=[Link()])
    assert victim.read_text() == "mine"
    assert problems(out) == {}


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    out = tmp_path / "run"
    before = os.umask(0o022)
    try:
        run("local", experiment(), SHORT, out=out)
    finally:
        os.umask(before)
    for path in (out, *out.rglob("*")):
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path.name


METHOD = """
from pathlib import Path
from fewfed.methods.fedavg import FedAvg
{more}
class Mine(FedAvg):
    name = "mine"
"""


def test_a_folder_from_somebody_else_does_not_decide_which_code_runs(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "theirs"))
    file = tmp_path / "m.py"
    file.write_text(METHOD.format(more=""))
    out = tmp_path / "run"
    killed_after(2, out, lambda halt: run(str(file), experiment(), SHORT, out=out, observers=[halt]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "ours"))
    ran = tmp_path / "ran"
    evil = METHOD.format(more=f"Path({str(ran)!r}).touch()")
    file.write_text(evil)
    for refuse in (("resume", str(out)), ("diagnose", "exposure", str(out))):
        code, _, err = called(capsys, monkeypatch, *refuse)
        assert code == 2
        assert "which you have not run before" in err
    assert not ran.exists()
    file.write_text(METHOD.format(more=""))
    with pytest.raises(RunError, match="you have not run before"):
        resume(out)
    moved = tmp_path / "elsewhere" / "m.py"
    moved.parent.mkdir()
    file.rename(moved)
    with pytest.raises(FewfedError, match=r"is not the run's"):
        resume(out, method="fedavg")
    assert resume(out, method=str(moved)).rounds == ROUNDS


def test_code_that_this_user_has_run_needs_no_name_again(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "m.py"
    file.write_text(METHOD.format(more=""))
    out = tmp_path / "run"
    killed_after(2, out, lambda halt: run(f"mixup({file})", experiment(), SHORT, out=out, observers=[halt]))
    assert resume(out).rounds == ROUNDS


# What a run was made from.


def rows(seed: int) -> Dataset:
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(60) % 3
    train = Examples(torch.randn(60, 1, 4, 4, generator=draw), y)
    return Dataset("own", train, Examples(torch.randn(9, 1, 4, 4, generator=draw), y[:9]), 3)


def test_other_rows_with_the_same_labels_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    killed_after(2, out, lambda halt: run("fedavg", experiment(), SHORT, data=rows(0), out=out, observers=[halt]))
    with pytest.raises(RunError, match="was started with other data"):
        resume(out, data=rows(1))
    assert resume(out, data=rows(0)).rounds == ROUNDS


def test_a_changed_file_is_refused_by_resume_and_compare(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    draw = np.random.default_rng(0)
    file, labels = tmp_path / "d.npz", np.arange(90) % 3
    x = draw.normal(size=(90, 5)).astype(np.float32)
    np.savez(file, x=x, y=labels)
    arguments = ("--data", str(file), "--network", "mlp", "--clients", "4", "--cohort", "2", "--rounds", "2")
    compared = ("compare", "fedavg", *arguments, "--epochs", "1", "--out", str(tmp_path / "all"), "--jobs", "1")
    code, shown, err = called(capsys, monkeypatch, *compared)
    assert code == 0, err
    np.savez(file, x=x + 1, y=labels)
    code, out, err = called(capsys, monkeypatch, *compared)
    assert (code, out) == (2, "")
    assert "was started with other data" in err
    assert "put it back as it was" in err
    assert "another --out" in err
    np.savez(file, x=x, y=labels)
    code, again, _ = called(capsys, monkeypatch, *compared)
    assert code == 0
    assert again == shown


def test_an_edited_method_file_is_refused(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "m.py"
    file.write_text(METHOD.format(more=""))
    compared = ("compare", str(file), *("--network", "mlp", "--clients", "4", "--cohort", "2", "--rounds", "2"),
                "--epochs", "1", "--out", str(tmp_path / "all"), "--jobs", "1")  # fmt: skip
    assert called(capsys, monkeypatch, *compared)[0] == 0
    file.write_text(METHOD.format(more="# edited"))
    code, _, err = called(capsys, monkeypatch, *compared)
    assert code == 2
    assert "another version of the method's file" in err
    file.write_text(METHOD.format(more=""))
    assert called(capsys, monkeypatch, *compared)[0] == 0


def network(activation: str, folder: Path) -> nn.Module:
    """A network of the user's, from a file of the user's."""
    file = folder / f"net_{activation}.py"
    file.write_text(
        "from torch import nn\nclass Bend(nn.Module):\n    def forward(self, x):\n"
        f"        return x.{activation}()\n"
        "def net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), Bend(), nn.Linear(8, 3))\n"
    )
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    made: nn.Module = module.net()
    return made


def test_a_network_whose_code_was_edited_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    own = network("tanh", tmp_path)
    killed_after(
        2, out, lambda halt: run("fedavg", experiment(), SHORT, data=rows(0), network=own, out=out, observers=[halt])
    )
    with pytest.raises(RunError, match="other code of the network"):
        resume(out, data=rows(0), network=network("sigmoid", tmp_path))
    assert resume(out, data=rows(0), network=network("tanh", tmp_path)).rounds == ROUNDS


def test_a_folder_of_another_version_is_no_result_of_this_one(finished: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    content, _ = read_sealed(File.at(out / CONFIG))
    write_sealed(File.at(out / CONFIG), {**content, "fewfed": "9.9"})
    with pytest.raises(RunError, match=r"was written by fewfed 9\.9"):
        resume(out)


# Two processes.


def test_two_runs_that_begin_at_once_on_one_folder_do_not_both_write(tmp_path: Path, monkeypatch: Patch) -> None:
    """Both find the folder empty when they look; only one may begin."""
    monkeypatch.setattr(run_folder, "_RELEASE_SECONDS", 0.1)
    out = tmp_path / "run"
    release, waiting = os.pipe()

    class Wait:
        def after_round(self, view: Any) -> None:
            os.read(release, 1)

    first = forked(lambda: run("fedavg", experiment(), SHORT, out=out, observers=[Wait()]))
    wait_until(lambda: (out / CONFIG).exists())
    with monkeypatch.context() as patch:  # As if it had looked a moment earlier.
        patch.setattr("fewfed.runs.api.refuse_existing", lambda path: None)
        with pytest.raises(RunError, match="another process is running"):
            run("fedavg", experiment(), SHORT, out=out)
    os.write(waiting, b"x" * ROUNDS)
    assert os.waitpid(first, 0)[1] == 0
    assert rounds_written(out) == ROUNDS
    assert problems(out) == {}


def test_verify_says_what_it_found(finished: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    code, said, _ = called(capsys, monkeypatch, "verify", str(out))
    assert code == 0
    assert "are as they were written" in said
    (out / SPLIT).write_text("{}")
    (out / ENVIRONMENT).unlink()
    code, said, err = called(capsys, monkeypatch, "verify", str(out), "--json")
    assert code == 2
    assert "damaged  split.json" in said
    assert "2 of" in err
    assert "environment.json: it is missing" in err
    assert called(capsys, monkeypatch, "verify", str(tmp_path))[0] == 2
