"""What is said of the machine that a run was on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fewfed.runs import machine

CPUINFO = "processor\t: 0\nvendor_id\t: X\nmodel name\t: A Processor 9 with: a colon\nmodel name\t: Another\n"


def test_a_processor_has_the_name_that_the_system_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self: CPUINFO)
    assert machine.processor() == "A Processor 9 with: a colon"
    assert machine.environment()["processor"] == machine.machine()["processor"] == machine.processor()
    monkeypatch.setattr(Path, "read_text", lambda self: "processor\t: 0\n")
    assert machine.processor()
    json.dumps(machine.environment())
