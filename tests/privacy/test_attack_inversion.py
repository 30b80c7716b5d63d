"""Inversion: a trained model shows its classes, an untrained one does not."""

from __future__ import annotations

import dataclasses
from functools import cache

import torch
from recorded_run import Exchanged, Kept, recorded, silent

from fewfed.privacy.attacks.case import Case
from fewfed.privacy.attacks.finding import Finding
from fewfed.privacy.attacks.inversion import Inversion, _begun_anew, representatives
from fewfed.tasks.regression import Regression
from support import digits_federation, job_of


@cache
def trained() -> Case:
    return recorded(job_of("fedavg", digits_federation(20, 25)), rounds=5, effort=0.5)


def found_in(case: Case) -> Finding:
    (found,) = Inversion().findings(case, silent)
    return found


def test_a_trained_model_shows_what_its_classes_look_like() -> None:
    found = found_in(trained())
    recognised, nearness = found.measures
    assert recognised.chance == 0.1
    assert recognised.low > 0.3
    assert recognised.rows == 20
    assert nearness.chance == 1.0
    assert 0.5 < nearness.value < 1.5
    assert "right on 9" in found.note, "a judge that is wrong itself judges nothing"


def test_a_model_without_training_shows_nothing() -> None:
    case = trained()
    model = case.exchanges()[0].broadcast
    made = [Exchanged(each.round, each.phase, model, each.packets, {}) for each in case.exchanges()]
    untrained = dataclasses.replace(case, record=Kept({each.round: [each] for each in made}))
    recognised = found_in(untrained).measures[0]
    assert recognised.low <= 0.1 <= recognised.high


def test_representatives_are_what_the_model_is_sure_of() -> None:
    case = trained()
    model = case.exchanges()[-1].broadcast["model"]
    labels = torch.arange(10)
    x = representatives(case, model, labels, case.held.x)
    said = case.job.net.apply(model, x, train=False)
    assert torch.equal(said.argmax(1), labels)
    real = case.job.net.apply(model, case.held.x, train=False).softmax(1)
    usual = float(real.gather(1, case.held.y[:, None]).mean())
    assert float(said.softmax(1).amax(1).mean()) > usual
    assert float(x.min()) >= float(case.held.x.min())
    assert float(x.max()) <= float(case.held.x.max())


def test_the_judge_begins_elsewhere_with_the_same_numbers() -> None:
    net = trained().job.net
    before, after = net.model()["params"], _begun_anew(net, 0).model()["params"]
    for name, leaf in before.items():
        assert torch.equal(leaf.flatten().sort().values, after[name].flatten().sort().values)
    assert not torch.equal(before["head.weight"], after["head.weight"])


def test_where_it_does_not_apply_it_says_why() -> None:
    case = trained()
    first = dataclasses.replace(case, record=Kept({1: [case.exchanges()[0]]}))
    assert "no whole model was broadcast after" in Inversion().why_not(first)
    other = dataclasses.replace(case, job=dataclasses.replace(case.job, task=Regression()))
    assert "no classes" in Inversion().why_not(other)
    assert not Inversion().why_not(case)
