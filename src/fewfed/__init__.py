"""Federated learning for sites that each hold few and skewed samples."""

from typing import TYPE_CHECKING, Any

from fewfed.data.examples import Dataset, Examples
from fewfed.errors import FewfedError
from fewfed.method import Method
from fewfed.network import Network
from fewfed.privacy.door import attack
from fewfed.runs.advising import advise
from fewfed.runs.api import compare, explain, resume, run, show, tune, write_report
from fewfed.runs.experiment import Experiment
from fewfed.runs.results import Result
from fewfed.trained.loading import load
from fewfed.trained.model import TrainedModel
from fewfed.training import Training
from fewfed.version import __version__

if TYPE_CHECKING:
    from fewfed.estimator import FewFed

__all__ = [
    "Dataset",
    "Examples",
    "Experiment",
    "FewFed",
    "FewfedError",
    "Method",
    "Network",
    "Result",
    "TrainedModel",
    "Training",
    "__version__",
    "advise",
    "attack",
    "compare",
    "explain",
    "load",
    "resume",
    "run",
    "show",
    "tune",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """What would load scikit-learn is imported by whoever asks for it."""
    if name == "FewFed":
        from fewfed.estimator import FewFed

        return FewFed
    raise AttributeError(f"module 'fewfed' has no attribute '{name}'")
