"""Federated learning for sites that each hold few and skewed samples."""

from fewfed.data.examples import Dataset, Examples
from fewfed.errors import FewfedError
from fewfed.experiment import Experiment
from fewfed.method import Method
from fewfed.network import Network
from fewfed.results import Result
from fewfed.run import resume, run
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
    "Training",
    "__version__",
    "resume",
    "run",
]
