"""What a run between sites is called, and with whom it began, as its folder knows it from the first moment on."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fewfed.deploy.security.names import check_sites
from fewfed.engine.own_folder import OwnFolder
from fewfed.errors import ConfigError, RunError
from fewfed.runs.folder import FEDERATION

_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Identity:
    """What letters of a run name."""

    run: str
    attempt: int
    sites: tuple[str, ...] = ()
    """All sites with which it began, in the order of their numbers."""
    agreed: Mapping[str, Any] = field(default_factory=dict)
    """What sites were told beside the experiment, and hold the coordinator to (`ServeConfig.agreed`)."""

    @classmethod
    def new(cls, sites: Sequence[str], agreed: Mapping[str, Any]) -> Identity:
        return cls(f"run-{secrets.token_hex(8)}", 0, tuple(sites), agreed)

    def refuse_other(self, agreed: Mapping[str, Any], out: Path) -> None:
        """Raise where the run began with something else: every site would refuse it."""
        for name, value in agreed.items():
            if self.agreed.get(name, value) != value:
                raise RunError(
                    f"'{out}' holds a run with another {name} in [federation]: put it back as it was, or choose "
                    "another --out"
                )

    @classmethod
    def read(cls, out: Path) -> Identity:
        """That of the run in a folder."""
        try:
            facts = json.loads(OwnFolder(out).read(FEDERATION, _MOST_BYTES))
            sites, agreed = check_sites(facts.get("sites", ())), dict(facts.get("agreed", {}))
            return cls(str(facts["run"]), int(facts["attempt"]), sites, agreed)
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
            raise RunError(f"'{out / FEDERATION}' is damaged: expected what 'fewfed serve' wrote") from error

    def write(self, out: Path) -> None:
        OwnFolder(out).write(FEDERATION, json.dumps(asdict(self)).encode())
