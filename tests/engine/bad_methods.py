"""Kinds of bad methods: what a user's method file may get wrong, one thing each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NoReturn

import numpy as np
import torch

from fewfed import tree
from fewfed.method import Context, Report
from fewfed.methods.fedavg import FedAvg
from fewfed.phase import Combine, Phase, Role, Upload, Weight

Function = Callable[..., Any]
Functions = dict[str, Function]


@dataclass(frozen=True)
class BadMethod:
    """FedAvg with some functions replaced, and what is said of it."""

    name: str
    functions: Functions
    says: tuple[str, ...]
    """Parts of the sentence that ends the run, or, where clients are left out, of the reason for the first of them."""
    left_out: tuple[int, ...] | None = None
    """The clients that are left out in every round of a run that goes on; None where the run ends."""

    @property
    def concerns_clients(self) -> bool:
        """Whether only functions of a client's turn are wrong."""
        return set(self.functions) <= set(CLIENT)

    def method(self) -> FedAvg:
        made: type[FedAvg] = dataclass(frozen=True)(type("Bad", (FedAvg,), {"name": "bad", **self.functions}))
        return made()


class Unspeakable(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Ends(BaseException):
    """Not even an `Exception`."""


def recurse(*_: Any) -> Any:
    return deeper(0)


def deeper(depth: int) -> int:
    """Without an argument for each parameter, Python 3.13.0 finds no end of it: it fills the memory."""
    return deeper(depth + 1)


ERRORS: dict[str, tuple[Callable[[], Any], str]] = {
    "an error": (lambda: _raise(ZeroDivisionError("no rows")), "ZeroDivisionError: no rows"),
    "a missing name": (lambda: {}["centre"], "KeyError: 'centre'"),
    "an error without text": (lambda: _raise(Unspeakable()), "Unspeakable ("),
    "an error with an endless text": (lambda: _raise(ValueError("x" * 10**6)), "ValueError: xxx"),
    "recursion without end": (recurse, "RecursionError"),
    "no memory": (lambda: _raise(MemoryError()), "MemoryError"),
    "sys.exit(0)": (lambda: _raise(SystemExit(0)), "SystemExit: 0"),
    "sys.exit()": (lambda: _raise(SystemExit()), "SystemExit"),
    "StopIteration": (lambda: next(iter(())), "StopIteration"),
    "GeneratorExit": (lambda: _raise(GeneratorExit()), "GeneratorExit"),
    "another end": (lambda: _raise(Ends("enough")), "Ends: enough"),
}
"""What somebody else's code may raise."""

FILE = "bad_methods.py, line "

SERVER = ("check", "phases", "server_init", "client_init", "broadcast", "personal", "absorb", "predictor")
CLIENT = ("data", "begin", "draw", "loss", "gradient", "end")
OF_A_PHASE = ("broadcast", "personal", "absorb")


def kinds() -> list[BadMethod]:
    """All of them."""
    return [
        *_raising(),
        *_wrong_phases(),
        *_wrong_on_the_server(),
        *_wrong_at_clients(),
        *_wrong_reports(),
        *_alone(),
        *_odd_but_good(),
    ]


def mixture(of: Sequence[BadMethod], honest: int) -> FedAvg:
    """A method that is good for the first clients, and for each of those after them bad in another way."""

    def chosen(function: str) -> Function:
        def asked(self: Any, *given: Any) -> Any:
            ctx = next(each for each in given if isinstance(each, Context))
            functions = of[ctx.client - honest].functions if ctx.client >= honest else {}
            return functions.get(function, getattr(FedAvg, function))(self, *given)

        return asked

    return BadMethod("mixture", {function: chosen(function) for function in CLIENT}, ()).method()


def _raising() -> list[BadMethod]:
    """Every function raises; and every error is raised by one function of the server's and by one of the clients'."""
    found = []
    for function in (*SERVER, *CLIENT):
        chosen = ERRORS if function in ("absorb", "loss") else ("an error", "sys.exit(0)")
        for error in chosen:
            raises, text = ERRORS[error]
            whose = _whose(function) if function in SERVER else "phase 'train': all 3 members failed"
            says = (whose, text, FILE)
            found.append(BadMethod(f"{function} raises: {error}", {function: _instead(raises)}, says))
    return found


def _wrong_phases() -> list[BadMethod]:
    def phases(*made: Callable[[Any], Any]) -> Functions:
        return {"phases": lambda self, clock: tuple(make(self) for make in made)}

    def one(**values: Any) -> Functions:
        return phases(lambda self: Phase(**{"name": "train", "does": self, "epochs": 1, **values}))

    def declared(*upload: Any) -> Functions:
        return phases(lambda self: Phase("train", self, 1, {"model": Upload(*upload)}))

    def train(self: Any) -> Phase:
        return Phase("train", self, 1)

    more = {"model": Upload(Combine.MEAN, Role.MODEL), "more": Upload(Combine.SUM, Role.COUNTS)}
    whose = "method 'bad', phases: "
    return _named(
        {
            "phases is nothing": ({"phases": _giving(None)}, whose, "TypeError", "NoneType"),
            "one phase, not several": ({"phases": lambda self, clock: train(self)}, whose, "TypeError"),
            "phases by name": ({"phases": _giving(("train",))}, whose, "is a str: expected phases only"),
            "phases without end": ({"phases": lambda self, clock: repeat(train(self))}, whose, "no end of them"),
            "no phase at all": (phases(), whose, "returned none for round 1"),
            "two phases of one name": (phases(train, train), whose, "2 phases are named 'train'"),
            "a phase without a name": (one(name=""), "a phase is named ''"),
            "a phase with a number for a name": (one(name=3), "a phase is named 3"),
            "a phase without functions": (one(does=None), "phase 'train' was given None", "expected the method or"),
            "fewer than no epochs": (one(epochs=-1), "phase 'train' has epochs = -1"),
            "half an epoch": (one(epochs=0.5), "phase 'train' has epochs = 0.5", "a whole number"),
            "an unknown cohort": (one(cohort="everybody"), "cohort of phase 'train'", "'everybody'", "Cohort.ALL"),
            "uploads by name only": (one(uploads=["model"]), "uploads = ['model']", "Upload(Combine.MEAN"),
            "an unknown role": (declared(Combine.MEAN, "weights"), "role", "'weights'", "Role.MODEL"),
            "an unknown combination": (declared("mean", Role.MODEL), "combination", "'mean'", "Combine.MEAN"),
            "fewer than no rows": (declared(Combine.MEAN, Role.MODEL, -1.0), "rows of an upload = -1.0"),
            "a weight that is a number": (one(weight=1.0), "weight = 1.0", "expected a Weight"),
            "relayed but not uploaded": (one(relayed=frozenset({"x"})), "relayed", "'x'", "model"),
            "a misspelt training field": (one(training={"epoch": 1}), "'epoch'", "did you mean 'epochs'?"),
            "a training field out of range": (one(training={"lr": -1.0}), "lr = -1.0", "> 0"),
            "a training field as text": (one(training={"lr": "0.1"}), "lr = '0.1'", "float"),
            "training that is no mapping": (one(training=3), "training = 3", "named values"),
            "an upload that is never sent": (one(uploads=more), "upload 'more' is missing"),
            "an upload that was not declared": (one(uploads={}), "upload 'model' is not declared"),
        }
    )


def _wrong_on_the_server() -> list[BadMethod]:
    wrong: dict[str, tuple[Any, str]] = {
        "nothing": (None, "its result is nothing"),
        "an array of NumPy's": ({"a": {"b": np.zeros(2)}}, "its result 'a' 'b' is a ndarray"),
        "a list": ([1.0], "its result is a list"),
        "a tensor": (torch.zeros(2), "its result is a Tensor"),
        "a number": ({"a": 1.0}, "its result 'a' is a float"),
        "a name that is no text": ({3: torch.zeros(2)}, "an entry named 3"),
        "a name with a slash": ({"a/b": torch.zeros(2)}, "an entry named 'a/b'"),
        "complex numbers": ({"a": torch.zeros(2, dtype=torch.cfloat)}, "torch.complex64"),
        "uint16": ({"a": torch.zeros(2, dtype=torch.uint16)}, "torch.uint16"),
    }
    found = [
        BadMethod(f"{function} returns {what}", {function: _giving(value)}, (_whose(function), said, "expected"))
        for function in SERVER[2:]
        for what, (value, said) in (wrong if function == "broadcast" else dict([*wrong.items()][:2])).items()
    ]

    def absorbs(change: Callable[[Any], Any]) -> Functions:
        return {"absorb": lambda self, server, combined: change(server)}

    def predicts(change: Callable[[Any], Any]) -> Functions:
        return {"predictor": lambda self, server, state: change(server["model"])}

    model = {"params": {"head.weight": torch.zeros(1, 4), "head.bias": torch.zeros(2)}, "buffers": {}}
    lost = ("KeyError: 'model'", "the server's tree has 'a'")
    whose, shape = _whose("predictor"), "its result 'params/head.weight' is torch.float32 (1, 4)"
    without: Functions = {"personal": lambda self, server, client: None if client == 2 else {}}
    named = _named(
        {
            "personal is wrong for one": (without, _whose("personal", 2), "its result is nothing"),
            "a server without a model": ({"server_init": _giving({"a": torch.zeros(2)})}, _whose("broadcast"), *lost),
            "absorb forgets the model": (absorbs(lambda server: {"a": torch.zeros(2)}), whose, *lost),
            "absorb changes shapes": (absorbs(lambda server: {"model": model}), whose, shape, "(2, 4)"),
            "absorb changes types": (absorbs(lambda server: tree.map(torch.Tensor.double, server)), whose, "float64"),
            "a predictor without parameters": (predicts(lambda model: {"buffers": {}}), whose, "no 'params/head.w"),
            "a predictor without buffers": (predicts(lambda model: {"params": model["params"]}), whose, "'buffers'"),
        }
    )
    return [*found, *named]


def _wrong_at_clients() -> list[BadMethod]:
    def begins(change: Callable[[Any], Any]) -> Functions:
        return {"begin": lambda self, ctx: change(tree.clone(ctx.shared["model"]))}

    def params(change: Callable[[Any], Any]) -> Functions:
        return begins(lambda model: {**model, "params": {name: change(leaf) for name, leaf in model["params"].items()}})

    def costs(change: Callable[[Any], Any]) -> Functions:
        return {"loss": lambda self, work, ctx, batch: change(FedAvg.loss(self, work, ctx, batch))}

    def term(change: Callable[[Any], Any]) -> Functions:
        return costs(lambda terms: {"task": change(terms["task"])})

    def leads(change: Callable[[Any, Any], Any]) -> Functions:
        return {"gradient": lambda self, differentiate, work, ctx, batch: change(*differentiate(work))}

    def directions(change: Callable[[Any], Any]) -> Functions:
        return leads(lambda gradient, terms: (change(gradient), terms))

    def with_params(value: Any) -> Functions:
        return begins(lambda model: {**model, "params": value})

    nested = {"deep": {"w": torch.zeros(2)}}
    return _named(
        {
            "data is nothing": ({"data": _giving(None)}, "data: its result is nothing: expected Examples"),
            "data is a pair": ({"data": lambda self, ctx: (ctx.data.x, ctx.data.y)}, "data: its result is a tuple"),
            "data is empty": ({"data": lambda self, ctx: ctx.data.rows(torch.arange(0))}, "nothing to train on"),
            "begin is nothing": ({"begin": _giving(None)}, "begin: its result is nothing"),
            "begin is a tensor": ({"begin": _giving(torch.zeros(2))}, "begin: its result is a Tensor"),
            "begin without params": (begins(lambda model: {"buffers": {}}), "begin: its result has no tree 'params'"),
            "begin with params as a tensor": (with_params(torch.zeros(2)), "begin: its result has no tree 'params'"),
            "begin with params in trees": (with_params(nested), "begin: its result 'params' 'deep' is a dict"),
            "begin with other names": (with_params({"w": torch.zeros(2)}), "KeyError: 'head.weight'"),
            "begin with NumPy's params": (params(lambda leaf: leaf.numpy()), "'params' 'head.weight' is a ndarray"),
            "begin with whole numbers": (params(torch.Tensor.long), "'head.weight' is torch.int64"),
            "begin with complex params": (params(torch.Tensor.cfloat), "'head.weight' is torch.complex64"),
            "begin with other shapes": (params(torch.flatten), "RuntimeError"),
            "draw is nothing": ({"draw": _giving(None)}, "draw: its result is nothing"),
            "draw is a list": ({"draw": _giving([1.0])}, "draw: its result is a list"),
            "draw with NumPy's arrays": ({"draw": _giving({"a": np.zeros(2)})}, "draw: its result 'a' is a ndarray"),
            "loss is nothing": (costs(lambda terms: None), "loss: its result is nothing: expected named terms"),
            "loss is a tensor": (costs(lambda terms: terms["task"]), "loss: its result is a Tensor: expected named"),
            "loss without terms": (costs(lambda terms: {}), "loss: none of its terms is minimised"),
            "loss as a number": (term(lambda task: 1.0), "loss: its term 'task' is a float: expected a tensor"),
            "one term as a number": (costs(lambda terms: {**terms, "b": 1.0}), "loss: its term 'b' is a float"),
            "a term without a name": (costs(lambda terms: {**terms, 3: terms["task"]}), "loss: a term is named 3"),
            "loss of several numbers": (term(lambda task: task.expand(4)), "loss: its term 'task' has shape (4,)"),
            "loss without gradient": (term(torch.Tensor.detach), "loss: it does not depend on the parameters"),
            "loss of whole numbers": (term(torch.Tensor.long), "loss: it does not depend on the parameters"),
            "loss is NaN": (term(lambda task: task * torch.nan), "its loss term 'task' became nan"),
            "loss is infinite": (term(lambda task: task * torch.inf), "its loss term 'task' became inf"),
            "gradient is nothing": (leads(lambda gradient, terms: None), "gradient: its result is nothing"),
            "gradient without terms": (leads(lambda gradient, terms: gradient), "gradient: its result is a dict"),
            "gradient with a number": (leads(lambda gradient, terms: (gradient, {"task": 1.0})), "'task' is a float"),
            "directions are nothing": (directions(lambda gradient: None), "gradient: it has no directions"),
            "one direction only": (directions(lambda gradient: dict([*gradient.items()][:1])), "'head.bias'"),
            "too many directions": (directions(lambda gradient: {**gradient, "x": torch.zeros(1)}), "'x', which is no"),
            "flat directions": (directions(lambda gradient: tree.map(torch.flatten, gradient)), "'head.weight' has"),
        },
        "all 3 members failed; the first, client 0: ",
    )


def _wrong_reports() -> list[BadMethod]:
    def ends(change: Callable[[Report], Any]) -> Functions:
        return {"end": lambda self, work, ctx: change(FedAvg.end(self, work, ctx))}

    def sends(**values: Any) -> Functions:
        return ends(lambda report: report._replace(**values))

    def uploads(change: Callable[[Any], Any]) -> Functions:
        return ends(lambda report: report._replace(upload=tree.map(change, report.upload)))

    def renamed(report: Report) -> Report:
        return report._replace(upload={"modle": report.upload["model"]})

    return _named(
        {
            "end is nothing": (ends(lambda report: None), "'end' returned nothing: expected a Report"),
            "end is a tuple": (ends(tuple), "'end' returned a tuple: expected a Report"),
            "end is an upload": (ends(lambda report: report.upload), "'end' returned a dict: expected a Report"),
            "upload is nothing": (sends(upload=None), "its upload is nothing"),
            "upload is a tensor": (sends(upload=torch.zeros(2)), "its upload is a Tensor"),
            "upload is a list": (sends(upload={"model": [1.0]}), "its upload 'model' is a list"),
            "upload is a number": (sends(upload={"model": 1.0}), "its upload 'model' is a float"),
            "upload under another name": (ends(renamed), "its upload 'modle' is not declared"),
            "upload of NumPy's arrays": (uploads(lambda leaf: leaf.numpy()), "is a ndarray"),
            "upload of complex numbers": (uploads(torch.Tensor.cfloat), "torch.complex64"),
            "upload of uint16": (uploads(lambda leaf: leaf.to(torch.uint16)), "torch.uint16"),
            "upload of sparse tensors": (uploads(torch.Tensor.to_sparse), "torch.sparse_coo"),
            "upload without memory": (uploads(lambda leaf: leaf.to("meta")), "expected ordinary numbers"),
            "upload of NaN": (uploads(lambda leaf: leaf * torch.nan), "holds NaN or infinity"),
            "weight is a tensor": (sends(weight=torch.tensor(1.0)), "its weight is a Tensor"),
            "weight is NumPy's float32": (sends(weight=np.float32(1)), "its weight is a float32"),
            "weight is text": (sends(weight="1"), "its weight is a str"),
            "weight is nothing": (sends(weight=None), "its weight is nothing"),
            "weight is yes": (sends(weight=True), "its weight is a bool"),
            "weight is NaN": (sends(weight=float("nan")), "its weight is nan"),
            "weight is infinite": (sends(weight=float("inf")), "its weight is inf"),
            "weight is negative": (sends(weight=-1.0), "its weight is -1.0"),
            "weight is 0": (sends(weight=0), "its weight is 0.0"),
            "weight is too large": (sends(weight=10**400), "its weight is inf"),
            "metrics are a list": (sends(metrics=[1.0]), "its metrics are a list"),
            "a metric is a tensor": (sends(metrics={"a": torch.ones(())}), "metric 'a' is a Tensor"),
            "a metric is text": (sends(metrics={"a": "1"}), "metric 'a' is a str"),
            "a metric is NaN": (sends(metrics={"a": float("nan")}), "its metric 'a' is nan"),
            "a metric is too large": (sends(metrics={"a": 10**400}), "its metric 'a' is inf"),
            "a metric without a name": (sends(metrics={3: 1.0}), "metric 3"),
            "state is nothing": (sends(state=None), "its state is nothing"),
            "state is an array": (sends(state=np.zeros(3)), "its state is a ndarray"),
            "state is a list in a tree": (sends(state={"a": [1.0]}), "its state 'a' is a list"),
            "state that was not declared": (sends(state={"a": torch.zeros(1)}), "does not declare keeps_state"),
        },
        "the first, client 0: its packet was refused: ",
    )


def _alone() -> list[BadMethod]:
    """What goes wrong for one client only, which is left out of a run that goes on."""

    def for_one(function: str, happens: Callable[[], Any]) -> Functions:
        honest = getattr(FedAvg, function)

        def instead(self: Any, *given: Any) -> Any:
            ctx = next(each for each in given if isinstance(each, Context))
            return happens() if ctx.client == 1 else honest(self, *given)

        return {function: instead}

    # On blank rows it fails, so that the first client's packet says what the others must look like.
    def ragged(self: Any, work: Any, ctx: Context) -> Report:
        if not bool(ctx.data.x.any()):
            raise ValueError("blank")
        rows = torch.zeros(3 if ctx.client == 1 else 2)
        return Report({**FedAvg.end(self, work, ctx).upload, "rows": rows}, {}, 1.0)

    def measured(self: Any, clock: Any) -> tuple[Phase, ...]:
        uploads = {"model": Upload(Combine.MEAN, Role.MODEL), "rows": Upload(Combine.MEAN, Role.STATISTICS)}
        return (Phase("train", self, clock.epochs, uploads, weight=Weight(beside=1.0)),)

    found = [
        BadMethod(f"{function} raises for one: {error}", for_one(function, happens), (text, FILE), (1,))
        for function in ("data", "begin", "loss", "end")
        for error, (happens, text) in ERRORS.items()
        if error in ("an error", "sys.exit(0)", "StopIteration", "another end")
    ]
    none = {
        "begin": "begin: its result is nothing",
        "loss": "loss: its result is nothing",
        "end": "its packet was refused: 'end' returned nothing",
    }
    found += [
        BadMethod(f"{function} is nothing for one", for_one(function, lambda: None), (said,), (1,))
        for function, said in none.items()
    ]
    shapes = {"end": ragged, "phases": measured}
    return [*found, BadMethod("another shape for one", shapes, ("(3,): expected torch.float32 (2)",), (1,))]


def _odd_but_good() -> list[BadMethod]:
    """What looks wrong and is not: nobody is left out."""

    def ends(change: Callable[[Report], Any]) -> Functions:
        return {"end": lambda self, work, ctx: change(FedAvg.end(self, work, ctx))}

    def uploads(change: Callable[[Any], Any]) -> Functions:
        return ends(lambda report: report._replace(upload=tree.map(change, report.upload)))

    def costs(change: Callable[[Any], Any]) -> Functions:
        return {"loss": lambda self, work, ctx, batch: change(FedAvg.loss(self, work, ctx, batch))}

    def absorbs(change: Callable[[Any], Any]) -> Functions:
        return {"absorb": lambda self, server, combined: tree.map(change, FedAvg.absorb(self, server, combined))}

    def turned(self: Any, differentiate: Any, work: Any, ctx: Any, batch: Any) -> Any:
        gradient, terms = differentiate(work)
        return dict(reversed(gradient.items())), terms

    cases: dict[str, Functions] = {
        "phases in a list": {"phases": lambda self, clock: [Phase("train", self, 1)]},
        "phases one by one": {"phases": lambda self, clock: (Phase(name, self, 1) for name in ("first", "second"))},
        "a phase that never trains": {"phases": lambda self, clock: (Phase("train", self),)},
        "epochs of NumPy's": {"phases": lambda self, clock: (Phase("train", self, np.int64(1)),)},  # type: ignore[arg-type]
        "weight is NumPy's float64": ends(lambda report: report._replace(weight=np.float64(1))),
        "weight is a whole number": ends(lambda report: report._replace(weight=1)),
        "metrics are whole numbers": ends(lambda report: report._replace(metrics={"a": 1})),
        "upload of a parameter": uploads(torch.nn.Parameter),
        "upload of one number, spread": uploads(lambda leaf: torch.zeros(()).expand(leaf.shape)),
        "upload of a view": uploads(lambda leaf: torch.stack([leaf, leaf], -1)[..., 0]),
        "a loss in a list of one": costs(lambda terms: {"task": terms["task"].reshape(1)}),
        "a server with gradients": absorbs(lambda leaf: leaf * torch.ones((), requires_grad=True)),
        "a server of parameters": absorbs(torch.nn.Parameter),
        "directions in another order": {"gradient": turned},
    }
    return [BadMethod(name, functions, (), ()) for name, functions in cases.items()]


def _named(cases: dict[str, tuple[Any, ...]], first: str = "") -> list[BadMethod]:
    return [BadMethod(name, functions, (first, *said)) for name, (functions, *said) in cases.items()]


def _whose(function: str, client: int = 0) -> str:
    of_phase = " of phase 'train'" if function in OF_A_PHASE else ""
    return f"method 'bad', {function}{of_phase}{f' for client {client}' if function == 'personal' else ''}: "


def _giving(value: Any) -> Function:
    return lambda self, *given: value


def _instead(happens: Callable[[], Any]) -> Function:
    return lambda self, *given: happens()


def _raise(error: BaseException) -> NoReturn:
    raise error
