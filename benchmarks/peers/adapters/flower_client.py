"""The client side of the Flower adapter. A module of its own, so that actors import it once and keep its model."""

from __future__ import annotations

import functools

import torch
from bare import Work, train_client
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from peers import workload
from peers.settings import SETTINGS
from torch import nn

app = ClientApp()


@functools.cache
def _prepared(name: str) -> tuple[Work, nn.Module]:
    torch.set_num_threads(1)
    work = workload.work(SETTINGS[name])
    return work, work.make()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One client's turn: what Flower leaves to its user, here the bare loop's own function."""
    config = message.content["config"]
    work, model = _prepared(str(config["setting"]))
    client = int(context.node_config["partition-id"])
    start = message.content["arrays"].to_torch_state_dict()
    steps = train_client(work, model, start, client, int(config["server-round"]) + client)
    rows = SETTINGS[work.name].rows
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": rows, "steps": steps}),
    }
    return Message(content=RecordDict(content), reply_to=message)
