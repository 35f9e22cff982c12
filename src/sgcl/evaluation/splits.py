"""Which nodes a probe learns from, chooses on, and is judged on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch_geometric.data import Data

from sgcl.errors import InputError

TEST_SEEDS = range(1, 21)
"""Seeds of the 20 random splits that published figures use."""

TUNING_SEEDS = range(101, 121)
"""Seeds of the splits that recipes are tuned on."""

CHECK_SEEDS = range(201, 221)
"""Seeds of the splits of the second, independent probe."""


class Split(NamedTuple):
    """Node numbers of one division, three disjoint vectors."""

    train: Tensor
    val: Tensor
    test: Tensor


def as_classes(labels: Tensor | np.ndarray[Any, Any]) -> Tensor:
    """Labels ``[N]`` as int64 on the CPU.

    Raises:
        InputError: they are not whole numbers, or not a vector.
    """
    if not isinstance(labels, Tensor):
        labels = np.require(labels, requirements=["C", "W"])
        if labels.dtype.kind not in "iu":
            raise InputError(f"labels: must be integer classes, got {labels.dtype}")
        labels = torch.from_numpy(labels)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"labels: must be integer classes, got {labels.dtype}")
    if labels.dim() != 1:
        raise InputError(f"labels: must be [N], one per node, got shape {list(labels.shape)}")
    return labels.detach().cpu().long()


def random_splits(labels: Tensor | np.ndarray[Any, Any], seeds: Iterable[int] = TEST_SEEDS) -> list[Split]:
    """10 % train, 10 % validation, 80 % test of the labelled nodes, a division per seed, not stratified.

    scikit-learn's ``train_test_split`` twice with the same ``random_state``, as the official code does.

    Args:
        labels: classes ``[N]``; negative means unlabelled, and such nodes are in no part.
        seeds: one per split.

    Raises:
        InputError: labels are not classes, or fewer than ten nodes have one.
    """
    labelled = np.flatnonzero(as_classes(labels).numpy() >= 0)
    if len(labelled) < 10:
        raise InputError(f"splits: need at least 10 labelled nodes, got {len(labelled)}")
    splits = []
    for seed in seeds:
        rest, test = train_test_split(labelled, test_size=0.8, random_state=seed)
        train, val = train_test_split(rest, test_size=0.5, random_state=seed)
        splits.append(Split(*(torch.from_numpy(part) for part in (train, val, test))))
    return splits


def public_splits(data: Data) -> list[Split] | None:
    """The splits that come with a graph as PyG's masks (``[N]`` or ``[N, splits]``), or ``None``."""
    masks = [data.get(name) for name in ("train_mask", "val_mask", "test_mask")]
    if any(mask is None for mask in masks):
        return None
    columns = [mask.unsqueeze(1) if mask.dim() == 1 else mask for mask in masks]
    count = max(mask.shape[1] for mask in columns)
    columns = [mask.expand(-1, count) for mask in columns]
    return [Split(*(mask[:, i].nonzero().squeeze(1) for mask in columns)) for i in range(count)]


def splits_of(data: Data, seeds: Iterable[int] = TEST_SEEDS) -> list[Split]:
    """The public splits of a graph where it has them, else random ones."""
    return public_splits(data) or random_splits(data.y, seeds)


def check_splits(splits: Sequence[Split], labels: Tensor) -> None:
    """Refuse splits that overlap, are empty, or hold unlabelled or unknown nodes.

    Raises:
        InputError: naming the split and the part.
    """
    if not splits:
        raise InputError("splits: need at least one, got none")
    for number, split in enumerate(splits):
        for name, part in zip(split._fields, split, strict=True):
            if part.dtype != torch.int64:
                raise InputError(
                    f"splits: the {name} part of split {number} must hold node numbers (int64), got {part.dtype}"
                )
            if len(part) == 0:
                raise InputError(f"splits: the {name} part of split {number} is empty")
            if int(part.min()) < 0 or int(part.max()) >= len(labels):
                worst = int(part.min()) if int(part.min()) < 0 else int(part.max())
                raise InputError(f"splits: node {worst} in split {number} is not among the {len(labels)} labels")
            if bool((labels[part] < 0).any()):
                raise InputError(f"splits: the {name} part of split {number} holds unlabelled nodes")
        together = torch.cat(list(split))
        if len(together.unique()) != len(together):
            raise InputError(f"splits: split {number} has a node twice; train, val and test must be disjoint")
