"""A site that is `fewfed site` in all but its last step: what it sends is spoiled.

    python bad_site.py KIND OTHER site --data rows.npz ...

KIND is one of `forging.FORGERIES`; OTHER is the folder of keys of another site.
"""

from __future__ import annotations

import sys
from pathlib import Path

from forging import FORGERIES, Forger

from fewfed.cli import main
from fewfed.deploy.parcel import Parcel
from fewfed.deploy.security.key_folder import SiteKeys
from fewfed.deploy.security.names import COORDINATOR
from fewfed.deploy.site.site import Site

kind, other, *arguments = sys.argv[1:]
own = SiteKeys.read(Path(arguments[arguments.index("--key") + 1]))
forger = Forger(
    arguments[arguments.index("--name") + 1],
    FORGERIES[kind][0],
    own.signing,
    SiteKeys.read(Path(other)).signing,
    own.roster.coordinator_keys[COORDINATOR],
)
honest = Site.answer


def spoiled(site: Site, parcel: Parcel) -> Parcel | None:
    answer = honest(site, parcel)
    return None if answer is None else forger.spoiled(parcel, answer)


Site.answer = spoiled  # type: ignore[method-assign]
sys.argv[1:] = arguments
main()
