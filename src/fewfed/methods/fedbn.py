"""FedBN."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fewfed import tree
from fewfed.errors import ConfigError
from fewfed.method import Context, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.network import Network
from fewfed.phase import Clock, Phase
from fewfed.torch_private import BatchNorm
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedBN(FedAvg):
    """Li et al., ICLR 2021: FedAvg of everything but the BatchNorm layers, which stay at each client.

    Scale, shift and running statistics of every BatchNorm layer, found by module type, never leave their client; the
    server holds none, so each client is evaluated with its own, and one that never took part with the initial ones.
    (The authors' code selects by the letters "bn" in a name and misses layers called otherwise.)
    """

    name = "fedbn"
    family = "personal"
    paper = "Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021"
    personal_model = True
    neutral = None

    def check(self, setup: Setup) -> None:
        if not batch_norm_names(setup.net):
            raise ConfigError(
                f"method 'fedbn' keeps BatchNorm layers at the clients but network '{setup.net.name}' has none: "
                "use a network with BatchNorm, or fedavg"
            )

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return (Phase("train", self, clock.epochs, keeps_state=True),)

    def server_init(self, setup: Setup) -> Tree:
        return {"model": _part(setup.net.model(), setup.net, norm=False)}

    def client_init(self, setup: Setup) -> Tree:
        return {"norm": _part(setup.net.model(), setup.net, norm=True)}

    def begin(self, ctx: Context) -> Tree:
        return tree.clone(self.predictor(ctx.shared, ctx.state))

    def end(self, work: Tree, ctx: Context) -> Report:
        common, norm = (_part(work, ctx.net, norm=own) for own in (False, True))
        return Report({"model": common}, {"norm": norm}, ctx.weight)

    def predictor(self, server: Tree, state: Tree) -> Tree:
        return {kind: {**server["model"][kind], **state["norm"][kind]} for kind in ("params", "buffers")}


def batch_norm_names(net: Network) -> frozenset[str]:
    """Names in a model of every BatchNorm layer's parameters and buffers."""
    return frozenset(
        net.key(stage, f"{path}.{name}" if path else name)
        for stage in net.stages
        for path, module in net.module(stage).named_modules()
        if isinstance(module, BatchNorm)
        for owned in (module.named_parameters(recurse=False), module.named_buffers(recurse=False))
        for name, _ in owned
    )


def _part(model: Mapping[str, Any], net: Network, *, norm: bool) -> Tree:
    names = batch_norm_names(net)
    return {
        kind: {name: leaf for name, leaf in model[kind].items() if (name in names) == norm}
        for kind in ("params", "buffers")
    }
