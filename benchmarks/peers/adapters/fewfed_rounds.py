"""FedAvg in fewfed with one worker a core, without evaluation."""

from __future__ import annotations

from peers import contract, workload

from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.job import Job
from fewfed.engine.loop import RoundView, run_rounds
from fewfed.engine.store import ClientStore
from fewfed.executors import Surroundings, executor_for
from fewfed.experiment import Experiment
from fewfed.methods.fedavg import FedAvg
from fewfed.plan import Plan
from fewfed.task import Classification
from fewfed.training import Training


class Watch:
    """Counts the steps the clients report and notes the end of every round."""

    def __init__(self) -> None:
        self.clock = contract.Clock()
        self.steps = 0

    def after_round(self, view: RoundView) -> None:
        self.steps += sum(phase.steps for phase in view.phases)
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
    experiment = Experiment(executor="workers", processes=asked.processes)  # All else as everybody gets it.
    executor = executor_for(experiment, job, setting.cohort, Surroundings())
    try:
        server = run_rounds(job, executor, [watch], rounds=asked.rounds, cohort=setting.cohort, store=ClientStore())
    finally:
        executor.close()
    contract.hand_back(
        asked, watch.clock, watch.steps, asked.processes, net.model()["params"], server["model"]["params"]
    )


if __name__ == "__main__":
    main()
