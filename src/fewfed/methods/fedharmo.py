"""FedHarmo (HarmoFL)."""

import math
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fewfed import tree
from fewfed.method import Batch, Context, Differentiate, Preset, Report
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts.asked import Asked
from fewfed.phase import EQUAL, Clock, Cohort, Combine, Phase, Role, Upload
from fewfed.settings import setting
from fewfed.tree import Tree

AMPLITUDE = "fedharmo.amplitude"
"""The buffer under which the shared average travels with the model that predicts."""


@dataclass(frozen=True)
class FedHarmo(FedAvg):
    """Jiang et al., AAAI 2022 (HarmoFL): inputs share low-frequency amplitudes, and weights are perturbed as in SAM.

    (i) Before round 1 every client uploads a running average of the Fourier amplitudes of its inputs; their mean, in
    which every client counts alike, then replaces the low-frequency amplitudes of every input, in training and in
    testing (in the authors' code this is a layer of the network), phases stay. (ii) The gradient is taken at
    w + alpha·g/‖g‖ and applied at w; BatchNorm counts the first pass only. As coded, the window is 0: only the mean
    brightness is replaced. Deviation: the average is made in a phase of its own, not during round 1.
    """

    name = "fedharmo"
    family = "local objective"
    paper = "Jiang et al., HarmoFL: Harmonizing Local and Global Drifts in Federated Learning, AAAI 2022"
    presets = MappingProxyType(
        {
            "released": Preset(
                training={
                    "optimizer": "adam",
                    "lr": 1e-4,
                    "lr_decay": 0.0,
                    "weight_decay": 1e-4,
                    "weighting": "uniform",
                    "reset": "never",
                },
                note="prostate settings; one Adam a client for the whole run",
            )
        }
    )
    neutral = MappingProxyType({"alpha": 0.0, "normalise": False})
    another_aim = "it gives the inputs of all clients the same amplitudes, and with them the same curvature"

    alpha: float = setting(0.05, "length of the weight perturbation; authors 0.05; 0 = none", ge=0)
    normalise: bool = setting(True, "replace low-frequency amplitudes by the shared average")
    window: float = setting(0.0, "replaced frequencies, as a part of the shorter side; as coded 0", ge=0, le=0.5)
    momentum: float = setting(0.1, "weight of each new input in the running average; 0 = plain mean", ge=0, le=1)

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        amplitude = {"amplitude": Upload(Combine.MEAN, Role.STATISTICS)}
        setup = Phase("setup", Amplitudes(self), uploads=amplitude, cohort=Cohort.ALL, weight=EQUAL)
        return (*([setup] if clock.first and self.normalise else ()), Phase("train", self, clock.epochs))

    def broadcast(self, server: Tree) -> Tree:
        return {name: server[name] for name in ("model", "amplitude") if name in server}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        if self.normalise:
            batch = batch._replace(x=with_amplitude(batch.x, ctx.shared["amplitude"], self.window))
        return super().loss(work, ctx, batch)

    def gradient(self, differentiate: Differentiate, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        slope, terms = differentiate(work)
        if not self.alpha:
            return slope, terms
        step = self.alpha / (tree.dot(slope, slope).sqrt() + 1e-12)
        moved = tree.map(lambda value, direction: value + step * direction, work["params"], slope)
        return differentiate({**work, "params": moved, "buffers": tree.clone(work["buffers"])})[0], terms

    def predictor(self, server: Tree, state: Tree) -> Tree:
        model = super().predictor(server, state)
        if "amplitude" not in server:
            return model
        return {**model, "buffers": {**model["buffers"], AMPLITUDE: server["amplitude"]}}

    def presented(self, model: Tree, x: Tensor) -> Tensor:
        amplitude = model["buffers"].get(AMPLITUDE)
        return x if amplitude is None else with_amplitude(x, amplitude, self.window)


class Amplitudes(Asked[FedHarmo]):
    """Before round 1 every client uploads a running average of the Fourier amplitudes of its inputs."""

    def end(self, work: Tree, ctx: Context) -> Report:
        amplitude, momentum = torch.fft.fftn(ctx.data.x, dim=_axes(ctx.data.x)).abs(), self.method.momentum
        if momentum:
            age = torch.arange(ctx.size - 1, -1, -1, dtype=amplitude.dtype, device=amplitude.device)
            part = momentum * (1 - momentum) ** age
            part[0] = (1 - momentum) ** (ctx.size - 1)
            mean = torch.tensordot(part, amplitude, 1)
        else:
            mean = amplitude.mean(0)
        return Report({"amplitude": mean}, {}, 1.0)


def with_amplitude(x: Tensor, amplitude: Tensor, window: float) -> Tensor:
    """x with the amplitudes of its frequencies up to `window` of the shorter side replaced, phases kept."""
    axes = _axes(x)
    reach = math.floor(window * min(x.shape[axis] for axis in axes))
    low = torch.ones((), dtype=torch.bool, device=x.device)
    for axis in axes:
        size = x.shape[axis]
        frequency = torch.arange(size, device=x.device)
        near = torch.minimum(frequency, size - frequency) <= reach
        low = low & near.reshape([size if other == axis else 1 for other in range(1, x.dim())])
    spectrum = torch.fft.fftn(x, dim=axes)
    size_of = spectrum.abs()
    direction = torch.where(size_of > 0, spectrum / torch.where(size_of > 0, size_of, 1.0), torch.ones_like(spectrum))
    result: Tensor = torch.fft.ifftn(torch.where(low, amplitude * direction, spectrum), dim=axes).real
    return result


def _axes(x: Tensor) -> tuple[int, ...]:
    """Positions of (rows, channels, positions...), or the one axis of (rows, values)."""
    return tuple(range(2, x.dim())) if x.dim() > 2 else (1,)
