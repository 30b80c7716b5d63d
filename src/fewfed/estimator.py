"""The scikit-learn habit: `FewFed(method="flea").fit(clients, test)`, then `predict`, `score`, `history`, `report`.

`clients` are several sites' rows and not one matrix, so tools that cut one matrix into folds (`GridSearchCV`,
`cross_val_score`) have no meaning here; `fewfed.tune` searches settings on rows that clients hold back.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import fields
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError

from fewfed.data.client_rows import dataset_of
from fewfed.errors import ConfigError
from fewfed.runs import given
from fewfed.runs.api import run
from fewfed.runs.experiment import Experiment
from fewfed.runs.results import Result
from fewfed.trained.model import TrainedModel
from fewfed.training import Training

if TYPE_CHECKING:
    from fewfed.report.page.write import Written

_OWN = ("rounds", "seed", "cohort")
"""Settings of the experiment that are arguments here, and those that the clients of `fit` decide:"""
_DECIDED = ("data", "split", "clients")


class FewFed(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that is trained between clients by one method. Everything is as in `fewfed.run`.

    `experiment`: further settings of the experiment by name, as in `{"metric": "macro_f1"}`, or an `Experiment`;
    `training` those of local training, `values` the method's own, `options` those of the data: rows are taken as they
    are, and `{"normalise": "federated"}` scales them by sums over all clients. `cohort` None: all clients, of more
    than 20 a tenth. Every fit is a run folder.
    """

    def __init__(
        self,
        method: str | PathLike[str] = "flea",
        *,
        rounds: int = 30,
        cohort: float | None = None,
        seed: int = 0,
        experiment: Experiment | Mapping[str, Any] | None = None,
        training: Training | Mapping[str, Any] | None = None,
        values: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        network: Any = None,
        executor: Any = None,
        out: str | PathLike[str] | None = None,
        track: str | Sequence[str] = (),
        progress: bool | None = None,
    ) -> None:
        self.method = method
        self.rounds = rounds
        self.cohort = cohort
        self.seed = seed
        self.experiment = experiment
        self.training = training
        self.values = values
        self.options = options
        self.network = network
        self.executor = executor
        self.out = out
        self.track = track
        self.progress = progress

    def fit(self, clients: Any, test: Any) -> FewFed:
        """Train on `clients`: a list of (x, y) or `Examples`, or a dictionary of these by the names of sites; `test`
        is one such pair that every round is scored on. Labels may be numbers or texts."""
        data, labels = dataset_of(clients, test)
        settings = {
            **_further(self.experiment), "rounds": self.rounds, "seed": self.seed, "split": "site", "clients": 0,
        }  # fmt: skip
        if self.cohort is not None:
            settings["cohort"] = self.cohort
        result = run(
            self.method,
            settings,
            self.training,
            values=self.values,
            options=self.options,
            executor=self.executor,
            data=data,
            network=self.network,
            out=self.out,
            track=self.track,
            progress=self.progress,
        )
        self.result_: Result = result
        self.sites_: tuple[str, ...] = data.group_names["site"]
        self.classes_: np.ndarray = labels
        self.n_features_in_: int = int(np.prod(data.shape))
        return self

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row a round: metrics, bytes, steps, seconds. `pandas.DataFrame` takes it."""
        return self._fitted().history

    def model(self, site: str | None = None) -> TrainedModel:
        """The trained model; `site` where each site has its own."""
        network = self.network if not isinstance(self.network, str) else None
        return self._fitted().model(site=site, network=network)

    def predict_proba(self, x: Any, site: str | None = None) -> np.ndarray:
        """The probability of each of `classes_` for each row."""
        return self.model(site).predict_proba(x)

    def predict(self, x: Any, site: str | None = None) -> np.ndarray:
        """The label of each row, as labels were given."""
        found: np.ndarray = self.predict_proba(x, site).argmax(1)
        return self.classes_.take(found)

    def report(self) -> Written:
        """Write a page about the run into its folder: `fewfed report`."""
        return self._fitted().report()

    def _fitted(self) -> Result:
        if not hasattr(self, "result_"):
            raise NotFittedError("this FewFed is not trained yet: expected fit(clients, test) before")
        return self.result_

    def _repr_html_(self) -> str:
        """For notebooks: what it is, and once it is trained, what came of it."""
        from fewfed.report.notebook import result_html

        said = f"<pre>{html.escape(repr(self))}</pre>"
        return said + result_html(self.result_) if hasattr(self, "result_") else said

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """In place of scikit-learn's own drawing, which knows nothing of rounds."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def _further(experiment: Any) -> dict[str, Any]:
    """The settings that an experiment states beside those that are decided here, which it must not contradict."""
    made, _ = given.experiment_of(experiment, None, None)
    usual = Experiment()
    named = {field.name for field in fields(made) if getattr(made, field.name) != getattr(usual, field.name)}
    if isinstance(experiment, Mapping):
        named = {str(name) for name in experiment}
    for name in (*_OWN, *_DECIDED):
        if name in named:
            instead = f"FewFed({name}=...)" if name in _OWN else "the clients that fit is given, who decide it"
            raise ConfigError(f"experiment names '{name}': expected {instead}", key=name)
    return {name: getattr(made, name) for name in sorted(named)}
