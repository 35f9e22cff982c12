"""Node embeddings without labels, for any graph."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sgcl.augment import DropEdges, DropFeatures
    from sgcl.data import load_graph
    from sgcl.embedder import NodeEmbedder
    from sgcl.encoders import GCNEncoder
    from sgcl.errors import InputError, TrainingStopped
    from sgcl.evaluation import linear_probe
    from sgcl.graph import View
    from sgcl.methods import SGCL, Duo
    from sgcl.training import TrainConfig, train

__version__ = version("sgcl")

# Imported when first asked for, so that `sgcl --help` does not wait for torch.
_HOMES = {
    "SGCL": "methods",
    "DropEdges": "augment",
    "DropFeatures": "augment",
    "Duo": "methods",
    "GCNEncoder": "encoders",
    "InputError": "errors",
    "NodeEmbedder": "embedder",
    "TrainConfig": "training",
    "TrainingStopped": "errors",
    "View": "graph",
    "linear_probe": "evaluation",
    "load_graph": "data",
    "train": "training",
}

__all__ = [
    "SGCL",
    "DropEdges",
    "DropFeatures",
    "Duo",
    "GCNEncoder",
    "InputError",
    "NodeEmbedder",
    "TrainConfig",
    "TrainingStopped",
    "View",
    "linear_probe",
    "load_graph",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sgcl' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"sgcl.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
