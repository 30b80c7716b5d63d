"""FedAvg in Flower's simulation: a Ray actor of one CPU a core."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peers import contract, workload
from peers.adapters import flower_client


class Counting(FedAvg):
    """FedAvg that adds up the steps its clients report."""

    steps = 0

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        received = list(replies)
        self.steps += sum(int(reply.content["metrics"]["steps"]) for reply in received if not reply.has_error())
        return super().aggregate_train(server_round, received)


def main() -> None:
    asked = contract.order()
    setting = asked.setting
    clock = contract.Clock()
    strategy = Counting(
        # A hair more than the fraction: Flower rounds the product down.
        fraction_train=(setting.cohort + 0.5) / setting.clients,
        fraction_evaluate=0.0,
        min_train_nodes=setting.cohort,
        min_available_nodes=setting.clients,
    )
    first = workload.module(setting).state_dict()
    server = ServerApp()

    def after_round(number: int, _: ArrayRecord) -> None:
        """Called where Flower would evaluate: once before the first round, then at the end of each."""
        if number > 0:
            clock.tick()

    @server.main()
    def rounds(grid: Grid, context: Context) -> None:
        result = strategy.start(
            grid,
            ArrayRecord(first),
            num_rounds=asked.rounds,
            train_config=ConfigRecord({"setting": setting.name}),
            evaluate_fn=after_round,
        )
        last = result.arrays.to_torch_state_dict()
        contract.hand_back(asked, clock, strategy.steps, asked.processes, first, last)

    run_simulation(
        server,
        flower_client.app,
        num_supernodes=setting.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": asked.processes, "num_gpus": 0, "log_to_driver": False},
        },
    )


if __name__ == "__main__":
    main()
