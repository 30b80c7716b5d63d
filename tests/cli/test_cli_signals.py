"""Signals that ask a command to stop: Ctrl-C, the end of a session, the end of the machine."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from cli.forked_command import Command, start
from fewfed.cli import _how_to_go_on
from fewfed.cli.stopping import Stop, Stopped, listening
from fewfed.engine.executors.sequential import Sequential
from fewfed.runs.folder import CHECKPOINT, METRICS
from run_support import SMALL, called, rounds_written, wait_until

SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
LONG = ("run", "fedavg", *SMALL, "--rounds", "1000000", "--set", "checkpoint_seconds=0", "--out", "out")
MESSAGE = "stopped: 'fewfed resume FOLDER' continues a run from its last checkpoint\n"


def running(folder: Path, executor: str = "sequential", before: object = None) -> Command:
    """A long run that has finished some rounds."""
    command = start([*LONG, "--executor", executor], folder, before=before if callable(before) else lambda: None)
    wait_until(lambda: rounds_written(folder / "out") >= 2 or command.has_ended)
    assert not command.has_ended, command.err
    return command


def workers_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("executor", ["sequential", "workers"])
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_ends_a_command_in_an_orderly_way(number: signal.Signals, executor: str, tmp_path: Path) -> None:
    command = running(tmp_path, executor)
    workers = workers_of(command.pid)
    os.kill(command.pid, number)
    assert command.code() == SIGNALS[number]
    assert (command.out, command.err) == ("", MESSAGE)
    assert (tmp_path / "out" / CHECKPOINT).exists()
    lines = (tmp_path / "out" / METRICS).read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [*range(1, len(lines) + 1)]
    assert bool(workers) == (executor == "workers")
    wait_until(lambda: not any(is_alive(worker) for worker in workers))


def test_a_comparison_that_is_stopped_goes_on_with_the_same_command(tmp_path: Path) -> None:
    chosen = ("compare", "fedavg", "fedprox", *SMALL, "--rounds", "40", "--jobs", "1", "--out", "out")
    command = start(chosen, tmp_path)
    wait_until(lambda: rounds_written(tmp_path / "out" / "fedavg-seed0") >= 2 or command.has_ended)
    os.kill(command.pid, signal.SIGINT)
    assert command.code() == 130
    assert command.err == (
        "stopped: the same command goes on; finished runs are kept, others continue from their last checkpoint\n"
    )
    again = start(chosen, tmp_path)
    assert again.code() == 0
    assert "fedprox" in again.out


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("compare", ": the same command goes on"),
        ("tune", ": the same command goes on"),
        ("reproduce", ": the same command goes on"),
        ("run", ": 'fewfed resume FOLDER' continues a run"),
        ("methods", ""),
        ("show", ""),
        ("check", ""),
    ],
)
def test_the_advice_fits_the_command(command: str, says: str) -> None:
    advice = _how_to_go_on([command, "fedavg"])
    assert advice.startswith(says)
    assert bool(advice) == bool(says)
    assert _how_to_go_on([]) == ""


def test_a_signal_to_a_whole_session_ends_it_too(tmp_path: Path) -> None:
    """As when a terminal is closed: the workers get it as well, and must not be taken for clients that failed."""
    command = running(tmp_path, "workers")
    workers = workers_of(command.pid)
    os.killpg(command.pid, signal.SIGHUP)
    assert command.code() == 129
    assert (command.out, command.err) == ("", MESSAGE)
    wait_until(lambda: not any(is_alive(worker) for worker in workers))


def test_under_nohup_the_end_of_a_session_is_not_heeded(tmp_path: Path) -> None:
    command = running(tmp_path, before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    os.kill(command.pid, signal.SIGHUP)
    rounds = rounds_written(tmp_path / "out")
    wait_until(lambda: rounds_written(tmp_path / "out") >= rounds + 2)
    os.kill(command.pid, signal.SIGTERM)
    assert command.code() == 143


def test_a_second_signal_ends_a_command_at_once(tmp_path: Path) -> None:
    def hold_on(executor: Sequential) -> None:
        (tmp_path / "closing").touch()
        time.sleep(600)

    command = running(tmp_path, before=lambda: setattr(Sequential, "close", hold_on))
    os.kill(command.pid, signal.SIGTERM)
    wait_until(lambda: (tmp_path / "closing").exists())
    os.kill(command.pid, signal.SIGINT)
    assert command.code() == 130


def test_an_error_while_a_stopped_command_is_cleaned_up_is_not_its_end(tmp_path: Path) -> None:
    def fail(executor: Sequential) -> None:
        raise OSError(5, "Input/output error")  # As a terminal gives that is no longer there.

    command = running(tmp_path, before=lambda: setattr(Sequential, "close", fail))
    os.kill(command.pid, signal.SIGHUP)
    assert (command.code(), command.err) == (129, MESSAGE)


def test_handlers_are_there_only_while_a_command_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with listening() as stop:
        assert all(signal.getsignal(number) == stop.heed for number in SIGNALS)
        assert not stop.asked
        with pytest.raises(Stopped) as stopped:
            signal.raise_signal(signal.SIGTERM)
        assert isinstance(stopped.value, KeyboardInterrupt)
        assert (stopped.value.signal, stop.signal, stop.code) == (15, 15, 143)
    assert {number: signal.getsignal(number) for number in SIGNALS} == before
    assert called(capsys, monkeypatch, "methods", "fedavg")[0] == 0
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


def test_a_program_s_own_handlers_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Stop().heed
    before = signal.signal(signal.SIGTERM, mine)
    try:
        with listening():
            assert signal.getsignal(signal.SIGTERM) == mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_in_another_thread_nothing_is_listened_to() -> None:
    """Only the main thread may: a program that calls the command line in another one keeps its handlers."""
    seen: list[object] = []

    def listen() -> None:
        with listening():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
