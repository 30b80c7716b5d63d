"""Gradient: the rows behind a single step, from what the step did to the model."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from fewfed.phase import Role
from fewfed.privacy.attacks import intervals
from fewfed.privacy.attacks.case import Case, Exchanged
from fewfed.privacy.attacks.finding import Finding, Measure, Threat
from fewfed.privacy.attacks.gradient_matching import matched, read_off
from fewfed.privacy.attacks.labels import usual_probability
from fewfed.privacy.attacks.one_step import OneStep, batch_of, head_bias, label_counts, one_steps
from fewfed.privacy.attacks.similarity import psnr, squared_errors, ssim

MOST_ROWS = 8
"""Of a batch: of larger ones hardly anything is found, and nobody could say which row is which."""
_MOST_CLIENTS = 4
_STEPS = 1000
_RESTARTS = 2


class Gradient:
    """Read off exactly where the first layer allows it, else by matching gradients."""

    name = "gradient"
    title = "the rows behind a single step"

    def why_not(self, case: Case) -> str:
        if not case.job.task.classes:
            return "labels of this task are no classes: they are found before the rows"
        found, why = _found(case)
        return "" if found else why

    def findings(self, case: Case, tell: Callable[[str], None]) -> list[Finding]:
        found, _ = _found(case)
        if found is None:
            return []
        exchanged, steps = found
        some = steps[: max(1, round(_MOST_CLIENTS * case.effort))]
        truth = [batch_of(case, exchanged, step.client).x.cpu() for step in some]
        variants: dict[str, list[Tensor]] = {}
        exact = [read_off(step, case.job.federation.shape) for step in some]
        if all(each is not None for each in exact):
            variants["read off the first layer"] = [each for each in exact if each is not None]
        matching = []
        for number, step in enumerate(some):
            tell(f"client {number + 1} of {len(some)}, {step.rows} rows")
            matching.append(_matched(case, step))
        variants["matched to the signs of the gradient" if some[0].is_signs else "matched to the gradient"] = matching
        return [
            _finding(case, exchanged, variant, some[0].rows, rebuilt, truth) for variant, rebuilt in variants.items()
        ]


def _found(case: Case) -> tuple[tuple[Exchanged, list[OneStep]] | None, str]:
    """The first exchange with steps that can be inverted, when models know least; else why there is none."""
    most = taken = 0
    for exchanged in case.exchanges():
        steps = one_steps(case, exchanged)
        usable = [step for step in steps if step.rows <= MOST_ROWS and head_bias(step.gradient, case.job.task.classes)]
        if usable:
            return (exchanged, usable), ""
        most = max([most, *(step.rows for step in steps)])
        taken = max([taken, *_steps(case, exchanged)])
    if most > MOST_ROWS:
        return None, f"single steps were on batches of up to {most} rows: only up to {MOST_ROWS} are inverted"
    if most:
        return None, "the last layer has no bias, or it was not sent: labels cannot be found"
    if taken > 1:
        return None, f"clients took up to {taken} steps before they sent anything: only single steps are inverted"
    return None, "no client sent a model, or a change of one, after a single step"


def _steps(case: Case, exchanged: Exchanged) -> list[int]:
    """How many each client took that handed over a model, or a change of one."""
    uploads = case.phase(exchanged.round, exchanged.phase).uploads.values()
    sent = any(upload.role in (Role.MODEL, Role.UPDATE) for upload in uploads)
    return [packet.steps for packet in exchanged.packets.values()] if sent else []


def _matched(case: Case, step: OneStep) -> Tensor:
    bias = step.gradient[head_bias(step.gradient, case.job.task.classes)]
    if step.is_signs and step.rows > 1:  # Only which classes there are is known of signs.
        order = bias.argsort()
        labels = order[: max(1, int((bias < 0).sum()))].repeat(step.rows)[: step.rows]
    else:
        counts = label_counts(bias, usual_probability(case, step.start, step.rows), step.rows)
        labels = torch.repeat_interleave(torch.arange(len(counts)), counts)
    return matched(
        case.job, step, labels, case.held.x, steps=max(20, int(_STEPS * case.effort)), restarts=_RESTARTS,
        seed=case.seed, device=case.device,
    )  # fmt: skip


def in_order(rebuilt: Tensor, truth: Tensor) -> Tensor:
    """Reconstructions in the order in which they are nearest to the rows of a batch in all."""
    errors = torch.cdist(rebuilt.flatten(1).double(), truth.flatten(1).double()).square()
    orders = torch.tensor(list(itertools.permutations(range(len(truth)))))
    costs = errors[orders, torch.arange(len(truth))].sum(1)
    return rebuilt[orders[int(costs.argmin())]]


def _finding(
    case: Case, exchanged: Exchanged, variant: str, rows: int, rebuilt: list[Tensor], truth: list[Tensor]
) -> Finding:
    true = torch.cat(truth)
    ours = torch.cat([in_order(one, other) for one, other in zip(rebuilt, truth, strict=True)])
    held = case.held.x.cpu()
    mean = held.mean(0, keepdim=True).expand_as(true)
    peak = float(held.max() - held.min())
    quality = psnr(squared_errors(ours, true), peak)
    chance = float(psnr(squared_errors(mean, true), peak).mean())
    measures = [
        Measure("PSNR in dB", float(quality.mean()), *intervals.of_mean(quality), len(true), chance),
    ]
    if true.dim() == 4 and min(true.shape[2:]) >= 2:
        alike = ssim(ours.to(true.dtype), true, peak)
        blind = float(ssim(mean, true, peak).mean())
        measures.append(
            Measure("SSIM", float(alike.mean()), *intervals.of_mean(alike, least=-1.0, most=1.0), len(true), blind)
        )
    phase = case.phase(exchanged.round, exchanged.phase)
    raw = all(upload.combine.seen_raw for upload in phase.uploads.values())
    threat = Threat(
        "the server" if raw else "the server, without secure aggregation",
        "the model a client was sent and the one it handed over after one step",
        "the network, the training settings, how many rows the batch has, rows of the same kind",
    )
    note = f"batches of {rows} row{'s' * (rows > 1)}, reconstructions in the order that fits best; chance: the mean row"
    return Finding("gradient", variant, threat, exchanged.round, exchanged.phase, tuple(measures), note)
