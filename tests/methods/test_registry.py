from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fewfed.errors import ConfigError
from fewfed.method import Batch, Context, Method
from fewfed.methods import registry
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.fedmix import FedMix
from fewfed.methods.fedprox import FedProx
from fewfed.methods.flea import FLea
from fewfed.methods.flea_official import FLeaOfficial
from fewfed.methods.registry import choose, presets_of, registered, wrapped_field
from fewfed.phase import Phase
from fewfed.runs.experiment import resolve
from fewfed.settings import describe, setting
from fewfed.tree import Tree
from fewfed.wrapper import Around, Wrapper
from support import job_of, run, same

OWN_METHOD = '''
from dataclasses import dataclass
from types import MappingProxyType

from fewfed import tree
from fewfed.method import Method, Preset
from fewfed.settings import setting


@dataclass(frozen=True)
class Shrink(Method):
    """Weight decay of my own."""

    name = "{name}"
    presets = MappingProxyType({{"strong": Preset({{"decay": 0.5}}, {{"lr": 0.01}})}})

    decay: float = setting(0.1, "how much", ge=0)

    def loss(self, work, ctx, batch):
        return {{**super().loss(work, ctx, batch), "decay": self.decay * tree.dot(work["params"], work["params"])}}
'''


@dataclass(frozen=True)
class Louder(Wrapper):
    """Multiplies every term of what it wraps."""

    name = "louder"

    gain: float = setting(2.0, "factor", gt=0)

    def around(self, phase: Phase) -> Phase:
        return dataclasses.replace(phase, does=Loud(self, phase))


class Loud(Around[Louder]):
    """A phase with louder terms."""

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return {name: self.wrapper.gain * value for name, value in super().loss(work, ctx, batch).items()}


@pytest.fixture
def louder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry with one wrapper more."""
    found = {**registry._found(), ("louder", ""): Louder}
    monkeypatch.setattr(registry, "_found", lambda: found)


@pytest.fixture
def own_file(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "my_shrinking_method.py"
    file.write_text(OWN_METHOD.format(name="shrink"))
    before = set(sys.modules)
    yield file
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) == str(file):
            del sys.modules[name]


def test_methods_are_found_by_the_name_they_carry() -> None:
    known = registered()
    assert {"fedavg", "fedprox", "fedmix", "feddata", "flea", "local", "single"} <= set(known)
    assert list(known) == sorted(known)
    assert all(cls.name == name and issubclass(cls, Method) for name, cls in known.items())
    assert known["flea"] is FLea


@pytest.mark.parametrize("name", sorted(registered()))
def test_every_method_says_what_it_is(name: str) -> None:
    cls = registered()[name]
    assert cls.family
    assert cls.paper
    assert cls.__doc__
    for field in describe(cls):
        assert field.help or field.name == wrapped_field(cls), f"{name}.{field.name} has no help"
    if cls.neutral is not None:
        choose(name, cls.neutral)


def test_presets_are_the_defaults_the_named_ones_and_released_variants() -> None:
    assert presets_of("fedavg") == ("paper",)
    assert presets_of("fedmix") == ("paper", "flea", "taylor")
    assert presets_of("flea") == ("paper", "official")
    assert choose("flea").method == choose("flea:paper").method == FLea()
    assert choose("flea").preset == "paper"
    assert choose("flea:official").method == FLeaOfficial()
    assert choose("flea:official").preset == "official"
    assert choose("fedmix:taylor").method == FedMix(form="taylor")
    assert dict(choose("flea").training) == {}
    assert choose("flea:official").training["reset"] == "step"


@pytest.mark.parametrize(
    ("spec", "rate"), [("flair:authors", 0.01), ("flute:released", 0.01), ("fedharmo:released", 1e-4)]
)
def test_rates_stay_where_the_sources_have_no_decay(spec: str, rate: float) -> None:
    training = resolve(spec, {}).training
    assert [training.lr_at(round) for round in (0, 1, 499)] == [rate] * 3


def test_values_win_over_the_preset_and_the_preset_over_defaults() -> None:
    assert choose("fedprox:released", {"mu": "0.5"}).method == FedProx(mu=0.5, form="norm-sum")
    assert choose("flea:official", {"share": 0.2}).method == FLeaOfficial(share=0.2)
    assert choose(" fedprox ", {"mu": 1}).method == FedProx(mu=1.0)


@pytest.mark.parametrize(
    ("spec", "values", "says"),
    [
        ("fedprx", {}, "unknown method 'fedprx': did you mean 'fedprox'?"),
        ("zzz", {}, "unknown method 'zzz': expected one of"),
        ("", {}, "unknown method ''"),
        ("flea:offical", {}, "unknown preset of method 'flea' 'offical': did you mean 'official'?"),
        ("fedavg:official", {}, "unknown preset of method 'fedavg' 'official': expected one of paper"),
        ("fedprox", {"m": 1.0}, "unknown field of method 'fedprox' 'm': did you mean 'mu'?"),
        ("fedprox", {"mu": -1.0}, "mu = -1.0: expected >= 0"),
        ("fedprox", {"form": "square"}, "form = 'square': expected 'squared' | 'norm-sum'"),
        ("fedavg", {"mu": 1.0}, "method 'fedavg' has no fields"),
        ("fedavg(fedprox)", {}, "method 'fedavg' wraps nothing: write 'fedavg' without brackets"),
        ("fedprx(fedavg)", {}, "unknown method 'fedprx': did you mean 'fedprox'?"),
        ("flea()", {}, "unknown method 'flea()'"),
        ("louder(fedavg", {}, "unknown method 'louder(fedavg'"),
        ("nowhere/mine.py", {}, "there is no method file 'nowhere/mine.py'"),
    ],
)
def test_a_name_that_is_wrong_gets_one_helpful_sentence(spec: str, values: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        choose(spec, values)
    assert says in str(error.value)


@pytest.mark.usefixtures("louder")
def test_wrappers_nest_and_take_values_for_what_they_wrap() -> None:
    assert choose("louder(fedprox)").method == Louder(inner=FedProx())
    assert choose("louder(fedprox:released)").method == Louder(inner=FedProx(mu=0.001, form="norm-sum"))
    made = choose("louder(louder(fedprox))", {"gain": 3, "inner.gain": "4", "inner.inner.mu": 0.5})
    assert made.method == Louder(gain=3.0, inner=Louder(gain=4.0, inner=FedProx(mu=0.5)))
    assert made.method.label == "louder(louder(fedprox))"
    assert choose("louder(flea:official)").training["reset"] == "step"
    with pytest.raises(ConfigError, match="unknown method 'fedprx'"):
        choose("louder(fedprx)")
    with pytest.raises(ConfigError, match="unknown field of method 'fedprox' 'mx'"):
        choose("louder(fedprox)", {"inner.mx": 1})
    with pytest.raises(ConfigError, match="unknown field of method 'louder' 'mu'"):
        choose("louder(fedprox)", {"mu": 1.0})


def test_a_wrapper_that_changes_nothing_is_what_it_wraps() -> None:
    for inner in ("fedavg", "fedprox", "fedmix", "flea"):
        method = choose(inner).method
        wrapper = Wrapper(inner=method)
        assert same(run(job_of(wrapper)).server, {"inner": run(job_of(method)).server, "own": {}})
        assert (wrapper.observed, wrapper.needs_classes) == (method.observed, method.needs_classes)
    assert Wrapper(inner=choose("local").method).personal_model
    assert wrapped_field(Wrapper) == "inner"
    assert wrapped_field(FedAvg) is None


def test_a_wrapper_overrides_a_little() -> None:
    plain = run(job_of(FedProx(), training={"optimizer": "sgd", "lr": 0.02}), rounds=1)
    double = run(job_of(Louder(inner=FedProx()), training={"optimizer": "sgd", "lr": 0.01}), rounds=1)
    for name, value in plain.server["model"]["params"].items():
        assert torch.allclose(double.server["inner"]["model"]["params"][name], value, atol=1e-6)


def test_a_users_file_is_a_method_like_any_other(own_file: Path) -> None:
    chosen = choose(str(own_file), {"decay": "0.3"})
    assert chosen.method.name == "shrink"
    assert describe(type(chosen.method))[0].default == 0.1
    recorder = run(job_of(chosen.method), rounds=1)
    assert recorder.metrics[0]["failed"] == []
    assert recorder.metrics[0]["phases"]["train"]["terms"]["decay"] > 0
    assert not same(recorder.server, run(job_of("fedavg"), rounds=1).server)
    with pytest.raises(ConfigError, match="unknown field of method 'shrink' 'decai': did you mean 'decay'"):
        choose(str(own_file), {"decai": 1})


def test_a_users_method_may_have_presets(own_file: Path) -> None:
    chosen = choose(f"{own_file}:strong")
    assert chosen.method.decay == 0.5  # type: ignore[attr-defined]
    assert dict(chosen.training) == {"lr": 0.01}
    with pytest.raises(ConfigError, match="unknown preset of method 'shrink' 'strnog': did you mean 'strong'"):
        choose(f"{own_file}:strnog")


def test_a_users_file_wins_over_a_method_of_the_same_name(own_file: Path) -> None:
    own_file.write_text(OWN_METHOD.format(name="fedprox"))
    assert type(choose(str(own_file)).method).__name__ == "Shrink"


def test_a_users_file_does_not_displace_a_module_of_the_same_name(tmp_path: Path) -> None:
    import wave

    file = tmp_path / "wave.py"
    file.write_text(OWN_METHOD.format(name="shrink"))
    try:
        choose(str(file))
        assert sys.modules["wave"] is wave
    finally:
        sys.modules["wave"] = wave


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = (", "cannot be loaded: SyntaxError"),
        ("import no_such_module_here", "cannot be loaded: ModuleNotFoundError"),
        ("x = 1", "defines 0 methods: expected one subclass of Method with a name"),
        (
            OWN_METHOD.format(name="one") + OWN_METHOD.format(name="two").replace("Shrink", "Grow"),
            "defines 2 methods: expected one",
        ),
    ],
)
def test_a_file_without_exactly_one_method_is_refused(own_file: Path, text: str, says: str) -> None:
    own_file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        choose(str(own_file))
