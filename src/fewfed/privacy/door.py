"""The door for programs: attack a run that was recorded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

from torch import nn

from fewfed.data.examples import Dataset
from fewfed.network import Network
from fewfed.runs import given

if TYPE_CHECKING:
    from fewfed.privacy.attacks.running import Attacked

Where = str | PathLike[str]


def attack(
    folder: Where,
    kinds: str | Sequence[str] = (),
    *,
    effort: float = 1.0,
    seed: int = 0,
    rounds: Sequence[int] = (),
    device: str = "",
    data: Dataset | None = None,
    network: nn.Module | Network | Where | None = None,
    method: Where = "",
    progress: bool | None = None,
) -> Attacked:
    """Attack what a run sent: every kind of attack, or those named. The run must have been recorded.

    `effort`: 1 is the usual; rows and steps of an attack grow with it. `rounds`: recorded rounds that are looked at.
    `device`: as torch names it; by default the GPU if there is one. `data`, `network`, `method`: as in `resume`.
    What was found is also written into the folder, as attacks/attacks.json and pictures.
    """
    from fewfed.privacy.attacks.opening import Effort, open_case
    from fewfed.privacy.attacks.registry import chosen
    from fewfed.privacy.attacks.running import attacked, write
    from fewfed.report.progress import display

    path, spec, own = given.folder_of(folder, "folder"), given.method_of(method), given.own_of(data, network)
    attacks = chosen([kinds] if isinstance(kinds, str) else list(kinds))
    named = os.fspath(network) if isinstance(network, (str, PathLike)) else ""
    wanted = Effort(effort, seed, tuple(rounds), device)
    case = open_case(path, wanted, own, method=spec, network=named)
    with display("attacks", len(attacks), given.wanted(progress)) as seen:
        found = attacked(path, case, attacks, seen.show)
    write(found)
    return found
