"""Few bits for shared rows: bytes on the wire are as many as they should be, and the server computes with numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from packets import sent

from fewfed.engine.job import Job
from fewfed.engine.reception import BadPacket
from fewfed.engine.schema import Schemas
from fewfed.methods.registry import choose
from fewfed.phase import Clock
from fewfed.privacy.shared_rows import imitated
from support import digits, digits_federation, job_of, same


def job_with(spec: str, values: dict[str, Any]) -> Job:
    return job_of(choose(spec, values).method, digits_federation(3, 20))


@pytest.mark.parametrize(("bits", "keep"), [(8, 1.0), (4, 1.0), (2, 1.0), (8, 0.25), (0, 0.5)])
def test_the_bytes_that_are_counted_are_those_of_the_codes(bits: int, keep: float) -> None:
    job = job_with("quantised(flea)", {"bits": bits, "keep": keep, "inner.share": 0.5})
    packets, done = sent(job)
    features = job.net.apply(job.net.model(), digits()[0].x[:1], stop=1, train=False)
    channels, positions = features.shape[1], features[0, 0].numel()
    kept = round(channels * keep)
    numbers = kept * positions
    row = -(-numbers * bits // 8) + 8 if bits else 4 * numbers
    row += 2 * kept if kept < channels else 0
    assert done.metrics[0]["phases"]["share"]["bytes_up"] == sum(10 * (row + 8) for _ in packets)
    plain = sent(job_with("flea", {"share": 0.5}))[1].metrics[0]["phases"]["share"]["bytes_up"]
    if bits == 8 and keep == 1:
        assert 3.5 < plain / done.metrics[0]["phases"]["share"]["bytes_up"] < 4


def test_the_server_has_numbers_within_half_a_step_of_what_was_meant() -> None:
    plain, coded = (
        sent(job_with(spec, values))[1].server
        for spec, values in (("flea", {"share": 0.5}), ("quantised(flea)", {"bits": 8, "inner.share": 0.5}))
    )
    ours, theirs = coded["inner"]["features"], plain["features"]
    assert ours.dtype == theirs.dtype
    assert torch.equal(coded["inner"]["labels"], plain["labels"])
    step = (theirs.flatten(1).amax(1) - theirs.flatten(1).amin(1)) / 255
    assert bool(((ours - theirs).flatten(1).abs().amax(1) <= step / 2 + 1e-6).all())
    assert not torch.equal(ours, theirs)


def test_an_attacker_reads_what_the_server_reads() -> None:
    job = job_with("quantised(flea)", {"bits": 4, "inner.share": 0.5})
    packets, done = sent(job)
    read = torch.cat([phase.does.decoded(packet.arrays)["features"] for phase, _, packet in packets])
    assert torch.equal(read, done.server["inner"]["features"])
    phase, shared, _ = packets[0]
    found = imitated(job, phase, Clock(0, 2, 1), shared, digits()[1], 20)
    assert found.sent.shape[1:] == read.shape[1:]
    assert len(found.sent[0].unique()) <= 16


def test_several_exchanges_of_one_method_are_all_packed() -> None:
    job = job_with("quantised(ccvr(flea))", {"inner.epochs": 1})
    packets, done = sent(job, rounds=2)
    assert {phase.name for phase, _, _ in packets} == {"share", "collect"}
    assert all(isinstance(packet.arrays["features"], dict) for _, _, packet in packets)
    assert torch.isfinite(done.server["inner"]["inner"]["features"]).all()


def test_with_neutral_settings_everything_is_as_it_was() -> None:
    plain, coded = (
        sent(job_with(spec, values), rounds=2)
        for spec, values in (("flea", {}), ("quantised(flea)", {"bits": 0, "keep": 1.0}))
    )
    assert all(same(a[2].arrays, b[2].arrays) for a, b in zip(plain[0], coded[0], strict=True))
    assert same(plain[1].server, coded[1].server["inner"])


def test_codes_that_do_not_fit_are_refused_before_they_are_unpacked() -> None:
    job = job_with("quantised(flea)", {"bits": 4, "inner.share": 0.5})
    (phase, shared, packet), *_ = sent(job)[0]
    schema = Schemas(job).of(phase, Clock(0, 1, 2), shared, {}, packet.sender)
    schema.check(packet, packet.sender)
    good = packet.arrays["features"]
    bad = {
        "codes": good["codes"][:, :-1],
        "form": good["form"].new_zeros(*good["form"].shape[:-2], 1, 0),
        "step": good["step"] * float("inf"),
        "low": good["low"][:-1],
    }
    for name, value in bad.items():
        arrays = {**packet.arrays, "features": {**good, name: value}}
        with pytest.raises(BadPacket):
            schema.check(type(packet)(0, "share", packet.sender, packet.weight, arrays), packet.sender)
