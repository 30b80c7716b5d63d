from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fewfed.engine.optimizer import LocalOptimizer
from fewfed.training import Optimizer

STEPS = 20
LR = 0.05

PAIRS: list[tuple[Optimizer, Callable[[list[Tensor]], torch.optim.Optimizer]]] = [
    (Optimizer("sgd"), lambda p: torch.optim.SGD(p, LR)),
    (Optimizer("sgd", momentum=0.9), lambda p: torch.optim.SGD(p, LR, momentum=0.9)),
    (
        Optimizer("sgd", momentum=0.5, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, LR, momentum=0.5, weight_decay=0.01),
    ),
    (Optimizer("adam"), lambda p: torch.optim.Adam(p, LR)),
    (
        Optimizer("adam", beta1=0.5, beta2=0.9, eps=1e-4, weight_decay=0.02),
        lambda p: torch.optim.Adam(p, LR, betas=(0.5, 0.9), eps=1e-4, weight_decay=0.02),
    ),
    (Optimizer("adamw", weight_decay=0.1), lambda p: torch.optim.AdamW(p, LR, weight_decay=0.1)),
]


def start(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in ((4, 3), (3,), ())]


def gradients(step: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in ((4, 3), (3,), ())]


def run(optimizer: Optimizer, dtype: torch.dtype = torch.float64, lr: float = LR) -> list[Tensor]:
    params = start(dtype)
    local = LocalOptimizer(optimizer, params)
    for step in range(STEPS):
        local.step(gradients(step, dtype), lr)
    return params


def run_torch(
    make: Callable[[list[Tensor]], torch.optim.Optimizer], dtype: torch.dtype = torch.float64, clip: float = 0.0
) -> list[Tensor]:
    params = [p.requires_grad_(True) for p in start(dtype)]
    optimizer = make(params)
    for step in range(STEPS):
        for p, gradient in zip(params, gradients(step, dtype), strict=True):
            p.grad = gradient
        if clip:
            torch.nn.utils.clip_grad_norm_(params, clip)
        optimizer.step()
    return [p.detach() for p in params]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_twenty_steps_agree_with_torch(ours: Optimizer, theirs: Any, dtype: torch.dtype, tolerance: float) -> None:
    for mine, reference in zip(run(ours, dtype), run_torch(theirs, dtype), strict=True):
        assert torch.allclose(mine, reference, rtol=0, atol=tolerance)


def test_single_precision_is_torch_bit_for_bit() -> None:
    pairs: list[tuple[Optimizer, Any]] = [
        (Optimizer("sgd", momentum=0.9), lambda p: torch.optim.SGD(p, LR, momentum=0.9, foreach=True)),
        (Optimizer("adam"), lambda p: torch.optim.Adam(p, LR, fused=True)),
        (Optimizer("adamw", weight_decay=0.1), lambda p: torch.optim.AdamW(p, LR, weight_decay=0.1, fused=True)),
    ]
    for ours, theirs in pairs:
        mine, reference = run(ours, torch.float32), run_torch(theirs, torch.float32)
        assert all(torch.equal(a, b) for a, b in zip(mine, reference, strict=True))


@pytest.mark.parametrize("clip", [0.5, 1e6])
def test_clipping_is_that_of_torch_over_the_whole_model(clip: float) -> None:
    mine = run(Optimizer("sgd", clip=clip))
    reference = run_torch(lambda p: torch.optim.SGD(p, LR), clip=clip)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(mine, reference, strict=True))


def test_clipping_leaves_the_given_gradients_alone() -> None:
    params, grads = start(torch.float32), gradients(0, torch.float32)
    before = [g.clone() for g in grads]
    LocalOptimizer(Optimizer("sgd", clip=0.1), params).step(grads, LR)
    assert all(torch.equal(a, b) for a, b in zip(grads, before, strict=True))


def test_trap_17_moments_kept_and_forgotten_give_their_own_values(flea_values: dict[str, Any]) -> None:
    values = flea_values["adam_two_steps"]
    expected = {"round": values["optimizer_kept"], "step": values["optimizer_recreated_each_step"]}
    for reset in ("round", "step"):
        params = [torch.tensor(values["p0"], dtype=torch.float64)]
        local = LocalOptimizer(Optimizer("adam", reset=reset), params)
        for gradient in values["grads"]:
            local.step([torch.tensor(gradient, dtype=torch.float64)], values["lr"])
        assert params[0].tolist() == pytest.approx(expected[reset], abs=1e-9)


def test_momentum_that_forgets_each_step_is_plain_descent() -> None:
    plain, forgetful = run(Optimizer("sgd")), run(Optimizer("sgd", momentum=0.9, reset="step"))
    assert all(torch.equal(a, b) for a, b in zip(plain, forgetful, strict=True))


def test_two_clients_share_no_memory() -> None:
    optimizer = Optimizer("adam")
    alone = run(optimizer)
    params, other = start(torch.float64), start(torch.float64)
    ours, theirs = LocalOptimizer(optimizer, params), LocalOptimizer(optimizer, other)
    for step in range(STEPS):
        ours.step(gradients(step, torch.float64), LR)
        theirs.step(gradients(step + 50, torch.float64), LR)
    assert all(torch.equal(a, b) for a, b in zip(params, alone, strict=True))


def test_a_model_without_parameters_is_no_error() -> None:
    for optimizer in (Optimizer("sgd"), Optimizer("adam"), Optimizer("adamw")):
        LocalOptimizer(optimizer, []).step([], LR)
