"""What every test has: one thread, the same random examples each time, and the specification's values."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("repeatable")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Looked at when Triton is first imported, by whatever test comes first.


for each in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(each) is signal.SIG_IGN:  # Tests in the background: what they start would ignore it as well.
        signal.signal(each, signal.default_int_handler if each is signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing of the machine's memory of earlier runs comes in, and nothing of the tests' goes out."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """No library decides for later tests, and for programs they fork, what a signal does: Ray's clusters would."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for each, handler in before.items():
        if signal.getsignal(each) is not handler:
            signal.signal(each, handler)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Sums then run in one order, whatever a library did to the number of threads in an earlier test."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def flea_values() -> dict[str, Any]:
    """Inputs and expected values of the FLea specification, computed apart from this package."""
    values: dict[str, Any] = json.loads((Path(__file__).parent / "fixtures" / "flea_fixtures.json").read_text())
    return values
