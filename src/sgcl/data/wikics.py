"""WikiCS: articles on computer science joined by their links (Mernyei & Cangea, 2020)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from sgcl.data.files import raw_folder
from sgcl.data.preprocess import normalize_rows, standardise_columns, symmetrise
from sgcl.errors import InputError

URL = "https://github.com/pmernyei/wiki-cs-dataset/raw/master/dataset/data.json"


def wikics() -> Data:
    """WikiCS with its public splits: ``train_mask`` and ``val_mask`` ``[N, 20]``, one ``test_mask`` ``[N]``.

    Features: minimum subtracted and rows divided by their sums, then columns standardised. Links are
    symmetrised; self-links stay. Order and content are those of the official code.
    """
    path = raw_folder("wikics", "WikiCS/raw", ["data.json"], URL) / "data.json"
    try:
        raw = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error})") from None
    x = _tensor(path, raw, "features", torch.float32)
    nodes = len(x)
    return Data(
        x=standardise_columns(normalize_rows(x)),
        edge_index=symmetrise(_links(path, raw, nodes), nodes),
        y=_per_node(path, "labels", _tensor(path, raw, "labels", torch.int64), nodes),
        train_mask=_per_node(path, "train_masks", _tensor(path, raw, "train_masks", torch.bool).T, nodes),
        val_mask=_per_node(path, "val_masks", _tensor(path, raw, "val_masks", torch.bool).T, nodes),
        test_mask=_per_node(path, "test_mask", _tensor(path, raw, "test_mask", torch.bool), nodes),
    )


def _links(path: Path, raw: dict[str, Any], nodes: int) -> Tensor:
    """Ordered pairs ``[2, E]`` from the list of targets of every node."""
    targets = _entry(path, raw, "links")
    if len(targets) != nodes:
        raise InputError(f"{path}: 'links' has {len(targets)} rows, but 'features' has {nodes}")
    counts = torch.tensor([len(row) for row in targets])
    receiver = torch.tensor([target for row in targets for target in row], dtype=torch.int64)
    if len(bad := receiver[(receiver < 0) | (receiver >= nodes)]):
        raise InputError(f"{path}: 'links' names node {bad[0]}, but there are {nodes} nodes (0 to {nodes - 1})")
    return torch.stack([torch.repeat_interleave(torch.arange(nodes), counts), receiver])


def _tensor(path: Path, raw: dict[str, Any], key: str, dtype: torch.dtype) -> Tensor:
    """The entry ``key`` as a tensor."""
    try:
        return torch.tensor(_entry(path, raw, key), dtype=dtype)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: {key!r} is not a regular array of numbers ({error})") from None


def _entry(path: Path, raw: dict[str, Any], key: str) -> Any:
    if key not in raw:
        raise InputError(f"{path}: {key!r} is missing; found {', '.join(map(repr, raw)) or 'nothing'}")
    return raw[key]


def _per_node(path: Path, key: str, values: Tensor, nodes: int) -> Tensor:
    """``values``, contiguous, if their first dimension counts the nodes."""
    if len(values) != nodes:
        raise InputError(f"{path}: {key!r} covers {len(values)} nodes, but 'features' has {nodes} rows")
    return values.contiguous()
