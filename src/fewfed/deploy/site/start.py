"""What `fewfed site` does before it waits for letters: it reads its data, and checks keys, policy and Flower."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fewfed.data.examples import Dataset
from fewfed.data.sources import load, names
from fewfed.deploy.flower.installed import keep_to_itself, require_flower
from fewfed.deploy.flower.superlink import parsed_address
from fewfed.deploy.logs import log_to_stderr
from fewfed.deploy.security.key_folder import SiteKeys
from fewfed.deploy.security.names import check_site
from fewfed.deploy.site.daemon import serve
from fewfed.deploy.site.site import Settings, Site
from fewfed.deploy.site.work import own_policies
from fewfed.deploy.transport import Line
from fewfed.engine.own_folder import OwnFolder
from fewfed.errors import ConfigError, concerning
from fewfed.runs.experiment import resolve_data
from fewfed.runs.folder import held

_STAND_IN = "fedavg"
"""No method is named at a site; options of data are read as those of any."""


def start(
    values: Mapping[str, Any],
    *,
    name: str,
    keys: Path,
    server: str | None,
    state: Path,
    policy: Path | None,
    threads: int,
    most_bytes: int,
    least_threshold: int = 0,
) -> None:
    """Be a site until somebody stops it. What is wrong with its files is said at once.

    `server`: the coordinator's address; None where a stock SuperNode connects to it, and relays.
    """
    require_flower()
    check_site(name)
    if server is not None:
        parsed_address(server)
    with held(state):
        keep_to_itself(state / "flower")
        own = SiteKeys.read(keys)
        if own.roster.named(own.signing.public) != name:
            raise ConfigError(
                f"the keys in '{keys}' are not those of site '{name}': expected the folder that was made for it"
            )
        spoken_of = set() if policy is None else {*own_policies(policy, name, own.roster.keys).sites}
        dataset = read_data(values)
        if threads:
            torch.set_num_threads(threads)
        log = log_to_stderr("fewfed.site", name)
        if spoken_of and name not in spoken_of:
            log.info(
                "the policy's tables are for other sites (%s): here holds what it says for all",
                ", ".join(sorted(spoken_of)),
            )
        log.info("%d rows to train on, %d to test on", len(dataset.train), len(dataset.test))
        settings = Settings(
            name,
            own.signing,
            own.roster.coordinator_keys,
            dataset,
            state,
            policy=policy,
            most_bytes=most_bytes,
            peers=own.roster.keys,
            least_threshold=least_threshold,
        )
        site = Site(settings, log)
        serve(site, _line(server, own, state, most_bytes, log))


def _line(server: str | None, own: SiteKeys, state: Path, most_bytes: int, log: logging.Logger) -> Line:
    if server is None:
        from fewfed.deploy.flower.relay_line import RelayLine

        return RelayLine(state, most_bytes=most_bytes, log=log)
    from fewfed.deploy.flower.node import FlowerLine

    return FlowerLine(server, own.node, own.authority, OwnFolder(state), most_bytes=most_bytes, log=log)


def read_data(values: Mapping[str, Any]) -> Dataset:
    """The site's rows as they are: how inputs are scaled is settled with the other sites."""
    resolved = resolve_data(_STAND_IN, values)
    experiment = resolved.experiment
    if "data" not in values or experiment.data in names():
        raise ConfigError("which data? Name this site's own file or folder, as in --data my.npz", key="data")
    with concerning("data", experiment.data):
        options = dataclasses.replace(resolved.options, normalise="none")
        return load(experiment.data, options=options, seed=experiment.seed)
