"""The attacker without the model: it trains an encoder of its own whose output looks like what was sent.

As FORA and SDAR do for split learning, in a simple form: the encoder is trained until the distribution of its output on
the attacker's rows cannot be told from that of the rows sent (means, deviations, and a kernel distance, together with
the labels where they are sent), a decoder learns to undo that encoder, and is then used on what was sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.privacy.attacks import decoders
from fewfed.privacy.attacks.attack import Tell
from fewfed.privacy.attacks.finding import Threat
from fewfed.privacy.attacks.pairs import Known, Pairs, flat, pairs_wanted
from fewfed.privacy.attacks.rebuilders import refined
from fewfed.privacy.fitting import Rebuilding, answers, fit

_STEPS_ON_HOST, _STEPS_ON_GPU = 250, 4000
_BATCH = 96
_LEAST = 20

THREAT = Threat(
    "somebody who reads what sites send but not the model: who listens, or a later owner of the rows",
    "the rows that sites sent, one by one, with their labels where these are sent",
    "rows of the same kind that nobody trained on; neither the model nor the method",
)


@dataclass(frozen=True)
class BySubstitute:
    """A substitute encoder, then a deep decoder for it."""

    name: str = "substitute"
    what: str = "an encoder trained to give out what looks like the rows sent, without the model, and a decoder for it"
    threat: Threat = THREAT
    has_pairs: bool = False

    def rebuild(self, known: Known, tell: Tell) -> Tensor | str:
        if len(known.victims) < _LEAST:
            return f"{len(known.victims)} rows were recorded: a distribution needs at least {_LEAST}"
        device, seed = known.device, known.case.seed
        own, labels = flat(known.rows.x, device), known.rows.y.to(device)
        size = known.victims.std(correction=0).clamp(min=1e-12)
        wanted = known.victims / size
        like = None if known.labels is None or known.labels.dim() > 1 or known.labels.is_floating_point() else labels
        random = torch.Generator().manual_seed(seed)
        steps = int(known.case.effort * (_STEPS_ON_GPU if device.type == "cuda" else _STEPS_ON_HOST))
        picks = _paired(known.labels if like is not None else None, like, len(wanted), len(own), random).to(device)
        positive = bool((known.victims >= 0).all())
        net = decoders.network("substitute", lambda: decoders.encoder(known.shape, known.sent_shape, positive), seed)
        rows = Examples(own, wanted[picks])
        epochs = max(1, round(steps * _BATCH / len(rows)))
        model = fit(net, rows, Alike(), epochs=epochs, batch=_BATCH, lr=2e-3, seed=seed, device=device, tell=tell)
        own, labels = (each[: max(_LEAST, pairs_wanted(known.case))] for each in (own, labels))
        features = answers(net, model, own)
        cut, number = max(1, len(own) // 5), torch.arange(len(own), device=device)
        held, learn = (
            Pairs(features[part], own[part], None if like is None else labels[part], 1, number[part, None], own)
            for part in (slice(0, cut), slice(cut, None))
        )
        apart = replace(known, victims=wanted, labels=known.labels if like is not None else None)
        return refined(apart, learn, held, tell)


@dataclass(frozen=True)
class Alike(Rebuilding):
    """The task of a substitute: a batch of outputs and a batch of rows sent, which are not pairs, are to look alike."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        means = (output.mean(0) - y.mean(0)).square().mean()
        deviations = (output.std(0) - y.std(0)).square().mean() if len(y) > 1 else means
        return means + deviations + kernel_distance(output, y)


def kernel_distance(a: Tensor, b: Tensor) -> Tensor:
    """The squared maximum mean discrepancy of two samples, summed over Gaussian kernels of five widths."""
    both = torch.cat([a, b])
    products = both @ both.T
    norms = products.diagonal()
    distances = (norms[:, None] + norms[None] - 2 * products).clamp(min=0)
    width = distances.detach().mean().clamp(min=1e-12)
    kernels = sum(torch.exp(-distances / (factor * width)) for factor in (0.25, 0.5, 1.0, 2.0, 4.0))
    assert isinstance(kernels, Tensor)
    n = len(a)
    return kernels[:n, :n].mean() + kernels[n:, n:].mean() - 2 * kernels[:n, n:].mean()


def _paired(
    sent_labels: Tensor | None, own_labels: Tensor | None, sent: int, own: int, random: torch.Generator
) -> Tensor:
    """For each of the attacker's rows a row that was sent: of the same class where that is known, so that batches of
    both have the same classes."""
    anyhow = torch.randint(sent, (own,), generator=random)
    if sent_labels is None or own_labels is None:
        return anyhow
    for label in torch.unique(own_labels).tolist():
        there = (sent_labels == label).nonzero().flatten().cpu()
        here = (own_labels == label).nonzero().flatten().cpu()
        if len(there):
            anyhow[here] = there[torch.randint(len(there), (len(here),), generator=random)]
    return anyhow
