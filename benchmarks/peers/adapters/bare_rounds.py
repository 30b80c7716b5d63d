"""The yardstick: `benchmarks/bare.py` as a command of its own."""

from __future__ import annotations

from bare import BareLoop
from peers import contract, workload

from fewfed.plan import Plan


def main() -> None:
    asked = contract.order()
    setting = asked.setting
    clock, steps = contract.Clock(), contract.StepCounter().watch_all()
    loop = BareLoop(workload.work(setting), asked.processes)
    first = {name: value.clone() for name, value in loop.state.items()}
    plan = Plan(0, setting.batch)
    for number in range(asked.rounds):
        loop.round(plan.cohort(number, setting.clients, setting.cohort), number)
        clock.tick()
    loop.close()
    contract.hand_back(asked, clock, steps.total, asked.processes, first, loop.state)


if __name__ == "__main__":
    main()
