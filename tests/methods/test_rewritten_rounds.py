"""Whole rounds of methods with networks, heads or statistics of their own, written anew from the papers.

First weights of auxiliary networks are taken from the method, since they are random; nothing else is.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from rewritten import CLASSES, WIDTH, Played, State, Turn, body, descend, fresh, gap, labels, loaded, mean, state_of
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, kl_div, mse_loss

from fewfed.networks.projector import projector_weights
from fewfed.plan import Random
from support import EXACT, states


def layer(inputs: int, outputs: int, **more: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(linear=nn.Linear(inputs, outputs), **more, relu=nn.ReLU()))


class Autoencoder(nn.Module):
    """FLAIR's, of features and one-hot labels."""

    hidden, code = 64, 16

    def __init__(self) -> None:
        super().__init__()
        for name, inputs in (("encode1", WIDTH), ("encode2", 0), ("decode1", self.code), ("decode2", 0)):
            width = inputs + CLASSES if inputs else self.hidden
            self.add_module(name, layer(width, self.hidden, norm=nn.BatchNorm1d(self.hidden)))
        self.latent = nn.Linear(self.hidden, 2 * self.code)
        self.output = nn.Linear(self.hidden, WIDTH)
        self.double()

    def encoded(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        made: Any = self
        found = self.latent(made.encode2(made.encode1(torch.cat([f, labels(y)], 1))))
        return found[:, : self.code], found[:, self.code :]

    def decoded(self, z: Tensor, y: Tensor) -> Tensor:
        made: Any = self
        found: Tensor = self.output(made.decode2(made.decode1(torch.cat([z, labels(y)], 1))))
        return found


class Flair:
    """Clients' classifiers and the common autoencoder, as FLAIR's Algorithms 1 and 2 have them."""

    def __init__(self, played: Played) -> None:
        self.played = played
        first = played.job.method.server_init(played.job.setup)["cvae"]
        self.common: State = {**first["params"], **first["buffers"]}
        self.own = [state_of(fresh()) for _ in range(len(played))]

    def reconstruct(self, client: int, round: int, phase: str, epochs: int) -> State:
        """The autoencoder after training on features of a client's classifier, MSE + 2/d · KL (Eq. 7)."""
        (x, y), random = self.played.rows(client), self.played.random(round, client, phase)
        model, vae = loaded(self.own[client], train=False), loaded(self.common, into=Autoencoder())
        optimizer = torch.optim.Adam(vae.parameters(), 1e-3)
        for rows in self.played.batches(round, client, phase, epochs):
            f, noise = body(model, x[rows]).detach(), random.normal(len(rows), Autoencoder.code)
            mu, log_variance = vae.encoded(f, y[rows])
            again = vae.decoded(mu + (0.5 * log_variance).exp() * noise, y[rows])
            kl = 0.5 * (mu.square() + log_variance.exp() - log_variance - 1).sum(1).mean()
            descend(optimizer, mse_loss(again, f) + 2 / WIDTH * kl)
        return state_of(vae)

    def classify(self, client: int, round: int) -> State:
        """The classifier after its epochs on Eq. 2, with weights that rise over the first ten rounds."""
        (x, y), random = self.played.rows(client), self.played.random(round, client)
        model, vae = loaded(self.own[client]), loaded(self.common, train=False, into=Autoencoder())
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for rows in self.played.batches(round, client):
            own, other = random.normal(len(rows), Autoencoder.code), random.normal(len(rows), Autoencoder.code)
            wrong = (y[rows] + 1 + random.integers(CLASSES - 1, len(rows))) % CLASSES
            alike, unlike = vae.decoded(own, y[rows]).detach(), vae.decoded(other, wrong).detach()
            f = body(model, x[rows])
            drawn = mse_loss(f, alike) - 0.1 * mse_loss(f, unlike) + cross_entropy(model.head(unlike), wrong)
            descend(optimizer, cross_entropy(model.head(f), y[rows]) + (round + 1) / 10 * drawn)
        return state_of(model)


def test_flair_with_its_authors_training() -> None:
    played = Played("flair:authors", training={"epochs": 2, "batch": 8})
    flair = Flair(played)
    everybody = range(len(played))
    flair.common = mean([flair.reconstruct(client, 0, "init", 5) for client in everybody], [1.0] * len(played))
    for round in range(3):
        clients = played.cohort(round)
        for client in clients:
            flair.own[client] = flair.classify(client, round)
        flair.common = mean([flair.reconstruct(client, round, "cvae", 2) for client in clients], [1.0] * len(clients))
        assert gap(played.server(round)["cvae"], flair.common) < EXACT
    for client, kept in states(played.recorder.views[-1].executor, len(played)).items():
        assert gap(kept["model"], flair.own[client]) < EXACT


class Statistics:
    """FedFA's of one stage: momentum averages, carried as the clients' mean, and the gammas made of them."""

    def __init__(self) -> None:
        self.average = torch.tensor([[0.0], [1.0]]).repeat(1, 4).double()
        self.gamma = torch.ones(2, 4).double()
        self.clients: list[Tensor] = []

    def after(self, _: int, __: State) -> None:
        found = torch.stack(self.clients)
        self.clients, self.average, shared = [], found.mean(0), found.var(0, correction=0)
        ratio = 1 / (1 + 1 / shared)
        self.gamma = 4 * ratio / ratio.sum(1, keepdim=True)


@pytest.mark.parametrize("inner", ["fedavg", "fedsam"])
def test_fedfa_augments_after_a_stage_and_weighs_clients_equally(inner: str) -> None:
    """With two passes a step, both see the same noise, and the first one counts."""
    played = Played(f"fedfa({inner})", training={"optimizer": "sgd", "lr": 0.05, "weighting": "uniform"})
    known = Statistics()

    def local(turn: Turn) -> State:
        (x, y), random, model, own = turn.rows, turn.random, loaded(turn.state), known.average
        params, rate = list(model.parameters()), turn.played.job.training.lr_at(turn.round)
        for rows in turn.batches():
            on, noise, seen = float(random.uniform(1)) < 0.5, random.normal(2, len(rows), 4), list[Tensor]()

            def slope(x: Tensor = x[rows], y: Tensor = y[rows], on: bool = on, noise: Tensor = noise) -> Any:
                f = model.first(x)
                if on:
                    mu, sigma = f.mean((2, 3)), (f.var((2, 3), correction=0) + 1e-6).sqrt()
                    moments = torch.stack([mu, sigma])
                    seen.append(moments.detach().mean(1))  # noqa: B023
                    spread = (known.gamma + 1) * (moments.var(1, correction=0) + 1e-6)
                    new = (moments + noise * spread.sqrt()[:, None])[..., None, None]
                    f = new[1] * (f - mu[..., None, None]) / sigma[..., None, None] + new[0]
                return torch.autograd.grad(cross_entropy(model.head(model.second(f)), y), params)

            found = slope() if inner == "fedavg" else sharp(model, slope)
            own = 0.99 * own + 0.01 * seen[0] if on else own
            with torch.no_grad():
                for param, direction in zip(params, found, strict=True):
                    param.sub_(rate * direction)
        known.clients.append(own)
        return state_of(model)

    played.follow(local, known.after)
    for number, name in enumerate(("mean", "deviation")):
        sent = played.server(2)["own"]["gamma"]["first"][name]
        assert torch.allclose(sent, known.gamma[number], rtol=0, atol=EXACT)


def sharp(model: nn.Module, slope: Any) -> Any:
    """The gradient 0.05 uphill; nothing else of that pass stays."""
    params, uphill = list(model.parameters()), slope()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    length = torch.stack([part.square().sum() for part in uphill]).sum().sqrt()
    with torch.no_grad():
        for param, part in zip(params, uphill, strict=True):
            param.add_(0.05 * part / length)
    found = slope()
    model.load_state_dict(before)
    return found


@pytest.mark.parametrize("spec", ["fedbr", "fedbr:official"])
def test_fedbr_has_the_projector_of_the_port_or_of_its_authors(spec: str) -> None:
    played = Played(spec)
    widths, lam = ((256, 256, 512), 0.8) if spec == "fedbr" else ((2 * WIDTH, 2 * WIDTH, WIDTH), 1.0)
    owners = played.plan.fixed(0, "owners of pseudo-samples").integers(len(played), 32)
    made = []
    for client, asked in enumerate(torch.bincount(owners, minlength=len(played)).tolist()):
        (x, y), random = played.rows(client), played.plan.fixed(client, "rows of pseudo-samples")
        made += [x[random.choice(len(y), 10, replace=False)].mean(0) for _ in range(asked if len(y) >= 10 else 0)]
    pseudo = torch.stack(made)

    def local(turn: Turn) -> State:
        (x, y), random, model = turn.rows, turn.random, loaded(turn.state)
        received, head = loaded(turn.state, train=False), projector(turn, widths)
        adam = spec == "fedbr"
        kind: Any = torch.optim.Adam if adam else torch.optim.SGD
        rate = turn.played.job.training.lr_at(turn.round)
        optimizers = kind(model.parameters(), rate), kind(head.parameters(), rate)
        for rows in turn.batches():
            theirs, partner = random.cycle(len(pseudo), len(rows)), random.permutation(len(rows))
            mixed = (pseudo[theirs] + x[rows][partner]) / 2
            target = (torch.full((len(rows), CLASSES), 0.1).double() + labels(y[rows][partner])) / 2
            z, z_mixed = body(model, x[rows]), body(model, mixed)
            z_received = body(received, mixed).detach()
            opposed = closeness(head(z_mixed.detach()), head(z_received), head(z.detach()))
            slope = torch.autograd.grad(opposed, list(head.parameters()))
            debiased = -closeness(head(z_mixed), head(z_received), head(z))
            unlabelled = -(target * model.head(z_mixed).log_softmax(1)).sum(1).mean()
            descend(optimizers[0], cross_entropy(model.head(z), y[rows]) + 0.5 * debiased + lam * unlabelled)
            for param, part in zip(head.parameters(), slope, strict=True):
                param.grad = part
            optimizers[1].step()
        return state_of(model)

    played.follow(local)


def projector(turn: Turn, widths: tuple[int, ...]) -> nn.Sequential:
    random = Random(turn.played.plan.seed, "method", turn.round, "fedbr-projector", turn.client, dtype=torch.float64)
    first = projector_weights("fedbr-projector", WIDTH, widths, random)
    linear = [nn.Linear(*pair).double() for pair in zip((WIDTH, *widths), widths, strict=False)]
    for number, each in enumerate(linear, 1):
        names = ("weight", "bias")
        each.load_state_dict({name: first[f"fedbr-projector.linear{number}.{name}"] for name in names})
    return nn.Sequential(linear[0], nn.ReLU(), linear[1], nn.ReLU(), linear[2])


def closeness(anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    near, far = (2 * cosine_similarity(anchor, other) for other in (positive, negative))
    return (near.exp() / (near.exp() + far.exp())).log().mean()


def test_flute_moves_heads_by_the_servers_plain_step() -> None:
    training = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.5, "epochs": 3}
    played = Played("flute", {"server_lr": 0.5}, rounds=4, training=training)
    start = state_of(fresh())
    common = {name: value for name, value in start.items() if not name.startswith("head")}
    heads = [{name: start[name] for name in ("head.weight", "head.bias")} for _ in range(len(played))]

    def simplex(weight: Tensor, present: Tensor) -> Tensor:
        gram, one = weight @ weight.T, torch.eye(CLASSES).double()
        wanted = (one - torch.full_like(one, 1 / CLASSES)) / (CLASSES - 1) ** 0.5
        return (gram / gram.norm() - wanted * torch.outer(present, present)).norm()

    for round in range(4):
        clients, found, weights = played.cohort(round), [], []
        for client in clients:
            x, y = played.rows(client)
            present = (torch.bincount(y, minlength=CLASSES) > 0).double()
            model, rate = loaded({**common, **heads[client]}, train=False), played.job.training.lr_at(round)
            for phase, epochs in (("head", 2), ("joint", 1)):
                joint = phase == "joint"
                model.train(joint)
                trained = model.parameters() if joint else model.head.parameters()
                optimizer = torch.optim.SGD(trained, rate, momentum=0.5)
                for rows in played.batches(round, client, phase, epochs):
                    f = body(model, x[rows])
                    f = f if joint else f.detach()
                    loss = cross_entropy(model.head(f), y[rows]) + 0.25 * simplex(model.head.weight, present)
                    loss = loss + 0.0025 * model.head.weight.square().sum()
                    descend(optimizer, loss + (0.0005 * f.square().sum() if joint else 0))
            new = state_of(model)
            weight = new["head.weight"].clone().requires_grad_()
            (slope,) = torch.autograd.grad(simplex(weight, present), weight)
            heads[client] = {"head.weight": weight.detach() - 0.5 / len(clients) * slope, "head.bias": new["head.bias"]}
            found.append({name: new[name] for name in common})
            weights.append(float(len(y)))
        common = mean(found, weights)
        assert gap(played.server(round)["representation"], common) < EXACT
        for client in clients:
            sent = played.server(round)["heads"][str(client)]
            assert gap({"params": sent, "buffers": {}}, heads[client]) < EXACT


class Generator(nn.Module):
    """Of penultimate features, from 64 numbers and a label."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layer(64 + CLASSES, 512, norm=nn.BatchNorm1d(512))
        self.out = nn.Sequential(OrderedDict(linear=nn.Linear(512, WIDTH)))
        self.double()

    def forward(self, noise: Tensor, y: Tensor) -> Tensor:
        found: Tensor = self.out(self.hidden(torch.cat([noise, labels(y)], 1)))
        return found


def test_fedgen_of_features_has_one_adam_for_its_generator() -> None:
    played = Played("fedgen-latent", {"steps": 6, "batch": 16})
    method: Any = played.job.method
    first = method.generator(played.job.setup).model()
    generator = loaded({**first["params"], **first["buffers"]}, into=Generator())
    optimizer = torch.optim.Adam(generator.parameters(), 3e-4, weight_decay=1e-2)
    seen = torch.zeros(CLASSES, dtype=torch.long)
    heads: dict[int, State] = {}

    def local(turn: Turn) -> State:
        (x, y), random, model, fading = turn.rows, turn.random, loaded(turn.state), 10 * 0.98**turn.round
        own, generate = turn.adam(model), generator.eval()
        for rows in turn.batches():
            output = model(x[rows])
            loss = cross_entropy(output, y[rows])
            if turn.round:
                known = seen.nonzero().flatten()
                noises = random.normal(len(rows), 64), random.normal(len(rows), 64)
                other = known[random.integers(len(known), len(rows))]
                target = model.head(generate(noises[0], y[rows]).detach()).softmax(1).detach()
                loss = loss + fading * cross_entropy(model.head(generate(noises[1], other).detach()), other)
                loss = loss + fading * kl_div(output.log_softmax(1), target, reduction="batchmean")
            descend(own, loss)
        heads[turn.client] = state_of(model.head)
        return state_of(model)

    def after(round: int, _: State) -> None:
        clients, random = played.cohort(round), played.random(round, -1, "generate")
        counts = torch.stack([torch.bincount(played.rows(client)[1], minlength=CLASSES) for client in clients])
        seen.add_(counts.sum(0))
        present = counts.sum(0).nonzero().flatten()
        order = present[torch.arange(96) % len(present)]
        generator.train()
        optimizer.param_groups[0]["lr"] = 3e-4 * 0.98**round
        plan = type(played.plan)(played.plan.seed, 16)
        for rows in plan.batches(round, "generate", -1, 96, 1):
            noise, y = random.normal(len(rows), 64), order[rows]
            made, wrong = generator(noise, y), torch.zeros(()).double()
            for client, own in zip(clients, counts, strict=True):
                head = nn.Linear(WIDTH, CLASSES).double()
                head.load_state_dict(heads[client])
                wrong = wrong + own[y] / counts.sum(0)[y] * cross_entropy(head(made), y, reduction="none")
            apart = torch.cdist(noise, noise) / 8 * torch.cdist(made, made) / WIDTH**0.5
            descend(optimizer, wrong.mean() + (-apart.mean()).exp())
        assert gap(played.server(round)["generator"], state_of(generator)) < 1e-7

    # Distances come from products there and from differences here, and Adam enlarges what that rounds.
    played.follow(local, after, within=1e-7)
