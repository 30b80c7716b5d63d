"""FedAvg in fewfed with one worker a core, without evaluation."""

from __future__ import annotations

from peers import contract, workload

from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.loop import RoundView, run_rounds
from fewfed.methods.fedavg import FedAvg
from fewfed.plan import Plan
from fewfed.runs.executors import executor_for
from fewfed.runs.experiment import resolve
from fewfed.tasks.classification import Classification
from fewfed.training import Training


class Watch:
    """Counts the steps the clients report and notes the end of every round."""

    def __init__(self) -> None:
        self.clock = contract.Clock()
        self.steps = 0

    def after_round(self, view: RoundView) -> None:
        self.steps += sum(phase.steps for phase in view.record.phases.values())
        self.clock.tick()


def main() -> None:
    asked = contract.order()
    setting = asked.setting
    make = workload.client_maker(setting)
    federation = GeneratedFederation(
        setting.clients, lambda client: Examples(*make(client)), Examples(*make(setting.clients)), setting.classes
    )
    training = Training(
        optimizer=setting.optimizer, lr=setting.lr, lr_decay=0.0, epochs=setting.epochs, batch=setting.batch
    )
    net = workload.network(setting)
    job = Job(FedAvg(), net, Classification(setting.classes), federation, training, Plan(0, setting.batch))
    watch = Watch()
    # All else as everybody gets it.
    resolved = resolve("fedavg", {"executor": "workers", "workers.processes": asked.processes})
    executor = executor_for(resolved, job, SimulatedHomes(job), setting.cohort)
    try:
        server = run_rounds(job, executor, [watch], rounds=asked.rounds, cohort=setting.cohort)
    finally:
        executor.close()
    contract.hand_back(
        asked, watch.clock, watch.steps, asked.processes, net.model()["params"], server["model"]["params"]
    )


if __name__ == "__main__":
    main()
