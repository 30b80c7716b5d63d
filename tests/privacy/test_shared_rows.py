"""What an attacker can make of its own rows is what clients make of theirs."""

from __future__ import annotations

import torch

from fewfed import networks
from fewfed.conformance.clients import digits, digits_federation
from fewfed.conformance.reference import job_for
from fewfed.engine.turn import Member
from fewfed.phase import Clock
from fewfed.privacy.attacks import intervals
from fewfed.privacy.shared_rows import imitated, row_upload, rows_in, sent_by

CLOCK = Clock(0, 5, 1)


def test_imitated_rows_are_features_of_the_rows_they_name() -> None:
    job = job_for("flea")
    (phase,) = (each for each in job.method.phases(CLOCK) if row_upload(each))
    shared = phase.does.broadcast(job.method.server_init(job.setup))
    _, test = digits()
    found = imitated(job, phase, CLOCK, shared, test, 300)
    assert len(found) >= 300
    expected = job.net.apply(shared["model"], test.x[found.origins[:, 0]], stop=1, train=False)
    assert torch.allclose(found.sent, expected, atol=1e-6)
    assert torch.equal(found.labels, test.y[found.origins[:, 0]])
    assert torch.equal(found.sources, test.x[found.origins[:, 0]])
    assert len(set(found.origins.flatten().tolist())) > 150, "rows are drawn in turn, not the same ones again"


def test_averages_name_all_rows_behind_them() -> None:
    job = job_for("fedmix", {"group": 3}, digits_federation(4, 10))
    phase = job.method.phases(CLOCK)[0]
    found = imitated(job, phase, CLOCK, {}, digits()[1], 50)
    assert found.origins.shape[1] == 3
    assert torch.allclose(found.sent, found.sources, atol=1e-6)


def test_a_phase_that_sends_hardly_anything_ends_early() -> None:
    job = job_for("fedmix", {"group": 10**9})
    phase = job.method.phases(CLOCK)[0]
    assert len(imitated(job, phase, CLOCK, {}, digits()[1], 50)) == 0


def test_methods_that_send_no_rows_have_no_such_phase() -> None:
    job = job_for("fedavg")
    assert [row_upload(phase) for phase in job.method.phases(CLOCK)] == [""]


def test_rows_that_were_packed_are_counted_as_rows() -> None:
    packed = {"rows": {"codes": torch.zeros(0, 8, dtype=torch.uint8), "low": torch.zeros(0), "step": torch.zeros(0)}}
    assert rows_in(packed, "rows") == 0
    assert rows_in({"rows": torch.zeros(3, 2)}, "rows") == 3
    assert rows_in({"rows": {}}, "rows") == 0


def test_sent_by_is_what_the_client_itself_sends() -> None:
    job = job_for("flea", {"share": 0.5})
    (phase,) = (each for each in job.method.phases(CLOCK) if row_upload(each))
    shared = {"model": networks.build("digits-cnn", (1, 8, 8), 10, 8).model()}
    data = job.federation.examples(2)
    found = sent_by(job, phase, CLOCK, shared, Member(2), data)
    assert len(found) == len(data) // 2
    assert torch.equal(found.labels, data.y[found.origins[:, 0]])


def test_wilsons_interval_covers_as_often_as_it_says() -> None:
    random = torch.Generator().manual_seed(1)
    for chance, trials in ((0.02, 200), (0.5, 30), (0.97, 100)):
        hits = (torch.rand(4000, trials, generator=random) < chance).sum(1)
        covered = [low <= chance <= high for low, high in (intervals.of_share(int(each), trials) for each in hits)]
        assert 0.92 <= sum(covered) / len(covered) <= 0.99
    assert intervals.of_share(0, 10)[0] == 0.0
    assert intervals.of_share(10, 10)[1] == 1.0


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution() -> None:
    values = torch.randn(400, generator=torch.Generator().manual_seed(2), dtype=torch.double) * 3 + 5
    low, high = intervals.of_mean(values)
    half = 1.96 * float(values.std()) / 20
    assert abs((high - low) / 2 - half) < 0.1 * half
    assert low < float(values.mean()) < high
