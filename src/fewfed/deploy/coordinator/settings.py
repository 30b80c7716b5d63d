"""What `fewfed serve` is told: an experiment, and a table [federation] about who takes part and what the data are."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fewfed.deploy.coordinator.known_sites import MOST_ROWS
from fewfed.deploy.coordinator.post import Patience
from fewfed.deploy.messages import Offer
from fewfed.deploy.model import refuse_code
from fewfed.deploy.parcel import digest_of
from fewfed.deploy.security.names import check_sites
from fewfed.deploy.security.strikes import StrikeRule
from fewfed.errors import ConfigError
from fewfed.runs.config_file import ConfigFile, read
from fewfed.runs.experiment import Experiment, Resolved, resolve
from fewfed.settings import make, setting

MOST_CLASSES = 100_000
TABLE = "federation"
SITES = "sites"
"""What stands in place of a data set's name in the configuration of a run between sites."""
_OURS = "rows are at the sites, each of which is a client"


@dataclass(frozen=True)
class FederationSettings:
    """The table [federation]."""

    address: str = setting("127.0.0.1:9092", "where sites connect, HOST:PORT; 0.0.0.0 = on all interfaces")
    keys: str = setting("keys", "folder that 'fewfed certs' made")
    sites: tuple[str, ...] = setting((), "names of the sites that may take part; empty = all on the roster")
    task: Literal["classification", "segmentation"] = setting("classification", "what is learnt")
    shape: tuple[int, ...] = setting((), "shape of one input, as [64] or [3, 32, 32]")
    classes: tuple[str, ...] = setting((), "names of the classes, in order")
    quorum: int = setting(0, "usable answers without which no phase ends; 0 = more than half of the sites asked", ge=0)
    wait: float = setting(60.0, "seconds to wait for the other sites once a quorum has joined", ge=0)
    deadline: float = setting(600.0, "seconds after which sites without an answer are left out of a phase", gt=0)
    give_up: float = setting(86_400.0, "seconds after which the run stops where there is no quorum", gt=0)
    spare: int = setting(0, "so many more sites are asked than are waited for", ge=0)
    most_rows: int = setting(MOST_ROWS, "rows that a site may say it has: it weighs as much in means", ge=1)
    most_mb: float = setting(2047.0, "the largest message, in megabytes", gt=0, le=2047)
    strikes: int = setting(3, "refused answers that put a site into quarantine", ge=1)
    quarantine: int = setting(10, "rounds of a quarantine; 0 = until the end", ge=0)
    secure: bool = setting(False, "sums under masks: the coordinator sees no single site's model")
    secure_rest: Literal["refuse", "clear"] = setting(
        "refuse", "secure: what cannot be summed (rows, counters) is refused, or sent as it is"
    )
    secure_threshold: int = setting(
        0, "secure: sites that must answer to the end, more than half of a sum's; 0 = just that many", ge=0
    )
    pace: float = setting(0.03, "seconds between two looks for answers", gt=0, le=60)

    def patience(self, sites: int) -> Patience:
        quorum = self.quorum or sites // 2 + 1
        if quorum > sites:
            raise ConfigError(f"quorum = {quorum}, but there are {sites} sites: expected at most as many", key="quorum")
        return Patience(self.deadline, quorum, self.spare, self.give_up, self.pace)

    @property
    def rule(self) -> StrikeRule:
        return StrikeRule(self.strikes, self.quarantine)

    @property
    def most_bytes(self) -> int:
        return int(self.most_mb * 1e6)


@dataclass(frozen=True)
class ServeConfig:
    """A configuration of a federation, checked."""

    federation: FederationSettings
    resolved: Resolved
    file: ConfigFile
    folder: Path
    """Of the file: other paths in it are meant from there."""

    def offer(self) -> Offer:
        """What sites are told of the run."""
        # What only says who computes it, or what is written down beside, may change when a run is gone on with.
        settings, config = self.federation, self.resolved.identity.as_json()
        return Offer(
            config,
            settings.task,
            settings.shape,
            settings.classes,
            tuple(sorted(settings.sites)),
            settings.secure_rest if settings.secure else "",
        )

    @property
    def agreed(self) -> dict[str, Any]:
        """What is settled for the whole run when it begins, of the table [federation]."""
        settings = self.federation
        return {
            "task": settings.task,
            "shape": list(settings.shape),
            "classes": digest_of(json.dumps(settings.classes).encode()),  # There may be many.
            "secure": settings.secure,
            "secure_rest": settings.secure_rest,
        }

    @property
    def keys(self) -> Path:
        return self.folder / self.federation.keys


def read_config(
    path: Path, roster: Callable[[Path], Iterable[str]], begun_with: Sequence[str] = (), *, secure: bool = False
) -> ServeConfig:
    """The configuration in a file.

    `roster`: who is on that of a folder of keys, where the file names no sites. `begun_with`: the sites of a run that
    is gone on with, whoever is named by now. `secure`: sums are made under masks, also where the file does not say so.
    """
    file = read(path, beside=(TABLE,))
    table = tomllib.loads(path.read_text(encoding="utf-8")).get(TABLE, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: expected a table [{TABLE}]")
    try:
        federation = _settings(table)
    except ConfigError as error:
        raise error.at(f"{path}, table [{TABLE}]") from None
    federation = dataclasses.replace(federation, secure=federation.secure or secure)
    if begun_with:
        federation = dataclasses.replace(federation, sites=tuple(begun_with))
    if not federation.sites:
        federation = dataclasses.replace(federation, sites=tuple(sorted(roster(path.parent / federation.keys))))
    check_sites(federation.sites)
    if len(file.methods) != 1:
        raise ConfigError(f"{path} names {len(file.methods)} methods: expected method = NAME, one of them")
    return ServeConfig(federation, resolved_of(file, federation), file, path.parent)


def _settings(table: Mapping[str, Any]) -> FederationSettings:
    values = dict(table)
    classes = values.get("classes")
    if type(classes) is int and not 2 <= classes <= MOST_CLASSES:
        raise ConfigError(f"classes = {classes}: expected their number, from 2 to {MOST_CLASSES}, or their names")
    if type(classes) is int:
        values["classes"] = [str(number) for number in range(classes)]
    elif isinstance(classes, list):
        values["classes"] = [str(name) for name in classes]
    made = make(FederationSettings, values, f"[{TABLE}]")
    twice = [name for name, count in Counter(made.classes).items() if count > 1]
    if twice:
        raise ConfigError(f"class '{twice[0]:.60}' stands there twice: expected each once", key="classes")
    if any(size < 1 for size in made.shape):
        raise ConfigError(f"shape = {list(made.shape)}: expected lengths from 1 on, as in [1, 8, 8]", key="shape")
    return made


def resolved_of(file: ConfigFile, federation: FederationSettings) -> Resolved:
    """The experiment; refused where it asks for something that real sites do not do."""
    sites = len(federation.sites)
    if not sites:
        raise ConfigError("no site may take part: expected sites on the roster, or their names in [federation]")
    if not federation.shape or len(federation.classes) < 2:
        raise ConfigError("[federation] lacks shape or classes: expected shape = [64] and classes = 10, or their names")
    ours = {"data": SITES, "split": "site", "clients": sites}
    try:
        for name, value in ours.items():
            if file.values.get(name, value) != value:
                raise ConfigError(f"{name} cannot be set in a federation of real sites: {_OURS}", key=name)
        resolved = resolve(file.methods[0], {"cohort": float(sites), **file.values, **ours})
        _refuse_simulated(resolved.experiment)
        refuse_code(resolved)
    except ConfigError as error:
        raise file.explain(error) from None
    return resolved


def _refuse_simulated(experiment: Experiment) -> None:
    usual = Experiment()
    reasons = {
        "noise": "noise on inputs is made in simulations only",
        "noise_test": "noise on inputs is made in simulations only",
        "volume": "sites use all of their rows",
        "leave_out": "a site that only tests is one whose file has no training rows to give",
        "start_from": "the first model comes from the seed",
        "policy": "policies belong to the sites: fewfed site --policy",
        "rows_public": "whether everybody may see a site's rows is not for the coordinator to say",
        "record": "packets are not kept by a coordinator",
        "legacy_seed": "rows are where they are",
        "attack": "attackers are played in simulations only",
        "attackers": "attackers are played in simulations only",
        "attack_scale": "attackers are played in simulations only",
        "executor": "sites compute by themselves",
    }
    for name, why in reasons.items():
        if getattr(experiment, name) != getattr(usual, name):
            raise ConfigError(f"{name} cannot be set in a federation of real sites: {why}", key=name)
