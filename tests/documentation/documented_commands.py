"""How the commands of each page are run: what its reader has, what was typed before, what is shortened.

Nothing is left out quietly: `test_documented_commands.py` fails where a document has a command that is in none of these
tables, and where a table speaks of a command, a page or a test that is no longer there.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import documented_files as files

TRAINING = ("run", "compare", "tune", "frontier", "diagnose features", "diagnose mixing")
SMALL = ("--rounds", "1", "--epochs", "2")
FEW = ("--clients", "6", "--cohort", "3")
SHORTENED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(TRAINING, SMALL),
    "frontier": (*SMALL, "--effort", "0.05"),
    "diagnose mixing": ("--rounds", "2", "--epochs", "1"),  # In the first round FLea has nothing to mix.
    "attack": ("--effort", "0.05"),
    "advise": ("--rounds", "1", "--epochs", "1", "--seeds", "1", "--lr", "0.01"),  # Its time is then never up.
}
"""What is added to a command, so that it takes a second: of an option that is given twice the last one counts."""
OWN_CLIENTS = ("--site", "--clients 0")
"""Where this is said, the number of clients is the data's."""


@dataclass(frozen=True)
class Case:
    """How the commands of a page are run, one after another, in one folder."""

    files: tuple[Callable[[Path], None], ...] = ()
    """What its reader has beside what every reader has."""
    before: tuple[str, ...] = ()
    """What was typed by somebody who comes to this page."""
    short: Mapping[str, str] = field(default_factory=dict)
    """What stands instead of something in a command, each found on the page."""
    more: tuple[str, ...] = ()
    """Added to every command that trains."""
    between: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    """What somebody does before they type a command that begins so."""
    again: tuple[str, ...] = ()
    """Commands whose folder an earlier line of the page has taken: a user types them on another day."""
    slow: bool = False
    """Not part of `make test`; `make test ALL=yes` and CI run it."""


ONE_SEED = {"--seeds 3": "--seeds 1"}
CELL = "data=har,split=qua:2,clients=75,method=fedavg,seed=1"
LENET = {"--data cifar10": "--data cifar10 --network lenet5"}
RECORDED = "fewfed run flea --record packets --clients 6 --cohort 3 --rounds 1 --epochs 1 --out "
RUN = "fewfed run flea --clients 6 --cohort 3 --rounds 1 --epochs 1 --out "
COMPARED = "fewfed compare fedavg flea --clients 6 --cohort 3 --rounds 1 --epochs 1 --out "
FROM_TABLE = "fewfed run fedavg --data patients.csv --label diagnosis --site hospital --rounds 1 --out "
ON_CPU = {"--executor cuda --precision bf16": "--executor sequential", "executor=cuda": "executor=sequential"}
"""Test machines have no GPU; tests/engine/test_engine_device.py and benchmarks/agreement.py use one where there is."""

CASES: Mapping[str, Case] = {
    "README.md": Case(
        (files.missing_values, files.studies),
        short={"--seeds 5": "--seeds 1"},
        again=("fewfed run flea --policy", "fewfed compare fedavg flea --data patients.csv"),
    ),
    "docs/start.md": Case(short=ONE_SEED),
    "docs/own_data.md": Case((files.own_table,), short=ONE_SEED),
    "docs/add_method.md": Case(),
    "docs/advise.md": Case((files.lung,), again=("fewfed advise --data lung.csv",), slow=True),
    "docs/attacks.md": Case(before=(RECORDED + "runs/flea",), short={"--effort 3 --round 10": "--round 1"}),
    "docs/budget.md": Case(),
    "docs/budget_guide.md": Case(),
    "docs/data.md": Case(),
    "docs/defences.md": Case(
        short={"grouped.k=1,2,5,10 --vary decorrelate=0,3": "grouped.k=1,5", "--seeds 3": "--seeds 1"}
    ),
    "docs/domains.md": Case((files.office,), more=("--size", "32")),
    "docs/gpu.md": Case((files.cifar10,), short={**ON_CPU, **ONE_SEED, **LENET, "--jobs 4": "--jobs 1"}),
    "docs/metrics.md": Case(),
    "docs/model.md": Case(
        (files.new_patients,),
        before=(
            FROM_TABLE.replace("fedavg", "local") + "runs/hospitals",
            "fewfed run fedavg --data images --clients 2 --cohort 2 --rounds 1 --out runs/photographs",
            RUN + "runs/my-first",
        ),
    ),
    "docs/networks.md": Case((files.own_network, files.har), short=ONE_SEED),
    "docs/ours.md": Case(
        (files.har, files.studies),
        short={
            "--minutes 30": f"--minutes 30 --cells {CELL}",
            "--seeds 3": "--seeds 1",
            "--seeds 2": "--seeds 1",
            "k=1,2,5,10": "k=1,2",
            "decorrelate=0,1,3,10": "decorrelate=0,3",
        },
        more=("--network", "mlp"),
        slow=True,
    ),
    "docs/policy.md": Case(),
    "docs/privacy.md": Case(short={"record_rounds=1,10-12,last": "record_rounds=1,last"}),
    "docs/ray.md": Case(short={"10.0.0.1:6379": "auto", "ray.actors=8": "ray.actors=2"}, slow=True),
    "docs/report.md": Case(
        before=(COMPARED + "runs/demo", COMPARED.replace("flea", "fedprox") + "runs/compare", COMPARED + "runs/other")
    ),
    "docs/reproduce.md": Case(
        (files.har, files.cifar10, files.studies),
        short={
            "method=fedavg,flea,seed=0..2": "clients=75,method=fedavg,flea,seed=0",
            "--jobs 2": "--jobs 1",
            **LENET,
            "--rounds 3": f"--rounds 2 --cells {CELL}",
            "--minutes 30": f"--minutes 30 --cells {CELL}",
        },
        before=(
            "fewfed run flea --data cifar10 --split qua:3 --network lenet5 "
            "--out runs/reproduce/flea-table1/cifar10-qua-3-clients500-flea-seed0",
        ),
        slow=True,
    ),
    "docs/robust.md": Case(
        short={"--robust multi-krum": "--robust multi-krum --set clients=8 --set cohort=8"},
    ),
    "docs/segmentation.md": Case(
        (files.eyes,), short={"image_size=128": "image_size=32"}, more=("--size", "32", "--network", "unet-small")
    ),
    "docs/setup.md": Case(),
    "docs/speed.md": Case(),
    "docs/trackers.md": Case(short={"--seeds 5": "--seeds 1"}, slow=True),
    "docs/training.md": Case(short={"lr=0.001,0.01,epochs=1,5": "lr=0.001,0.01", "--trials 6": "--trials 2"}),
    "docs/trust.md": Case(between={"fewfed certs keys --public": files.public_part}),
    "docs/watch.md": Case(before=(COMPARED + "runs/compare",)),
    "docs/which.md": Case(short=ONE_SEED),
    "reproduce/README.md": Case(
        (files.har, files.studies),
        short={
            "method=fedavg,flea,seed=0..2": "clients=75,method=fedavg,seed=0",
            "fewfed reproduce flea-table1": f"fewfed reproduce flea-table1 --cells {CELL}",
        },
        slow=True,
    ),
}
"""Every document with commands in its code blocks."""

MAKE = Case(short={"--seeds 3": "--seeds 1"})
"""Commands of `make demo`."""

HELP = Case(
    (files.own_method, files.har, files.studies),
    before=(COMPARED + "runs/demo", RECORDED + "runs/recorded"),
    short={
        "--seeds 3": "--seeds 1",
        "lr=0.001,0.01,epochs=1,5": "lr=0.001,0.01",
        "grouped.k=1,2,5": "grouped.k=1,2",
    },
    between={"fewfed new": files.begun_method},
    again=("fewfed compare fedavg flea --seeds",),
)
"""The examples in the help of the commands, which are also pages of the documentation site."""

FEDERATIONS = ("docs/deploy.md", "docs/hospitals.md")
"""Pages whose commands `test_documented_federation.py` runs in their order: a coordinator and sites, each a process."""


@dataclass(frozen=True)
class Elsewhere:
    """Commands that begin so are run by another test, with the options they are documented with; or cannot be run."""

    begins: str
    why: str
    test: str = ""
    """Its file and name; empty where no test can run it."""


FEDERATION = "tests/documentation/test_documented_federation.py::test_a_federation_is_what_the_pages_type"
DOCTOR = "tests/doctor/test_doctor.py::test_all_executors_are_tried_as_a_user_types_it"
WATCH = "tests/documentation/test_documented_commands.py::test_watch_serves_its_page_until_it_is_stopped"
RELAY = "tests/deploy/faults/test_relay.py::test_sites_behind_stock_supernodes_come_to_the_same_numbers"
ELSEWHERE = (
    Elsewhere("fewfed serve federation.toml", "it waits for other machines", FEDERATION),
    Elsewhere(
        "fewfed site --data rows.npz --name north --key north --server", "it stays until it is stopped", FEDERATION
    ),
    Elsewhere("fewfed status runs/hospitals", "there must have been a federation", FEDERATION),
    Elsewhere(
        "fewfed site --data rows.npz --name north --key north --state state --relay", "it needs a SuperNode", RELAY
    ),
    Elsewhere("fewfed doctor --all", "it starts a cluster, which wants a process in which nothing ran before", DOCTOR),
    Elsewhere("fewfed watch", "it serves until it is stopped", WATCH),
)

EXAMPLES = "tests/examples/test_examples.py::"
COMPOSE = "tests/deploy/faults/test_operators_files.py::test_the_compose_file_starts_a_coordinator_and_a_site"
INSTALLED = "tests/documentation/test_documented_install.py::test_what_pip_installs_is_the_whole_program"
SITE = (
    "tests/documentation/test_documentation_site.py::"
    "test_every_page_of_the_repository_is_in_the_navigation_and_every_listed_one_is_built"
)
OTHER_PROGRAMS = (
    Elsewhere("make setup", "it fetches packages, and tests work offline"),
    Elsewhere("make test", "it is what runs the tests"),
    Elsewhere(
        "make demo", "it installs, then types", "tests/documentation/test_documented_commands.py::test_make_demo_runs"
    ),
    Elsewhere("make docs", "it installs, then builds", SITE),
    Elsewhere("make example-activity", "", EXAMPLES + "test_activity_runs_from_the_published_layout_to_its_report"),
    Elsewhere("make example-lung", "", EXAMPLES + "test_lung_runs_from_the_packages_table_to_its_report"),
    Elsewhere("make example-retina", "", EXAMPLES + "test_retina_runs_from_the_published_folders_to_its_report"),
    Elsewhere("make example-xray", "", EXAMPLES + "test_xray_runs_from_the_published_file_to_its_report"),
    Elsewhere(
        "ROUNDS=5 SEEDS=1 examples/lung/run.sh", "", EXAMPLES + "test_lung_runs_from_the_packages_table_to_its_report"
    ),
    Elsewhere("DRIVE=~/DRIVE CHASE=", "", EXAMPLES + "test_retina_runs_from_the_published_folders_to_its_report"),
    Elsewhere("pip install .", "", INSTALLED),
    Elsewhere('python -c "import torch;', "it needs a GPU"),
    Elsewhere("python benchmarks/peers/run.py", "it fetches the other simulators, and tests work offline"),
    Elsewhere("export FLWR_TELEMETRY_ENABLED=0", "", RELAY),
    Elsewhere("flower-supernode", "it stays until it is stopped", RELAY),
    Elsewhere("docker compose", "it needs Docker; the file is read", COMPOSE),
    Elsewhere("SITE=north SERVER=fl.example.org:9092 docker compose", "it needs Docker; the file is read", COMPOSE),
)
"""Lines that are no commands of fewfed."""


def shortened(line: str, case: Case, number: int) -> list[str]:
    """The words behind `fewfed` of a command that does the same for a second or so."""
    if line in case.short:  # As a whole: it may also be how other commands begin.
        line = case.short[line]
    else:
        for long, short in case.short.items():
            line = line if long.startswith("fewfed ") else line.replace(long, short)
    words = shlex.split(line)[1:]
    name = next((name for name in SHORTENED if words[: len(name.split())] == name.split()), "")
    words += SHORTENED.get(name, ())
    if name in TRAINING:
        words += () if any(each in line for each in (*OWN_CLIENTS, "clients=8")) else FEW
        words += case.more
    if case.again and line.startswith(case.again):
        words += ["--out", f"runs/again-{number}"]
    return words


def elsewhere(line: str) -> bool:
    return any(line.startswith(each.begins) for each in ELSEWHERE)
