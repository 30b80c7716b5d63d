"""Federated learning for sites that each hold few and skewed samples."""

from fewfed.data.examples import Dataset, Examples
from fewfed.errors import FewfedError
from fewfed.method import Method
from fewfed.network import Network
from fewfed.privacy.door import attack
from fewfed.runs.api import compare, explain, resume, run, show, tune
from fewfed.runs.experiment import Experiment
from fewfed.runs.results import Result
from fewfed.trained.loading import load
from fewfed.trained.model import TrainedModel
from fewfed.training import Training
from fewfed.version import __version__

__all__ = [
    "Dataset",
    "Examples",
    "Experiment",
    "FewfedError",
    "Method",
    "Network",
    "Result",
    "TrainedModel",
    "Training",
    "__version__",
    "attack",
    "compare",
    "explain",
    "load",
    "resume",
    "run",
    "show",
    "tune",
]
