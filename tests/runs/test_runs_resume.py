"""A run that is killed, at whatever moment and however often, ends as if nothing had happened."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fewfed import FewfedError, resume, run
from fewfed.data.readers.options import DataOptions
from fewfed.engine import storage
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.loop import RoundView
from fewfed.engine.own_folder import File, OwnFolder
from fewfed.errors import RunError
from fewfed.runs import folder
from fewfed.runs.executors import refuse_unused
from fewfed.runs.experiment import Experiment, layered
from fewfed.runs.folder import BEFORE, CHECKPOINT, CONFIG, METRICS, RESULT
from fewfed.runs.seals import read_sealed, write_sealed
from run_support import (
    SHORT,
    assert_same_end,
    forked,
    killed,
    killed_after,
    program,
    records,
    rounds_written,
    small,
    started,
    wait_until,
)

ROUNDS = 6
METHODS = ("fedavg", pytest.param("flea", marks=pytest.mark.thorough), "local")


EXECUTORS = {"sequential": "sequential", "workers": Options(stack=1)}


def experiment(checkpoint_seconds: float = 0.0, rounds: int = ROUNDS) -> Experiment:
    return small(rounds=rounds, checkpoint_seconds=checkpoint_seconds)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """The folder of an undisturbed run, one after another in one process."""

    @cache
    def folder_of(method: str, rounds: int) -> Path:
        out: Path = tmp_path_factory.mktemp("reference") / method
        run(method, experiment(rounds=rounds), SHORT, out=out)
        return out

    return folder_of


class Pause:
    """An observer that makes rounds long enough to be killed in."""

    def after_round(self, view: RoundView) -> None:
        time.sleep(0.01)


def begin_or_resume(method: str, settings: Experiment, out: Path, executor: Any = None) -> None:
    if (out / CONFIG).exists():
        resume(out, observers=[Pause()])
    else:
        run(method, settings, SHORT, executor=executor, out=out, observers=[Pause()])


@pytest.mark.parametrize("checkpoint_seconds", [0.0, 0.04])
@pytest.mark.parametrize("executor", ["sequential", "workers"])
@pytest.mark.parametrize("method", METHODS)
def test_a_run_killed_at_random_moments_ends_bit_for_bit_the_same(
    method: str, executor: str, checkpoint_seconds: float, tmp_path: Path, reference: Callable[[str, int], Path]
) -> None:
    expected = reference(method, ROUNDS)
    chance = random.Random(f"{method} {executor} {checkpoint_seconds}")
    settings = experiment(checkpoint_seconds)
    interrupted = 0
    for attempt in range(3):
        out = tmp_path / str(attempt)
        for _ in range(chance.randint(1, 3)):
            seen = rounds_written(out)
            pid = forked(lambda out=out: begin_or_resume(method, settings, out, EXECUTORS[executor]))
            wanted = chance.randint(0, ROUNDS)
            wait_until(lambda out=out, seen=seen, wanted=wanted: _reached(out, seen, wanted))
            time.sleep(chance.uniform(0, 0.03))
            interrupted += killed(pid)
        begin_or_resume(method, settings, out, EXECUTORS[executor])
        assert_same_end(out, expected)
    assert interrupted


def _reached(out: Path, seen: int, wanted: int) -> bool:
    """Whether a process has written `wanted` rounds, has begun to write over older ones, or is done."""
    written = rounds_written(out)
    return wanted == 0 or written >= wanted or written < seen or (out / RESULT).exists()


def before_every_step(step: Callable[[], None]) -> Callable[[pytest.MonkeyPatch], None]:
    """Call `step` before everything that changes what is on the disk for good."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        for owner, name in ((os, "fsync"), (os, "replace"), (Path, "unlink")):
            patch.setattr(owner, name, _preceded(step, getattr(owner, name)))

    return apply


def _preceded(step: Callable[[], None], original: Callable[..., Any]) -> Callable[..., Any]:
    def both(*arguments: Any, **named: Any) -> Any:
        step()
        return original(*arguments, **named)

    return both


@pytest.mark.parametrize("method", [pytest.param("flea", marks=pytest.mark.thorough), "local"])
def test_a_run_killed_at_each_step_of_writing_ends_bit_for_bit_the_same(
    method: str, tmp_path: Path, reference: Callable[[str, int], Path]
) -> None:
    settings, expected = experiment(rounds=2), reference(method, 2)
    moment = 0
    while True:
        moment += 1
        out = tmp_path / str(moment)

        def until_killed(out: Path = out, moment: int = moment) -> None:
            left = [moment]

            def step() -> None:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            before_every_step(step)(pytest.MonkeyPatch())
            run(method, settings, SHORT, out=out)

        status = os.waitpid(forked(until_killed), 0)[1]
        if not os.WIFSIGNALED(status):
            break
        begin_or_resume(method, settings, out)
        assert_same_end(out, expected)
    files_before_the_first_round, files_of_a_round, files_at_the_end = 4, 2, 2
    assert moment > files_before_the_first_round + 2 * files_of_a_round + files_at_the_end


@pytest.mark.parametrize("method", [pytest.param("flea", marks=pytest.mark.thorough), "local"])
def test_a_disk_that_is_full_at_any_write_keeps_the_previous_checkpoint(
    method: str, tmp_path: Path, reference: Callable[[str, int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, expected = experiment(rounds=2), reference(method, 2)
    failures = 0
    while True:
        out = tmp_path / str(failures)
        left = failures + 1

        def full(descriptor: int, sync: Callable[[int], None] = os.fsync) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            refusal = refused(lambda out=out: run(method, settings, SHORT, out=out))
        if refusal is None:
            break
        failures += 1
        assert "No space left on device" in refusal
        assert "\n" not in refusal
        assert not list(out.rglob("*.part"))
        if (out / CHECKPOINT).exists():
            _, facts = storage.load(out / CHECKPOINT)
            kept = records(out)[: facts["round"]]
            assert kept == records(expected)[: facts["round"]]
        begin_or_resume(method, settings, out)
        assert_same_end(out, expected)
    assert failures > 2 * 2


def refused(work: Callable[[], object]) -> str | None:
    """What a run that cannot go on says; None if it could."""
    try:
        work()
    except RunError as error:
        return str(error)
    return None


def test_half_a_line_of_metrics_is_dropped(
    tmp_path: Path, reference: Callable[[str, int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full in the middle of a line."""
    expected = reference("fedavg", 3)
    out = tmp_path / "run"

    real = OwnFolder.append

    def append(self: OwnFolder, name: str, content: bytes) -> None:
        whole = json.loads(content)["round"] < 3
        real(self, name, content if whole else content[:40])
        if not whole:
            raise RunError("cannot write 'metrics.jsonl': No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(OwnFolder, "append", append)
        with pytest.raises(RunError, match="No space"):
            run("fedavg", experiment(rounds=3), SHORT, out=out)
    assert len((out / METRICS).read_text().splitlines()) == 3
    resume(out)
    assert_same_end(out, expected)


@pytest.mark.thorough
def test_a_file_size_limit_stops_the_program_with_one_sentence_and_it_continues_later(
    tmp_path: Path, reference: Callable[[str, int], Path]
) -> None:
    out = tmp_path / "run"
    killed_after(2, out, lambda halt: run("flea", experiment(), SHORT, out=out, observers=[halt]))
    checkpoint = (out / CHECKPOINT).read_bytes()
    limit = len(checkpoint) // 2

    stopped = program(
        "resume", "run", cwd=tmp_path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    )
    assert stopped.returncode == 2
    assert stopped.stdout == ""
    assert stopped.stderr.startswith("error: cannot write ")
    assert stopped.stderr.count("\n") == 1
    assert "File too large" in stopped.stderr
    assert (out / CHECKPOINT).read_bytes() == checkpoint

    continued = program("resume", "run", "--json", cwd=tmp_path)
    assert (continued.returncode, continued.stderr) == (0, "")
    assert json.loads(continued.stdout.splitlines()[-1])["rounds"] == ROUNDS
    assert_same_end(out, reference("flea", ROUNDS))


PROGRAM = ("--network", "mlp", "--clients", "6", "--cohort", "3", "--epochs", "1", "--set", "checkpoint_seconds=0")


def test_the_program_itself_killed_ends_the_same(tmp_path: Path, reference: Callable[[str, int], Path]) -> None:
    first = started("run", "local", *PROGRAM, "--rounds", str(ROUNDS), "--out", "run", cwd=tmp_path)
    wait_until(lambda: rounds_written(tmp_path / "run") >= 1)
    first.kill()
    first.communicate()
    last = program("resume", "run", cwd=tmp_path)
    assert (last.returncode, last.stderr) == (0, "")
    assert_same_end(tmp_path / "run", reference("local", ROUNDS))


def test_an_interrupt_stops_the_program_and_says_how_to_continue(tmp_path: Path) -> None:
    process = started("run", "fedavg", *PROGRAM, "--rounds", "100000", "--out", "run", cwd=tmp_path, process_group=0)
    wait_until(lambda: rounds_written(tmp_path / "run") >= 2)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err == "stopped: 'fewfed resume FOLDER' continues a run from its last checkpoint\n"
    assert storage.load(tmp_path / "run" / CHECKPOINT)[1]["round"] >= 1


def test_a_finished_run_is_given_back_as_it_is(tmp_path: Path) -> None:
    done = run("fedavg", small(), SHORT, out=tmp_path / "a")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "a").iterdir()}
    assert resume(tmp_path / "a") == done
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "a").iterdir()} == before
    (tmp_path / "a").rename(tmp_path / "b")
    assert resume(tmp_path / "b").folder == str(tmp_path / "b")


def test_two_processes_do_not_run_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    release, waiting = os.pipe()

    class Wait:
        def after_round(self, view: RoundView) -> None:
            if view.clock.round > 0:
                os.read(release, 1)

    pid = forked(lambda: run("fedavg", small(), SHORT, out=out, observers=[Wait()]))
    wait_until(lambda: rounds_written(out) == 1)
    monkeypatch.setattr(folder, "_RELEASE_SECONDS", 0.1)
    with pytest.raises(RunError, match="another process is running"):
        resume(out)
    os.write(waiting, b"xxx")
    assert os.waitpid(pid, 0)[1] == 0
    assert resume(out).rounds == 3


def _with_option(executor: str, name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda config: config.update(executors={executor: {name: value}})


def damaged_runs() -> dict[str, Callable[[Path], object]]:
    def edit(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
        def apply(out: Path) -> None:
            content, _ = read_sealed(File.at(out / name))
            change(content)
            write_sealed(File.at(out / name), content)  # By somebody who knows how.

        return apply

    return {
        "config cut off": lambda out: (out / CONFIG).write_text((out / CONFIG).read_text()[:100]),
        "config is a list": lambda out: (out / CONFIG).write_text("[1, 2]"),
        "config is binary": lambda out: (out / CONFIG).write_bytes(b"\xff\xfe\x00"),
        "config without experiment": edit(CONFIG, lambda config: config.pop("experiment")),
        "config with a foreign training": edit(CONFIG, lambda config: config.update(training=3)),
        "config with an unknown method": edit(CONFIG, lambda config: config.update(method="fedavgg")),
        "config with an unknown field": edit(CONFIG, lambda config: config["experiment"].update(speed=3)),
        "config with a value out of range": edit(CONFIG, lambda config: config["experiment"].update(rounds=-3)),
        "config without executors": edit(CONFIG, lambda config: config.pop("executors")),
        "config with foreign executors": edit(CONFIG, lambda config: config.update(executors=3)),
        "config with an unknown executor": edit(CONFIG, lambda config: config["experiment"].update(executor="steam")),
        "config with options of an unknown executor": edit(CONFIG, lambda config: config.update(executors={"s": {}})),
        "config with an unknown option": edit(CONFIG, lambda config: config.update(executors={"workers": {"x": 3}})),
        "config with an option of another type": edit(CONFIG, _with_option("workers", "stack", "tall")),
        "config with an option of another executor": edit(CONFIG, _with_option("workers", "stack", 4)),
        "another version": edit(CONFIG, lambda config: config.update(fewfed="9.9.9")),
        "other data": edit(CONFIG, lambda config: config["inputs"].update(labels="0")),
        "config edited": lambda out: (out / CONFIG).write_text((out / CONFIG).read_text().replace('"mlp"', '"auto"')),
        "config nested": lambda out: (out / CONFIG).write_text('{"fewfed":' + "[" * 100_000),
        "checkpoints cut off": each_checkpoint(lambda file: file.write_bytes(file.read_bytes()[:1000])),
        "checkpoints of something else": each_checkpoint(lambda file: storage.save(file, {})),
        "checkpoints with a flipped bit": each_checkpoint(flip_a_bit),
        "checkpoints of a far round": each_checkpoint(lambda file: forge(file, round=10**9)),
        "checkpoints of another round": each_checkpoint(
            lambda file: forge(file, round=4 if file.name == BEFORE else 5)
        ),
        "checkpoints with a vast header": each_checkpoint(lambda file: file.write_bytes(b"\0\0\0\0\0\x3a\0\0{}")),
        "checkpoints with nested facts": each_checkpoint(lambda file: forge(file, held=nested(900))),
        "checkpoints with foreign states": each_checkpoint(lambda file: forge(file, states={"0": ["../x", ""]})),
        "checkpoints without metrics": each_checkpoint(lambda file: forge(file, metrics="")),
        "checkpoints of another run": each_checkpoint(lambda file: forge(file, chain="00")),
    }


def each_checkpoint(damage: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda out: [damage(out / name) for name in (CHECKPOINT, BEFORE) if (out / name).exists()]


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)


def forge(file: Path, **facts: Any) -> None:
    """A checkpoint with other facts, whose digest fits."""
    server, recorded = storage.load(file)
    storage.save(file, server, {**recorded, **facts})


def nested(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for _ in range(depth):
        made = {"a": made}
    return made


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("unfinished") / "run"
    killed_after(2, out, lambda halt: run("fedavg", experiment(), SHORT, out=out, observers=[halt]))
    return out


@pytest.mark.parametrize("damage", damaged_runs())
def test_a_damaged_run_is_refused_in_one_sentence(damage: str, unfinished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    for file in unfinished.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    damaged_runs()[damage](out)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    with pytest.raises(FewfedError) as refusal:
        resume(out)
    assert "\n" not in str(refusal.value)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_a_run_goes_on_under_another_executor_where_it_is_named(
    tmp_path: Path, reference: Callable[[str, int], Path]
) -> None:
    out = tmp_path / "run"
    killed_after(2, out, lambda halt: run("flea", experiment(), SHORT, out=out, observers=[halt]))
    with pytest.raises(FewfedError, match="executor 'workerz'"):
        resume(out, executor="workerz")
    done = program("resume", str(out), "--executor", "sequential", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_same_end(out, reference("flea", ROUNDS))


def test_options_that_change_the_numbers_are_not_lost_with_the_executor(tmp_path: Path) -> None:
    """A run in another precision cannot go on without the executor that has it."""
    asked = layered("fedavg", {}, small(), {}, DataOptions(), {"cuda": {"precision": "bf16", "streams": 3}})
    with pytest.raises(FewfedError, match=r"cuda\.precision = bf16 needs executor 'cuda', not 'sequential'"):
        refuse_unused(asked.on("sequential"), 3)
    assert asked.on("cuda").executors == {"cuda": {"precision": "bf16"}}
