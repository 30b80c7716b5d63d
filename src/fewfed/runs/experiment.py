"""An experiment: what is run, on which data, how. Frozen, validated, and written into every run folder."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fewfed.data import sources
from fewfed.data.readers.options import DataOptions
from fewfed.data.splits import FILE, NATURAL
from fewfed.engine.executors.plugin import Plugin
from fewfed.engine.executors.registry import plugin, plugins
from fewfed.errors import ConfigError, did_you_mean
from fewfed.method import Method
from fewfed.methods.registry import Chosen, choose, every_layer, layers_of
from fewfed.settings import Known, check, is_essential, make, setting
from fewfed.training import Training

AUTO = "auto"
USUAL_SPLIT, USUAL_CLIENTS, USUAL_COHORT = "qua:2", 50, 0.1
"""Where nobody says otherwise and the data has no sites of its own."""
FEW_SITES = 20
"""So many sites all take part in every round unless somebody says otherwise."""
RECORDS = ("record", "record_rounds", "record_clients", "record_mb")
"""Settings that only say what is written down of a run: they change nothing of it."""


@dataclass(frozen=True)
class Experiment(Known):
    """Everything around the method and its local training."""

    data: str = setting("digits", "data set by name, or a path to your own")
    split: str = setting(
        AUTO,
        "how rows become clients: iid, qua:Q, dir:MU, dirm:MU, exact:N:Q, size:BETA, site, subject, file:PATH ...; "
        "auto = the sites of your own data, else qua:2",
    )
    clients: int | None = setting(
        None,
        "number of clients; 0 = as many as a natural split, or a file, has; none = 0 for these, else 50",
        ge=0,
    )
    cohort: float | None = setting(
        None,
        "clients a round: below 1 a fraction, from 1 on a count; none = all of at most 20 sites of own data, else 0.1",
        gt=0,
    )
    rounds: int = setting(100, "rounds", ge=1)
    network: str = setting(
        "auto", "network by name, or your own as net.py:build; auto = the papers' choice for the data"
    )
    start_from: str = setting("", "folder of a finished run whose model is the first one; empty = fresh weights")
    seed: int = setting(0, "drives weights, split, cohorts, batches and draws", ge=0)
    volume: float = setting(1.0, "part of the training rows that is given out", gt=0, le=1)
    validation: float = setting(0.0, "part of every client's rows kept for validation, rounded up", ge=0, lt=1)
    min_size: int = setting(-1, "smallest client of a random split, or that volume leaves; -1 = the rule's own", ge=-1)
    legacy_seed: int = setting(-1, "seed of the released FLea partitions; -1 = not those", ge=-1, lt=2**32)
    noise: float = setting(0.0, "standard deviation of Gaussian noise on training inputs", ge=0)
    noise_kind: Literal["graded", "uniform"] = setting("graded", "noise rising over clients, or the same on all")
    noise_test: bool = setting(False, "noise on the test part too: a copy of it under every client's level")
    noise_fresh: bool = setting(False, "draw the noise on training inputs anew each time a row is looked at")
    leave_out: str = setting("", "natural split: group name or client number that only tests; empty = all train")
    executor: str = setting("auto", "how clients are run: sequential, workers, cuda, ray; auto = the fastest there is")
    exact: bool = setting(False, "no choices by timing, which change how numbers round")
    evaluate_every: int = setting(1, "rounds between evaluations; the last round always is", ge=1)
    evaluate_clients: int = setting(20, "clients whose own models are scored where each has one; 0 = all", ge=0)
    metric: str = setting("accuracy", "what is compared: accuracy, balanced_accuracy, macro_f1, auc, loss, dice ...")
    epsilon: float | None = setting(
        None, "privacy budget of a row: nobody takes part in a turn that would pass it; none = no budget", gt=0
    )
    delta: float = setting(1e-5, "of epsilon: the chance that the bound does not hold", gt=0, lt=1)
    policy: str = setting("", "TOML file of what sites allow to leave them; empty = everything")
    rows_public: bool = setting(
        False, "rows may be seen by everybody: lets a method share them as they are, or what is as good as they are"
    )
    robust: Literal["none", "clipped", "median", "trimmed", "krum", "multi-krum"] = setting(
        "none", "how uploads are combined where some clients may not be honest; none = as the method declares"
    )
    robust_attackers: float = setting(
        0.2,
        "trimmed, krum: how many of a round's clients may be attackers: below 1 a part, rounded up, or a count",
        ge=0,
    )
    robust_clip: str = setting("1x", "clipped: largest length of a change: 2.5, or 2x = twice the round's median")
    norm_bound: str = setting("", "packets that change more are refused: 2.5, or 3x = three medians; empty = none are")
    row_filter: float | None = setting(
        None, "shared rows so many times further from their class than usual are left out; none = no row", gt=0
    )
    row_margin: float | None = setting(
        None, "row_filter: and those so many times nearer to another class; none = not looked at", ge=1
    )
    attack: Literal["none", "label-flip", "sign-flip", "boost", "noise", "row-labels", "row-features"] = setting(
        "none", "what attackers do"
    )
    attackers: str = setting("", "clients that attack: a part of all, as in 0.2, or numbers: 0,3,10-19; empty = nobody")
    attack_scale: float | None = setting(None, "strength of sign-flip, boost, noise, row-features; none = usual", gt=0)
    leak: bool = setting(True, "measure what can be reconstructed of rows that are shared, every tenth of the run")
    checkpoint_seconds: float = setting(15.0, "least time between two checkpoints", ge=0)
    record: Literal["none", "packets"] = setting("none", "what is kept of all that is sent: packets, as they are")
    record_rounds: str = setting("tenths", "of which rounds: 1,10,last, 3-7, all; tenths = first, last, every tenth")
    record_clients: str = setting("all", "of which clients: 0,3,10-19; all = those that take part in these rounds")
    record_mb: float = setting(256.0, "most megabytes of packets; what comes after that is left out", gt=0, le=1e9)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to be decided by the data."""
        return self.split != AUTO and self.clients is not None and self.cohort is not None

    def settled(self, sites: Mapping[str, int]) -> Experiment:
        """The same with everything decided. `sites`: how many of each kind own data has, those that clients are by
        default first; none for data sets known by name."""
        split = next(iter(sites), USUAL_SPLIT) if self.split == AUTO else self.split
        clients, cohort = self.clients, self.cohort
        if clients is None:
            natural = split in NATURAL or split.startswith(f"{FILE}:")
            clients = sites.get(split, 0) if natural else USUAL_CLIENTS
        if cohort is None:
            cohort = float(sites[split]) if 0 < sites.get(split, 0) <= FEW_SITES else USUAL_COHORT
        return dataclasses.replace(self, split=split, clients=clients, cohort=cohort)

    def cohort_size(self, clients: int) -> int:
        """Clients a round: a fraction is rounded half up, at least one."""
        cohort = USUAL_COHORT if self.cohort is None else self.cohort
        if cohort > clients:
            raise ConfigError(
                f"cohort = {cohort:g} is larger than clients = {clients}: expected at most as many", key="cohort"
            )
        size = max(1, math.floor(cohort * clients + 0.5)) if cohort < 1 else int(cohort)
        if cohort >= 1 and size != cohort:
            raise ConfigError(
                f"cohort = {cohort}: expected a fraction below 1 or a whole number of clients", key="cohort"
            )
        return size


@dataclass(frozen=True)
class Resolved:
    """A complete configuration: what a run folder records and a resumed run reads back."""

    spec: str
    """The method as it was named, with its preset."""
    values: Mapping[str, Any]
    """The method's fields that were set."""
    experiment: Experiment
    training: Training
    options: DataOptions = field(default_factory=DataOptions)
    executors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options that were set, by executor."""

    @property
    def chosen(self) -> Chosen:
        return choose(self.spec, self.values)

    @property
    def identity(self) -> Resolved:
        """What is computed, whoever computes it: without the executor, those of its options that only save time, limits
        on what data may take, what is allowed, and what is measured or written down beside."""
        essential = {name: _essential(plugin(name), given) for name, given in self.executors.items()}
        executors = {name: given for name, given in essential.items() if given}
        usual = {name: getattr(Experiment(), name) for name in ("executor", "rows_public", "leak", *RECORDS)}
        experiment = dataclasses.replace(self.experiment, **usual)
        options = self.options.without_limits()
        return dataclasses.replace(self, experiment=experiment, executors=executors, options=options)

    def on(self, executor: str) -> Resolved:
        """The same computed by another executor, with that one's defaults."""
        experiment = dataclasses.replace(self.experiment, executor=executor)
        return dataclasses.replace(self.identity, experiment=experiment, options=self.options)

    def named(self, spec: str) -> Resolved:
        """The same with its method named again, where a file of the method's may lie elsewhere by now."""
        if _without_folders(spec) != _without_folders(self.spec):
            raise ConfigError(f"method '{spec}' is not the run's: expected '{self.spec}'", key="method", value=spec)
        return dataclasses.replace(self, spec=spec)

    def with_network(self, network: str) -> Resolved:
        """The same with its network named again, where a file of it may lie elsewhere by now."""
        recorded = self.experiment.network
        if _without_folders(network) != _without_folders(recorded):
            raise ConfigError(
                f"network '{network}' is not the run's: expected '{recorded}'", key="network", value=network
            )
        return dataclasses.replace(self, experiment=dataclasses.replace(self.experiment, network=network))

    def with_budget(self, epsilon: float) -> Resolved:
        """The same with a larger privacy budget, where the run has spent the one it had."""
        recorded = self.experiment.epsilon
        if recorded is not None and epsilon < recorded:
            raise ConfigError(
                f"epsilon = {epsilon:g} is less than the run was started with: expected at least {recorded:g}",
                key="epsilon",
                value=epsilon,
            )
        changed = dataclasses.replace(self.experiment, epsilon=epsilon)
        check(changed)
        return dataclasses.replace(self, experiment=changed)

    def with_policy(self, path: str) -> Resolved:
        """The same with another policy of the sites: it is theirs, and may change while a run goes on."""
        return dataclasses.replace(self, experiment=dataclasses.replace(self.experiment, policy=path))

    def as_json(self) -> dict[str, Any]:
        return {
            "method": self.spec,
            "method_fields": dict(self.values),
            "experiment": dataclasses.asdict(self.experiment),
            "training": dataclasses.asdict(self.training),
            "data_options": dataclasses.asdict(self.options),
            "executors": {name: dict(options) for name, options in self.executors.items()},
        }

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> Resolved:
        try:
            return cls(
                str(recorded["method"]),
                dict(recorded["method_fields"]),
                make(Experiment, recorded["experiment"], "the experiment"),
                make(Training, recorded["training"], "training"),
                make(DataOptions, recorded["data_options"], "data_options"),
                {str(name): dict(options) for name, options in recorded["executors"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"a recorded configuration is damaged ({error}): expected what 'fewfed run' wrote"
            ) from error


def resolve(spec: str, values: Mapping[str, Any]) -> Resolved:
    """Sort flat values into method, experiment, training, data options and options of executors.

    `training.momentum` and the like name a field of one part where two have it; a plain name goes to the method first.
    Of a method around others, `flea.share` names a field of one of them, and a plain name that only one of them has
    goes to that one. `cuda.streams` names an option of an executor.
    """
    base = choose(spec)
    parts: dict[str, dict[str, Any]] = {"method": {}, "experiment": {}, "training": {}, "data_options": {}}
    executors: dict[str, dict[str, Any]] = {}
    fields = {
        "method": _names(type(base.method)),
        "experiment": _names(Experiment),
        "training": _names(Training),
        "data_options": _names(DataOptions),
    }
    layers = layers_of(spec)
    inside = fields_inside(spec)
    for name, value in values.items():
        part, _, rest = name.partition(".")
        if part not in parts and part in layers and rest:
            parts["method"][layers[part][0] + rest] = value
        elif name in inside and not any(name in names for names in fields.values()):
            parts["method"][inside[name]] = value
        elif part in parts and rest:
            parts[part][rest] = value
        elif part in plugins() and rest:
            executors.setdefault(part, {})[rest] = value
        elif "." in name:
            if rest and difflib.get_close_matches(part, plugins(), n=1):
                raise ConfigError(did_you_mean("option", name, executor_options()), key=name)
            parts["method"][name] = value
        else:
            parts[_owner(name, fields, base.method)][name] = value
    experiment = make(Experiment, parts["experiment"], "the experiment")
    options = make(DataOptions, parts["data_options"], "data_options")
    return layered(spec, parts["method"], experiment, parts["training"], options, executors)


def resolve_data(stand_in: str, values: Mapping[str, Any], methods: Sequence[str] = ()) -> Resolved:
    """The same where only data and split matter and no method is named: another one stands in.

    Fields of training, and those of the methods that a file names, may be there and have no effect.
    """
    ours = {"experiment": _names(Experiment), "data_options": _names(DataOptions)}
    theirs = _names(Training).union(*(known_fields(method) for method in methods))
    known = {name: part for part, names in ours.items() for name in names}
    chosen: dict[str, Any] = {}
    for name, value in values.items():
        part, _, rest = name.partition(".")
        if rest and part in ours:
            chosen[name] = value
        elif not rest and name in known:
            chosen[f"{known[name]}.{name}"] = value
        elif name not in theirs and not (rest and part in ("method", "training", *plugins(), *methods)):
            raise ConfigError(did_you_mean("setting of data or split", name, known), key=name)
    return resolve(stand_in, chosen)


def layered(
    spec: str,
    values: Mapping[str, Any],
    experiment: Experiment,
    training: Mapping[str, Any],
    options: DataOptions,
    executors: Mapping[str, Mapping[str, Any]] | None = None,
) -> Resolved:
    """A complete configuration from what a user said: defaults < the method's own < its preset's < the user's.

    The only place where these meet, for the command line, files and Python alike.
    """
    chosen = choose(spec, values)
    check(experiment)
    if experiment.data in sources.names():
        experiment = experiment.settled({})
    check(options)
    given = {name: stated(plugin(name), said) for name, said in (executors or {}).items() if said}
    made = make(Training, {**chosen.training, **training}, "training")
    return Resolved(spec, values, experiment, made, options, given)


def _without_folders(spec: str) -> str:
    return re.sub(r"[^():]*/", "", spec.replace(" ", ""))


def stated(executor: Plugin, said: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an executor that somebody set, in their own types."""
    try:
        made = make(executor.options, said, f"executor '{executor.name}'")
    except ConfigError as error:
        raise ConfigError(f"{executor.name}: {error}", key=f"{executor.name}.{error.key}", value=error.value) from None
    return {name: getattr(made, name) for name in said}


def _essential(executor: Plugin, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options given that change what is computed."""
    fields = {entry.name: entry.default for entry in dataclasses.fields(executor.options) if is_essential(entry)}
    return {name: value for name, value in given.items() if name in fields and value != fields[name]}


def accepts(spec: str, name: str) -> bool:
    """Whether a field name belongs to a method or to what is common to all methods; `inner.share` to what is inside."""
    before, dot, field = name.rpartition(".")
    if dot:
        cls = every_layer(spec).get(f"{before}.")
        return cls is not None and field in _names(cls)
    return name in known_fields(spec)


def known_fields(spec: str) -> set[str]:
    """The plain names that `resolve` takes for a method."""
    common = _names(Experiment) | _names(Training) | _names(DataOptions)
    return _names(type(choose(spec).method)) | common | fields_inside(spec).keys()


def fields_inside(spec: str) -> dict[str, str]:
    """Fields that exactly one of the methods inside a composition has, and how they are addressed from outside."""
    inner = list(layers_of(spec).values())[1:]
    names = [name for _, cls in inner for name in _names(cls)]
    return {name: prefix + name for prefix, cls in inner for name in _names(cls) if names.count(name) == 1}


def _names(cls: type[Any]) -> set[str]:
    return {entry.name for entry in dataclasses.fields(cls) if entry.init}


def _owner(name: str, fields: Mapping[str, set[str]], method: Method) -> str:
    for part, names in fields.items():
        if name in names:
            return part
    known = set().union(*fields.values(), executor_options())
    raise ConfigError(did_you_mean(f"field for method '{method.label}'", name, known), key=name)


def executor_options() -> set[str]:
    """Every option of every executor as a user writes it."""
    return {f"{each.name}.{name}" for each in plugins().values() for name in _names(each.options)}
