"""Everything that `fewfed serve` does around a run: configuration and keys checked, Flower started and ended."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from fewfed.deploy.coordinator.identity import Identity
from fewfed.deploy.coordinator.run import Coordinator
from fewfed.deploy.coordinator.settings import read_config
from fewfed.deploy.flower.installed import keep_to_itself, require_flower
from fewfed.deploy.flower.superlink import SuperLink, Tls
from fewfed.deploy.logs import log_to_stderr
from fewfed.deploy.security.key_folder import CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY, KeyFolder
from fewfed.deploy.security.keys import read_bounded
from fewfed.runs.folder import FEDERATION
from fewfed.runs.results import Result

_SHORTEST_LIFE = 3600.0
"""Seconds that a message lives at least."""
FLOWER = "flower"
"""Folder below the run folder for what Flower writes."""


def start(path: Path, out: Path, *, resume: bool = False, secure: bool = False) -> Result:
    """Serve a federation from its first letter to its finished run."""
    require_flower()
    keep_to_itself(out / FLOWER)
    begun_with = Identity.read(out).sites if resume and (out / FEDERATION).exists() else ()
    config = read_config(path, lambda keys: KeyFolder(keys).roster().sites, begun_with, secure=secure)
    keys = KeyFolder(config.keys)
    roster = keys.roster()
    tls = Tls(*(config.keys / name for name in (CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY)))
    for file in (tls.authority, tls.certificate, tls.key):
        read_bounded(file)
    coordinator = Coordinator(config, keys.coordinator_key(), roster.keys, out)
    coordinator.check(resume=resume)
    coordinator.refuse_folder(resume)
    if resume and (finished := coordinator.finished()) is not None:
        return finished
    log = log_to_stderr("fewfed.coordinator", "coordinator")
    if begun_with:
        _tell_changes(read_config(path, lambda _: roster.sites).federation.sites, coordinator, log)
    from fewfed.deploy.flower.hub import FlowerHub

    link = SuperLink(config.federation.address, tls, out / FLOWER)
    nodes = {site: roster.sites[site].node for site in config.federation.sites if site in roster.sites}
    settings = config.federation
    # What nobody fetches is forgotten after a while, and sent again to whoever is there then.
    ttl = max(_SHORTEST_LIFE, 2 * settings.deadline)
    hub = FlowerHub(link, nodes, most_bytes=settings.most_bytes, ttl=ttl, log=log)
    try:
        log.info("waiting for sites on %s", config.federation.address)
        return coordinator.run(hub, resume=resume)
    finally:
        hub.close()


def _tell_changes(now: Sequence[str], coordinator: Coordinator, log: logging.Logger) -> None:
    """Who of the run's sites is not on the roster any more, and who came too late."""
    for site in coordinator.removed:
        log.warning("site '%s' is not on the roster any more: the run goes on without it and its rows", site)
    for site in now:
        if site not in coordinator.config.federation.sites:
            log.warning("site '%s' was added after this run began: it can take part in the next one", site)
