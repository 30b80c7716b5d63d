"""Executors and their options: said in any of three ways, refused in one sentence, and no part of what a run is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fewfed import Training, resume, run
from fewfed.engine.executors.cuda import plugin as cuda
from fewfed.engine.executors.cuda.options import Options as CudaOptions
from fewfed.engine.executors.plugin import NoOptions
from fewfed.engine.executors.registry import plugins
from fewfed.engine.executors.workers import plugin as workers
from fewfed.engine.executors.workers.options import EXACT
from fewfed.engine.executors.workers.options import Options as WorkerOptions
from fewfed.engine.own_folder import File
from fewfed.errors import ConfigError, RunError
from fewfed.runs import executors
from fewfed.runs.execute import execute
from fewfed.runs.experiment import Resolved, resolve
from fewfed.runs.folder import CHOICES, CONFIG
from fewfed.runs.naming import default_folder
from fewfed.runs.prepare import prepare
from fewfed.runs.seals import read_sealed, write_sealed
from run_support import SHORT, SMALL, assert_same_end, called, killed_after, program, records, rounds_written, small

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
Machine = Callable[[bool], None]

ON_CPU = ("--set", "cuda.device=cpu")
"""The executor for GPUs runs the same code on a CPU, without recording."""


@pytest.fixture
def made(monkeypatch: Patch) -> list[Any]:
    """The options of every executor with options that is made in this process."""
    seen: list[Any] = []

    def watched(make: Callable[..., Any]) -> Callable[..., Any]:
        def both(job: object, homes: object, options: object, choices: object) -> Any:
            seen.append(options)
            return make(job, homes, options, choices)

        return both

    monkeypatch.setattr(cuda, "Device", watched(cuda.Device))
    monkeypatch.setattr(workers, "Workers", watched(workers.Workers))
    return seen


@pytest.fixture
def gpu(monkeypatch: Patch) -> Machine:
    """Says whether this machine has a GPU. It has two cores in any case."""
    monkeypatch.setattr(executors, "cores", lambda: 2)

    def say(there: bool) -> None:
        monkeypatch.setattr(cuda, "has_gpu", lambda: there)

    return say


def recorded(folder: Path) -> tuple[str, dict[str, Any]]:
    config = json.loads((folder / CONFIG).read_text())
    return config["experiment"]["executor"], config["executors"]


def written(folder: Path, text: str) -> str:
    (folder / "plan.toml").write_text(text)
    return str(folder / "plan.toml")


# Three ways to say it.


def test_options_on_the_command_line(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch, made: list[Any], gpu: Machine
) -> None:
    gpu(True)
    chosen = ("--executor", "cuda", "--set", "cuda.streams=8", "--set", "cuda.kernels=no", *ON_CPU)
    assert called(capsys, monkeypatch, "run", "fedavg", *SMALL, *chosen, "--out", str(tmp_path / "a"))[0] == 0
    chosen = ("--executor", "workers", "--set", "workers.stack=4", "--set", "workers.processes=2")
    assert called(capsys, monkeypatch, "run", "fedavg", *SMALL, *chosen, "--out", str(tmp_path / "b"))[0] == 0
    assert made == [CudaOptions(streams=8, kernels=False, device="cpu"), WorkerOptions(processes=2, stack=4)]
    assert recorded(tmp_path / "a") == ("cuda", {"cuda": {"streams": 8, "kernels": False, "device": "cpu"}})
    assert recorded(tmp_path / "b") == ("workers", {"workers": {"stack": 4, "processes": 2}})


def test_options_in_a_file(tmp_path: Path, capsys: Capture, monkeypatch: Patch, made: list[Any], gpu: Machine) -> None:
    gpu(True)
    file = written(tmp_path, '[executor]\nname = "cuda"\nstreams = 2\nmode = "graphs"\ndevice = "cpu"\n')
    arguments = ("run", "fedavg", *SMALL, "--config", file)
    assert called(capsys, monkeypatch, *arguments, "--out", str(tmp_path / "a"))[0] == 0
    stronger = ("--set", "cuda.streams=3", "--precision", "float32")
    assert called(capsys, monkeypatch, *arguments, *stronger, "--out", str(tmp_path / "b"))[0] == 0
    first = CudaOptions(mode="graphs", streams=2, device="cpu")
    assert made == [first, replace(first, streams=3)]
    assert recorded(tmp_path / "a") == ("cuda", {"cuda": {"streams": 2, "mode": "graphs", "device": "cpu"}})


def test_a_file_may_only_name_an_executor(tmp_path: Path, capsys: Capture, monkeypatch: Patch, made: list[Any]) -> None:
    for text, name in (('[executor]\nname = "workers"\n', "a"), ('executor = "workers"\n', "b")):
        arguments = ("run", "fedavg", *SMALL, "--config", written(tmp_path, text), "--out", str(tmp_path / name))
        assert called(capsys, monkeypatch, *arguments)[0] == 0
        assert recorded(tmp_path / name) == ("workers", {})
    assert made == [WorkerOptions(), WorkerOptions()]


def test_options_in_python(tmp_path: Path, made: list[Any], gpu: Machine) -> None:
    gpu(True)
    said = [WorkerOptions(processes=1, stack=1), CudaOptions(streams=2, device="cpu"), WorkerOptions()]
    for number, options in enumerate(said):
        run("fedavg", small(), SHORT, executor=options, out=tmp_path / str(number))
    assert made == said
    assert recorded(tmp_path / "0") == ("workers", {"workers": {"processes": 1, "stack": 1}})
    assert recorded(tmp_path / "2") == ("workers", {})


def test_a_name_in_python(tmp_path: Path, made: list[Any]) -> None:
    run("fedavg", small(executor="sequential"), SHORT, executor="workers", out=tmp_path / "a")
    run("fedavg", small(executor="workers"), SHORT, executor=NoOptions(), out=tmp_path / "b")
    assert made == [WorkerOptions()]
    assert [recorded(tmp_path / name) for name in "ab"] == [("workers", {}), ("sequential", {})]


def test_the_three_ways_say_the_same(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    run("fedavg", small(), Training(epochs=1), executor=WorkerOptions(processes=2, stack=1), out=tmp_path / "python")
    typed = ("--executor", "workers", "--set", "workers.processes=2", "--set", "workers.stack=1")
    file = written(tmp_path, '[executor]\nname = "workers"\nprocesses = 2\nstack = 1\n')
    for name, chosen in (("typed", typed), ("file", ("--config", file))):
        assert called(capsys, monkeypatch, "run", "fedavg", *SMALL, *chosen, "--out", str(tmp_path / name))[0] == 0
        assert json.loads((tmp_path / name / CONFIG).read_text()) == json.loads(
            (tmp_path / "python" / CONFIG).read_text()
        )
        assert_same_end(tmp_path / name, tmp_path / "python")


@pytest.mark.parametrize("there", [True, False])
def test_of_several_executors_the_one_whose_options_are_set_is_taken(
    there: bool, tmp_path: Path, capsys: Capture, monkeypatch: Patch, made: list[Any], gpu: Machine
) -> None:
    gpu(there)
    arguments = ("run", "fedavg", *SMALL, "--set", "workers.processes=1", "--out", str(tmp_path / "run"))
    assert called(capsys, monkeypatch, *arguments)[0] == 0
    assert made == [WorkerOptions(processes=1)]


def test_options_that_only_save_time_wait_for_a_machine_that_has_the_executor(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch, made: list[Any], gpu: Machine
) -> None:
    for there, name in ((True, "gpu"), (False, "cores")):
        gpu(there)
        chosen = ("--set", "cuda.streams=3", *ON_CPU, "--out", str(tmp_path / name))
        assert called(capsys, monkeypatch, "run", "fedavg", *SMALL, *chosen)[0] == 0
    assert made == [CudaOptions(streams=3, device="cpu"), WorkerOptions()]


def test_a_comparison_takes_options_too(tmp_path: Path, capsys: Capture, monkeypatch: Patch, gpu: Machine) -> None:
    gpu(False)
    file = written(tmp_path, '[executor]\nname = "workers"\nprocesses = 2\n')
    for name, chosen in (("set", ("--set", "workers.processes=2")), ("file", ("--config", file))):
        arguments = ("compare", "fedavg", "fedprox", *SMALL, *chosen, "--jobs", "1", "--out", str(tmp_path / name))
        code, _, err = called(capsys, monkeypatch, *arguments)
        assert (code, err) == (0, "")
        for cell in ("fedavg-seed0", "fedprox-seed0"):
            assert recorded(tmp_path / name / cell)[1] == {"workers": {"processes": 2}}


# Refusals.

ELSEWHERE: dict[str, tuple[list[str], list[str]]] = {
    "workers' for sequential": (
        ["--executor", "sequential", "--set", "workers.stack=4"],
        ["workers.stack = 4 needs executor 'workers', not 'sequential'", "choose that or leave the option out"],
    ),
    "cuda's for workers": (
        ["--executor", "workers", "--set", "cuda.streams=4"],
        ["cuda.streams = 4 needs executor 'cuda', not 'workers'", "choose that or leave the option out"],
    ),
    "a precision for workers": (
        ["--executor", "workers", "--precision", "bf16"],
        ["cuda.precision = bf16 needs executor 'cuda', not 'workers'", "choose that or leave the option out"],
    ),
    "a precision without a GPU": (
        ["--precision", "bf16"],
        ["cuda.precision = bf16 needs executor 'cuda'", "found no CUDA device", "or leave the option out"],
    ),
    "cuda without a GPU": (
        ["--executor", "cuda", "--set", "cuda.streams=8"],
        ["executor 'cuda' found no CUDA device", "use --executor workers"],
    ),
    "stacks in an exact run": (
        ["--exact", "--set", "workers.stack=4"],
        ["workers.stack = 4", "change how numbers round", "expected neither where a run must be exact"],
    ),
}
UNKNOWN: dict[str, tuple[list[str], list[str]]] = {
    "an executor, near": (["--executor", "worker"], ["unknown executor 'worker'", "did you mean 'workers'?"]),
    "an executor, far": (
        ["--executor", "steam"],
        ["unknown executor 'steam'", f"expected one of {', '.join(sorted(('auto', *plugins())))}"],
    ),
    "an option, near": (["--set", "workers.stak=4"], ["executor 'workers'", "'stak'", "did you mean 'stack'?"]),
    "an option, far": (
        ["--set", "workers.wheels=4"],
        ["'wheels'", "expected one of deadline, layout, processes, stack"],
    ),
    "an option where there are none": (
        ["--set", "sequential.stack=4"],
        ["executor 'sequential' has no fields", "leave 'stack' out"],
    ),
    "an option of a misspelt executor": (
        ["--set", "worker.stack=4"],
        ["unknown option 'worker.stack'", "did you mean 'workers.stack'?"],
    ),
    "an option without its executor": (["--set", "streams=4"], ["'streams'", "did you mean 'cuda.streams'?"]),
}
WRONG: dict[str, tuple[list[str], list[str]]] = {
    "a word for a number": (["--set", "workers.stack=many"], ["workers: stack = 'many'", "expected int"]),
    "a fraction for a number": (["--set", "cuda.streams=2.5"], ["cuda: streams = '2.5'", "expected int"]),
    "a word for yes or no": (["--set", "cuda.kernels=perhaps"], ["cuda: kernels = 'perhaps'", "expected bool"]),
    "no such choice": (
        ["--set", "workers.layout=round"],
        ["workers: layout = 'round'", "expected 'auto' | 'plain' | 'channels_last'"],
    ),
    "out of range": (["--set", "cuda.streams=0"], ["cuda: streams = 0", "expected >= 1"]),
    "no such precision": (["--precision", "fp8"], ["cuda: precision = 'fp8'", "expected 'float32' | 'tf32' | 'bf16'"]),
}
FLAGS = {**ELSEWHERE, **UNKNOWN, **WRONG}

FILES: dict[str, tuple[str, list[str]]] = {
    "an unknown executor": ('[executor]\nname = "worker"\n', ["line 2", "did you mean 'workers'?"]),
    "an unknown executor with options": (
        '[executor]\nstack = 4\nname = "steam"\n',
        ["line 3", "unknown executor 'steam'", f"expected one of {', '.join(plugins())}"],
    ),
    "an unknown option": (
        'rounds = 1\n[executor]\nname = "workers"\nstak = 4\n',
        ["line 4", "'stak'", "did you mean 'stack'?"],
    ),
    "an option of another type": (
        '[executor]\nname = "workers"\nstack = "four"\n',
        ["line 3", "workers: stack = 'four'", "expected int"],
    ),
    "an option out of range": ('[executor]\nname = "cuda"\nstreams = 0\n', ["line 3", "streams = 0", "expected >= 1"]),
    "options of nobody": (
        "[executor]\nstack = 4\n",
        ["line 2", "sets 'stack' of no executor", f"expected name = ... with it, one of {', '.join(plugins())}"],
    ),
    "options of whoever is best": (
        '[executor]\nname = "auto"\nstack = 4\n',
        ["line 3", "sets 'stack' of no executor", "expected name = ... with it"],
    ),
    "a name that is none": ("[executor]\nname = 3\n", ["line 2", "executor = 3", "expected str"]),
    "a table for each": ("[executor.workers]\nstack = 4\n", ["line 1", "'workers' is a table", "expected a value"]),
    "an executor that cannot be had": (
        '[executor]\nname = "cuda"\nstreams = 8\n',
        ["line 2", "executor 'cuda' found no CUDA device", "use --executor workers"],
    ),
}


def assert_refused(outcome: tuple[int, str, str], mentions: list[str], folder: Path) -> None:
    code, out, err = outcome
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    for text in mentions:
        assert text in err
    assert not folder.exists()


@pytest.mark.parametrize("case", FLAGS)
def test_refused_on_the_command_line(
    case: str, tmp_path: Path, capsys: Capture, monkeypatch: Patch, gpu: Machine
) -> None:
    gpu(False)
    arguments, mentions = FLAGS[case]
    outcome = called(capsys, monkeypatch, "run", "fedavg", *SMALL, *arguments, "--out", str(tmp_path / "out"))
    assert_refused(outcome, mentions, tmp_path / "out")


@pytest.mark.parametrize("command", [("run", "fedavg"), ("compare", "fedavg", "fedprox")], ids=["run", "compare"])
@pytest.mark.parametrize("case", FILES)
def test_refused_in_a_file(
    case: str, command: tuple[str, ...], tmp_path: Path, capsys: Capture, monkeypatch: Patch, gpu: Machine
) -> None:
    gpu(False)
    text, mentions = FILES[case]
    chosen = ("--config", written(tmp_path, text), "--out", str(tmp_path / "out"))
    assert_refused(called(capsys, monkeypatch, *command, *SMALL[:-4], "--epochs", "1", *chosen),
                   ["plan.toml", *mentions], tmp_path / "out")  # fmt: skip


def test_a_flag_does_not_lend_a_files_options_to_another_executor(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    file = written(tmp_path, '[executor]\nname = "workers"\nstack = 4\n')
    chosen = ("--config", file, "--executor", "sequential", "--out", str(tmp_path / "out"))
    outcome = called(capsys, monkeypatch, "run", "fedavg", *SMALL, *chosen)
    assert_refused(outcome, ["plan.toml, line 3", "needs executor 'workers', not 'sequential'"], tmp_path / "out")


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_comparison_refuses_what_is_not_exact_before_it_begins(
    jobs: str, tmp_path: Path, capsys: Capture, monkeypatch: Patch, gpu: Machine
) -> None:
    gpu(False)
    chosen = ("--set", "workers.stack=4", "--jobs", jobs, "--out", str(tmp_path / "out"))
    outcome = called(capsys, monkeypatch, "compare", "fedavg", "fedprox", *SMALL, *chosen)
    assert_refused(outcome, ["workers.stack = 4", "expected neither where a run must be exact"], tmp_path / "out")


@pytest.mark.parametrize(
    ("executor", "mention"),
    [
        ("worker", "unknown executor 'worker': did you mean 'workers'?"),
        (WorkerOptions, "expected an executor's name or its options"),
        ({"stack": 4}, "expected an executor's name or its options"),
        (WorkerOptions(stack="four"), "workers: stack = 'four': expected int"),  # type: ignore[arg-type]
        (WorkerOptions(stack=2.5), "workers: stack = 2.5: expected int"),  # type: ignore[arg-type]
        (CudaOptions(streams=0), "cuda: streams = 0: expected >= 1"),
        (CudaOptions(streams=8), "executor 'cuda' found no CUDA device: use --executor workers"),
    ],
    ids=str,
)
def test_refused_in_python(executor: Any, mention: str, tmp_path: Path, gpu: Machine) -> None:
    gpu(False)
    with pytest.raises(ConfigError) as refusal:
        run("fedavg", small(), SHORT, executor=executor, out=tmp_path / "out")
    assert mention in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "out").exists()


def test_an_option_that_does_not_exist_is_refused_by_python_itself() -> None:
    with pytest.raises(TypeError, match="stak"):
        WorkerOptions(stak=4)  # type: ignore[call-arg]


# Executors of other packages.

POLITE = """
from dataclasses import dataclass

from fewfed.engine.events import Chosen
from fewfed.engine.executors.plugin import Plugin
from fewfed.engine.executors.sequential import Sequential
from fewfed.settings import setting


@dataclass(frozen=True)
class Options:
    greeting: str = setting("hello", "what it says after every round")
    times: int = setting(1, "how often", ge=1)
    loud: bool = False

    def exact(self):
        return self


class Polite(Sequential):
    def __init__(self, job, homes, options):
        super().__init__(job, homes)
        self._options = options

    def events(self):
        said = self._options.greeting.upper() if self._options.loud else self._options.greeting
        return [Chosen("greeting", said, "as was asked")] * self._options.times


def make(job, homes, options, choices):
    return Polite(job, homes, options)


PLUGIN = Plugin("polite", "one after another", make, Options)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: Patch) -> Iterator[Callable[..., None]]:
    """Installs a package with an executor, as pip would, where this process and programs that are started find it."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    plugins.cache_clear()

    def install(code: str = POLITE, names: str = "polite_executor:PLUGIN") -> None:
        about = tmp_path / "site" / "polite_executor-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: polite-executor\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[fewfed.executors]\npolite = {names}\n")
        (about.parent / "polite_executor.py").write_text(code)

    yield install
    sys.modules.pop("polite_executor", None)
    plugins.cache_clear()


def greetings(folder: Path) -> list[list[str]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [[event["value"] for event in json.loads(line)["events"]] for line in lines]


def test_an_executor_of_another_package_runs_by_name_and_takes_its_options(
    tmp_path: Path, installed: Callable[..., None]
) -> None:
    installed()
    file = written(tmp_path, '[executor]\nname = "polite"\ngreeting = "good day"\nloud = true\n')
    for name, chosen in {
        "options": ("--executor", "polite", "--set", "polite.greeting=hi", "--set", "polite.times=2"),
        "file": ("--config", file),
    }.items():  # fmt: skip
        ended = program("run", "fedavg", *SMALL, *chosen, "--out", name, cwd=tmp_path)
        assert ended.returncode == 0
        assert ended.stderr.splitlines()[0].startswith("note: greeting: ")
        assert "Traceback" not in ended.stderr
    said = {name: greetings(tmp_path / name) for name in ("options", "file")}
    assert said == {
        "options": [["hi", "hi"]] * 3,
        "file": [["GOOD DAY"]] * 3,
    }
    assert recorded(tmp_path / "options") == ("polite", {"polite": {"greeting": "hi", "times": 2}})
    run("fedavg", small(), SHORT, out=tmp_path / "reference")
    for name in said:
        assert_same_end(tmp_path / name, tmp_path / "reference")


def test_options_of_an_executor_of_another_package_are_checked_as_ours_are(
    tmp_path: Path, installed: Callable[..., None], capsys: Capture, monkeypatch: Patch
) -> None:
    installed()
    for chosen, mentions in (
        (("--executor", "polit"), ["unknown executor 'polit'", "did you mean 'polite'?"]),
        (("--set", "polite.greting=hi"), ["'greting'", "did you mean 'greeting'?"]),
        (("--set", "polite.times=0"), ["polite: times = 0", "expected >= 1"]),
        (
            ("--executor", "sequential", "--set", "polite.loud=yes"),
            ["polite.loud = True needs executor 'polite', not 'sequential'", "leave the option out"],
        ),
    ):
        out = tmp_path / "out"
        ended = called(capsys, monkeypatch, "run", "fedavg", *SMALL, *chosen, "--out", str(out))
        assert_refused(ended, mentions, out)


@pytest.mark.parametrize(
    ("code", "names", "mention"),
    [
        (POLITE, "polite_executor:Polite", "expected a Plugin with a name of its own"),
        (POLITE.replace('Plugin("polite"', 'Plugin("workers"'), "polite_executor:PLUGIN", "with a name of its own"),
        ("import nothing_of_this_name\n", "polite_executor:PLUGIN", "cannot be loaded (ModuleNotFoundError: "),
        (POLITE, "polite_executor:GONE", "cannot be loaded (AttributeError: "),
    ],
    ids=["no plugin", "a name that is taken", "broken", "gone"],
)
def test_a_package_whose_executor_is_none_is_named(
    code: str,
    names: str,
    mention: str,
    tmp_path: Path,
    installed: Callable[..., None],
    capsys: Capture,
    monkeypatch: Patch,
) -> None:
    installed(code, names)
    ended = called(capsys, monkeypatch, "run", "fedavg", *SMALL, "--out", str(tmp_path / "out"))
    mentions = [f"entry point '{names}' of group fewfed.executors", mention, "repair or remove its package"]
    assert_refused(ended, mentions, tmp_path / "out")


def test_without_other_packages_there_are_ours() -> None:
    assert plugins().keys() >= {"cuda", "sequential", "workers"}
    assert "polite" not in plugins()


# Who computes a run is no part of what it is.

OTHERS: dict[str, Any] = {
    "sequential": "sequential",
    "workers": replace(EXACT, processes=2),
    "one worker": replace(EXACT, processes=1),
}


def unfinished(out: Path, executor: Any, **changes: Any) -> None:
    """A run of `local`, whose clients remember something, that was killed after two of its four rounds."""
    settings = small(rounds=4, checkpoint_seconds=0, **changes)
    killed_after(2, out, lambda halt: run("local", settings, SHORT, executor=executor, out=out, observers=[halt]))
    assert rounds_written(out) == 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that those which change hands must end like."""
    out: Path = tmp_path_factory.mktemp("whole") / "run"
    run("local", small(rounds=4, checkpoint_seconds=0), SHORT, out=out)
    return out


def asked(executor: str, **values: Any) -> Resolved:
    """The unfinished run, asked of an executor by somebody who types."""
    plan = {"network": "mlp", "clients": 6, "cohort": 3, "rounds": 4, "epochs": 1, "checkpoint_seconds": 0}
    return resolve("local", {**plan, "executor": executor, **values})


def test_executors_and_options_change_nothing_but_who_computes(tmp_path: Path, whole: Path) -> None:
    expected = json.loads((whole / CONFIG).read_text())
    for name, executor in OTHERS.items():
        out = tmp_path / name
        run("local", small(rounds=4, checkpoint_seconds=0), SHORT, executor=executor, out=out)
        assert_same_end(out, whole)
        assert (out / "split.json").read_bytes() == (whole / "split.json").read_bytes()
        found = json.loads((out / CONFIG).read_text())
        assert found["inputs"] == expected["inputs"]
        assert Resolved.from_json(found).identity == Resolved.from_json(expected).identity
        assert default_folder(Resolved.from_json(found)) == default_folder(Resolved.from_json(expected))
        found["experiment"].pop("executor")
        rest = {**expected, "experiment": {k: v for k, v in expected["experiment"].items() if k != "executor"}}
        assert {**found, "executors": {}, "digest": expected["digest"]} == rest


def test_options_that_change_what_is_computed_do_belong_to_a_run() -> None:
    plain = asked("auto").identity
    for same_run in (
        asked("cuda"),
        asked("workers", **{"workers.stack": 4, "workers.processes": 3}),
        asked("cuda", **{"cuda.streams": 2, "cuda.mode": "stacked"}),
        asked("auto", **{"cuda.precision": "float32"}),
    ):
        assert same_run.identity == plain
    for other in (
        asked("cuda", **{"cuda.precision": "bf16"}),
        asked("auto", exact=True),
        asked("auto", seed=1),
        asked("auto", lr=0.5),
    ):
        assert other.identity != plain
    assert asked("auto", **{"cuda.precision": "bf16", "cuda.streams": 2}).identity == (
        asked("cuda", **{"cuda.precision": "bf16"}).identity
    )


@pytest.mark.parametrize(
    ("first", "then", "options"),
    [
        ("sequential", asked("workers", **{"workers.stack": 1, "workers.layout": "plain"}), [EXACT]),
        ("workers", asked("workers", **{"workers.stack": 1, "workers.processes": 1}), [WorkerOptions(1, 1)]),
        ("workers", asked("sequential"), []),
    ],
    ids=["to workers", "to other options", "to one process"],
)
def test_a_run_is_continued_by_another_executor(
    first: str, then: Resolved, options: list[WorkerOptions], tmp_path: Path, whole: Path, made: list[Any]
) -> None:
    """The one that is named now computes the rest, whatever computed the rounds before."""
    out = tmp_path / "run"
    unfinished(out, OTHERS[first])
    before = records(out)
    execute(prepare(then), out)
    assert made == options
    assert records(out)[:2] == before
    assert_same_end(out, whole)
    assert recorded(out)[0] == first, "what was recorded when the run began stays"


def test_another_run_is_not_continued(tmp_path: Path, gpu: Machine) -> None:
    gpu(True)
    unfinished(tmp_path / "run", "sequential")
    for other in (asked("sequential", lr=0.5), asked("cuda", **{"cuda.precision": "bf16", "cuda.device": "cpu"})):
        with pytest.raises(RunError, match="other settings"):
            execute(prepare(other), tmp_path / "run")


@pytest.mark.parametrize("gone", ["workers", "cuda", "steam"])
def test_a_run_is_resumed_where_its_executor_is_not_to_be_had(
    gone: str, tmp_path: Path, whole: Path, monkeypatch: Patch, made: list[Any], gpu: Machine
) -> None:
    """It was begun by the best there was; here that is another one."""
    gpu(False)
    out = tmp_path / "run"
    unfinished(out, "auto", exact=True)
    choices, _ = read_sealed(File.at(out / CHOICES))
    assert choices["executor"]["answer"] == "workers"
    choices["executor"]["answer"] = gone
    write_sealed(File.at(out / CHOICES), choices)
    if gone == "workers":
        monkeypatch.delattr(os, "fork")
    resume(out)
    assert made == ([] if gone == "workers" else [EXACT])
    assert_same_end(out, whole)


def test_a_resumed_run_keeps_its_executor_where_it_can(
    tmp_path: Path, whole: Path, made: list[Any], gpu: Machine
) -> None:
    """A GPU that came in the meantime is not taken: the rounds would be computed in two ways."""
    gpu(False)
    out = tmp_path / "run"
    unfinished(out, "auto", exact=True)
    gpu(True)
    resume(out)
    assert made == [EXACT]
    assert_same_end(out, whole)


def test_a_resumed_run_keeps_its_options(tmp_path: Path, whole: Path, made: list[Any]) -> None:
    out = tmp_path / "run"
    unfinished(out, OTHERS["one worker"])
    resume(out)
    assert made == [OTHERS["one worker"]]
    assert_same_end(out, whole)


def test_a_comparison_is_continued_with_another_executor(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    """Finished runs count, and those that are missing are computed by the executor that is named now."""
    root = tmp_path / "out"
    arguments = ("compare", "fedavg", *SMALL, "--jobs", "1", "--out", str(root), "--json")
    assert called(capsys, monkeypatch, *arguments, "--set", "executor=sequential")[0] == 0
    before = {file: file.stat().st_mtime_ns for file in (root / "fedavg-seed0").iterdir()}
    chosen = ("--set", "executor=workers", "--set", "workers.processes=2", "--seeds", "2")
    code, text, err = called(capsys, monkeypatch, *arguments, *chosen)
    assert (code, err) == (0, "")
    assert [each["seed"] for each in json.loads(text.splitlines()[-1])["runs"]] == [0, 1]
    assert {file: file.stat().st_mtime_ns for file in (root / "fedavg-seed0").iterdir()} == before
    assert recorded(root / "fedavg-seed1") == ("workers", {"workers": {"processes": 2}})
    run("fedavg", small(seed=1), SHORT, out=tmp_path / "reference")
    assert_same_end(root / "fedavg-seed1", tmp_path / "reference")
