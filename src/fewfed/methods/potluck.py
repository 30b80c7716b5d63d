"""Potluck."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal

from torch import Tensor

from fewfed.mechanism import Mechanism
from fewfed.method import Method, Preset, Setup
from fewfed.methods.averaged import UNAVERAGED, Averaged
from fewfed.methods.blurred import Blurred
from fewfed.methods.flea import FLea
from fewfed.methods.grouped import Grouped
from fewfed.methods.parts import cuts
from fewfed.methods.parts.watched import LOGGED
from fewfed.methods.quantised import Quantised
from fewfed.methods.rationed import Rationed
from fewfed.methods.recalibrated import Recalibrated
from fewfed.methods.slimmed import Slimmed
from fewfed.methods.veiled import Veiled
from fewfed.phase import Clock, Phase
from fewfed.settings import setting
from fewfed.tree import Tree

_FLEA = MappingProxyType(
    {
        "cut": "",
        "slim": False,
        "k": 1,
        "blur": 0.0,
        "bits": 0,
        "part": float("inf"),
        "raw": 0.0,
        "decorrelate": 3.0,
        "history": 1,
        "retrain": 0,
        "decay": 0.0,
    }
)


@dataclass(frozen=True)
class Potluck(Method):
    """FLea around averages: everybody brings some, everybody is served some, and the server cooks with what came.

    It is averaged(recalibrated(rationed(quantised(blurred(grouped(slimmed(flea))))))), each part a wrapper that any
    method can have:

    - FLea shares half-way through the network (`cut` = middle) instead of near its inputs. There a mixture is more like
      a row of its own, and less can be told of inputs. Where the papers' cut is the middle already, nothing changes.
    - `slimmed`: clients that share receive the stages before the cut alone. Costs nothing.
    - `grouped`: what leaves a client is the mean of the features of `k` rows of one class, always the same rows. Costs:
      classes with fewer than k rows at a client are not shared from there. It replaces FLea's decorrelation, which is
      off. It hides by averaging alone and is no guarantee (docs/defences.md).
    - `blurred`: noise on each average, as wide as its own numbers spread. Half of its variance stays, so that it cannot
      be averaged away over rounds; half is new each time, so that differences of rounds do not cancel it. Costs a
      little accuracy, gives no bound.
    - `quantised`, `rationed`: 4 bits a number, up and down; a client is served as many averages as came in the last
      round, classes in turn, out of those of the last `history` rounds. Costs rounding, and bytes that the model's
      own do not shrink with.
    - FLea's loss on what is served: mixed features with distillation, and beside it plain cross-entropy on the client's
      own rows (`raw`), for one more pass through the later stages a step.
    - `recalibrated`: the server retrains the later stages on the kept averages, class-balanced. Costs server time.
    - `averaged`: a moving average of the models predicts. Costs one model at the server.

    Preset `bounded` has `veiled` in place of both: all rows of a class are behind its averages, each clipped, with the
    Gaussian mechanism's noise. What averages tell of a row is then bounded (what models tell is not). Costs accuracy.
    Preset `flea` turns every part off and is FLea bit for bit; without sharing too (`neutral`) it is FedAvg.
    """

    name = "potluck"
    family = "feature sharing"
    paper = "this project's own, built on Xia et al., FLea, KDD 2024; not published"
    presets = MappingProxyType(
        {
            "flea": Preset(_FLEA, note="every part off: exactly FLea"),
            "bounded": Preset({"share": 1.0, "sigma": 1.0}, note="a bound on what shared averages tell of each row"),
        }
    )
    neutral = MappingProxyType({**_FLEA, "share": 0.0, "distil": 0.0, "decorrelate": 0.0})
    observed = LOGGED
    needs_classes = True

    cut: str = setting(cuts.MIDDLE, "stage after which features are shared; middle = half-way; empty = as FLea does")
    slim: bool = setting(True, "clients that share receive the stages before the cut alone")
    share: float = setting(0.1, "averages that a client sends, as a part of its rows", ge=0, le=1)
    k: int = setting(5, "rows of one class in each average; 1 = rows as they are", ge=1)
    blur: float = setting(1.0, "deviation of the noise on an average, as a part of its own; 0 = none", ge=0)
    fresh: float = setting(0.5, "part of that noise's variance that is new each time; the rest stays", ge=0, le=1)
    sigma: float = setting(0.0, "in place of blur: noise that bounds what an average tells of a row; 0 = none", ge=0)
    clip: float = setting(1.0, "with sigma: largest root mean square of the numbers of a row", gt=0)
    bits: Literal[0, 2, 4, 8] = setting(4, "bits a number of an average, up and down; 0 = numbers as they are")
    part: float = setting(1.0, "averages that a client receives, as a part of those that came last; inf = all", gt=0)
    history: int = setting(10, "rounds that averages stay at the server", ge=1)
    beta: float = setting(2.0, "local and received rows are mixed by lam ~ Beta(beta, beta)", gt=0)
    raw: float = setting(1.0, "weight of the cross-entropy of unmixed rows", ge=0)
    distil: float = setting(1.0, "weight of FLea's distillation", ge=0)
    decorrelate: float = setting(0.0, "weight of FLea's decorrelation", ge=0)
    retrain: int = setting(2, "epochs that the server retrains the later stages in each round; 0 = none", ge=0)
    decay: float = setting(0.8, "of the moving average that predicts; 0 = no average", ge=0, lt=1)

    @cached_property
    def parts(self) -> Method:
        """The composition that does everything."""
        made: Method = FLea(
            cut=self.cut,
            share=self.share,
            beta=self.beta,
            distil=self.distil,
            decorrelate=self.decorrelate,
            raw=self.raw,
            history=self.history,
        )
        if self.share:
            made = self._hidden(Slimmed(made, slim=self.slim))
            made = Rationed(Quantised(made, bits=self.bits), part=self.part, bits=self.bits)
            made = Recalibrated(made, epochs=self.retrain, history=self.history)
        return Averaged(made, decay=self.decay)

    def _hidden(self, made: Method) -> Method:
        if self.sigma:
            return Veiled(made, k=self.k, clip=self.clip, sigma=self.sigma)
        return Blurred(Grouped(made, k=self.k), noise=self.blur, fresh=self.fresh)

    @property
    def layers(self) -> tuple[Method, ...]:
        return (self, *self.parts.layers)

    def check(self, setup: Setup) -> None:
        self.parts.check(setup)

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return self.parts.phases(clock)

    def mechanisms(self, clock: Clock) -> tuple[Mechanism, ...]:
        return self.parts.mechanisms(clock)

    def server_init(self, setup: Setup) -> Tree:
        return self.parts.server_init(setup)

    def client_init(self, setup: Setup) -> Tree:
        return self.parts.client_init(setup)

    def predictor(self, server: Tree, state: Tree) -> Tree:
        return self.parts.predictor(server, state)

    @property
    def besides(self) -> Mapping[str, Method]:
        return {UNAVERAGED: dataclasses.replace(self, decay=0.0)} if self.decay else {}

    def presented(self, model: Tree, x: Tensor) -> Tensor:
        return self.parts.presented(model, x)
