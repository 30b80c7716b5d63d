"""The Davies-Bouldin score: how badly the classes are separated in feature space. Lower is better."""

from __future__ import annotations

import torch
from torch import Tensor


def davies_bouldin(features: Tensor, labels: Tensor) -> float | None:
    """Mean over classes of the worst (spread + spread) / distance to another class; None below two classes.

    A class's spread is the mean Euclidean distance of its rows to their centre. Two classes with the same centre and
    some spread cannot be told apart: the score is then infinite.
    """
    rows = features.flatten(1).double()
    present = torch.unique(labels)
    if len(present) < 2:
        return None
    members = [rows[labels == label] for label in present]
    centres = torch.stack([group.mean(0) for group in members])
    spreads = torch.stack([(group - group.mean(0)).norm(dim=1).mean() for group in members])
    ratio = (spreads[:, None] + spreads[None, :]) / torch.cdist(
        centres, centres, compute_mode="donot_use_mm_for_euclid_dist"
    )
    ratio.fill_diagonal_(0.0)
    return float(torch.nan_to_num(ratio, nan=0.0, posinf=torch.inf).max(1).values.mean())
