"""The model that a run ended with, at the site: in a folder that `fewfed predict` and `fewfed export` take."""

from __future__ import annotations

import shutil
from pathlib import Path

from fewfed.deploy.site.work import Work
from fewfed.engine import scoring
from fewfed.engine.job import Job
from fewfed.errors import RunError
from fewfed.runs.blueprint import Blueprint, NetworkRecipe, changes_inputs
from fewfed.runs.folder import RESULT, RunFolder
from fewfed.runs.identity import weights_of
from fewfed.runs.results import Result, summarise
from fewfed.runs.scaling import InputScaling
from fewfed.runs.user_code import code_of
from fewfed.tree import Tree

MODEL = "model"


def keep_model(path: Path, work: Work, job: Job, scaling: InputScaling, model: Tree) -> None:
    """Write a folder with the model and what it does on the site's own test rows, unless it is there.

    One without a result was left by a process that was killed, or by a full disk, and is written anew.
    """
    if (path / RESULT).exists():
        return
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RunError(f"'{path}' is in the way of the model and cannot be removed: {error}") from error
    resolved, offer = work.resolved, work.offer
    experiment = resolved.experiment
    blueprint = Blueprint(
        task="segmentation" if offer.task == "segmentation" else "classification",
        outputs=len(offer.classes),
        class_names=offer.classes,
        shape=tuple(offer.shape),
        inputs=work.dataset.inputs,
        scaling=scaling,
        network=NetworkRecipe("built-in", job.net.name),
        clients=1,
        sites=(work.name,),
        presents=changes_inputs(job.method),
    )
    inputs = {"code": code_of(resolved.spec), "weights": weights_of(job.net)}
    config = {**resolved.as_json(), "label": job.method.label, "inputs": inputs}
    folder = RunFolder.create(path, config, {"split": "site", "clients": 1}, blueprint.as_json())
    folder.restore(lambda _: None, experiment.rounds)
    scored = scoring.evaluate(job, model).metrics() if len(job.federation.test) else {"accuracy": None}
    nothing = {"up": 0, "down": 0}
    folder.append({"round": 1, "bytes": nothing, "steps": 0, "seconds": 0.0, "failed": [], "events": [], **scored})
    result = Result(
        method=job.method.label,
        preset=resolved.chosen.preset,
        data=experiment.data,
        split=experiment.split,
        clients=1,
        rounds=1,
        seed=experiment.seed,
        folder=str(path),
        note=f"the model of a federation of {len(offer.sites)} sites, scored on the rows of '{work.name}'",
        **summarise(folder.metrics()),
    )
    folder.finish(model, {"test_rows": len(job.federation.test), "metrics": scored}, result.as_json())
