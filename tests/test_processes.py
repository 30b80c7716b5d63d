"""Child processes end with their parent, or when they are asked to, and cannot keep it from ending."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.processes import children, is_gone, is_stopped
from fewfed import processes
from run_support import forked, wait_until

pytestmark = pytest.mark.timeout(60)


def asleep() -> None:
    time.sleep(600)


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def deaf() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        pass


@pytest.mark.parametrize("work", [asleep, stopped, deaf])
def test_a_child_that_does_not_end_by_itself_is_killed(work: Callable[[], None]) -> None:
    before, began = children(), time.monotonic()
    pids = [forked(work), forked(lambda: None)]
    wait_until(lambda: is_gone(pids[1]))
    statuses = processes.end_all(pids, 0.1)
    assert [processes.cause(statuses[pid]) for pid in pids] == ["signal 9", "exit 0"]
    assert children() == before
    assert time.monotonic() - began < 5


def test_a_child_that_is_about_to_end_is_waited_for() -> None:
    assert processes.cause(processes.end(forked(lambda: time.sleep(0.1)), 30)) == "exit 0"


def test_a_child_that_somebody_else_has_waited_for_is_none() -> None:
    pid = forked(lambda: None)
    os.waitpid(pid, 0)
    assert processes.end(pid, 1) == 0
    assert processes.end_all([], 1) == {}


@pytest.mark.parametrize("work", [asleep, stopped, deaf])
def test_a_process_dies_with_its_parent(work: Callable[[], None], tmp_path: Path) -> None:
    """And so does the one it started itself."""
    chain = tmp_path / "chain"

    def grandchild() -> None:
        processes.end_with(os.getppid())
        with open(chain, "a") as file:
            file.write(f"{os.getpid()}\n")
        work()

    def child() -> None:
        processes.end_with(os.getppid())
        with open(chain, "a") as file:
            file.write(f"{os.getpid()}\n")
        forked(grandchild)
        asleep()

    def parent() -> None:
        forked(child)
        asleep()

    top = forked(parent)
    wait_until(lambda: chain.exists() and len(chain.read_text().splitlines()) == 2)
    pids = [int(line) for line in chain.read_text().splitlines()]
    wait_until(lambda: work is not stopped or is_stopped(pids[1]))
    os.kill(top, signal.SIGKILL)
    os.waitpid(top, 0)
    wait_until(lambda: all(map(is_gone, pids)))


def test_a_process_whose_parent_is_gone_already_ends_at_once() -> None:
    status = processes.end(forked(lambda: processes.end_with(os.getpid())), 30)
    assert processes.cause(status) == "exit 1"


def test_only_the_first_request_to_end_interrupts(tmp_path: Path) -> None:
    """What it does at the first is not disturbed by the second."""
    ready, cleaned = tmp_path / "ready", tmp_path / "cleaned"

    def work() -> None:
        processes.interrupt_once()
        try:
            ready.touch()
            asleep()
        except KeyboardInterrupt:
            ready.unlink()
            time.sleep(0.3)
            cleaned.touch()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        pid = forked(work)
        wait_until(ready.exists)
        os.kill(pid, number)
        wait_until(lambda: not ready.exists())
        os.kill(pid, signal.SIGTERM)
        assert processes.cause(processes.end(pid, 30)) == "exit 0"
        assert cleaned.exists()
        cleaned.unlink()


def test_two_requests_to_end_at_the_same_time_are_not_complained_about() -> None:
    """Ctrl-C reaches a child, and its parent asks it to end in the same moment."""
    code = (
        "import signal; from fewfed import processes\n"
        "processes.interrupt_once()\n"
        "both = (signal.SIGINT, signal.SIGTERM)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, both)\n"
        "for each in both: signal.raise_signal(each)\n"
        "try:\n"
        "    signal.pthread_sigmask(signal.SIG_UNBLOCK, both)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_a_signal_that_was_ignored_before_stays_ignored(tmp_path: Path) -> None:
    """As `nohup` has it."""
    ready, go = tmp_path / "ready", tmp_path / "go"

    def work(prepare: Callable[[], None]) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        prepare()
        ready.touch()
        wait_until(go.exists)

    for prepare in (processes.interrupt_once, processes.leave_interrupts_to_parent):
        pid = forked(lambda prepare=prepare: work(prepare))
        wait_until(ready.exists)
        os.kill(pid, signal.SIGHUP)
        go.touch()
        assert processes.cause(processes.end(pid, 30)) == "exit 0"
        go.unlink()
        ready.unlink()


INTERRUPTED = """
import os, signal, time
from fewfed import processes

# What libraries do around a fork: Python ignores whatever is raised in it.
os.register_at_fork(after_in_parent=lambda: (os.kill(os.getpid(), signal.NUMBER), time.sleep(0.01)))
signal.signal(signal.NUMBER, signal.default_int_handler)
try:
    processes.forked(lambda: time.sleep(600))
except KeyboardInterrupt:
    print("heard")
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("nobody left")
print(signal.getsignal(signal.NUMBER) is signal.default_int_handler)
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_request_to_end_that_comes_while_a_process_is_made_is_not_lost(number: str) -> None:
    script = INTERRUPTED.replace("NUMBER", number)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout.split("\n")[:3], done.stderr) == (["heard", "nobody left", "True"], "")


STORM = """
import os, signal, time
from fewfed import processes

def rest():
    for _ in range(60_000):  # A signal in the moment before a long sleep begins is heard after it: so Python has it.
        time.sleep(0.01)

codes = set()
for _ in range(400):
    try:
        pid = processes.forked(rest)
    except KeyboardInterrupt:
        os._exit(7)  # The new process is back here, as if it were its parent.
    os.kill(pid, signal.SIGINT)
    codes.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(codes)
"""


def test_a_new_process_that_is_asked_to_end_at_once_does_not_go_on_as_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", STORM], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode, done.stderr) == ("{1}", 0, "")
