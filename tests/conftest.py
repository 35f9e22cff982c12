"""Fixtures: small graphs, and the real data sets where their files are."""

import os
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from sgcl.data import load_graph

_NAMED = os.environ.get("SGCL_DATA")
_BESIDE = Path(__file__).parents[2] / "shared" / "data"
DATA = Path(_NAMED) if _NAMED else _BESIDE if _BESIDE.is_dir() else None


@pytest.fixture(autouse=True)
def data_folder(monkeypatch, tmp_path_factory):
    """Real data where there is any; downloads never reach the user's cache."""
    if DATA:
        monkeypatch.setenv("SGCL_DATA", str(DATA))
    monkeypatch.setenv("SGCL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def real_data():
    if DATA is None:
        pytest.skip("no folder with the raw files: set SGCL_DATA")
    return DATA


@pytest.fixture
def tiny_graph():
    """Six nodes: a triangle, a pair, and an isolated one, symmetric; three features."""
    pairs = torch.tensor([[0, 1], [1, 2], [0, 2], [3, 4]]).T
    edge_index = torch.cat([pairs, pairs.flip(0)], dim=1)
    order = edge_index[1].argsort(stable=True)
    x = torch.tensor([[1.0, 0, 2], [0, 1, 0], [3, 1, 1], [0, 0, 1], [1, 1, 0], [2, 0, 1]])
    return Data(x=x, edge_index=edge_index[:, order], y=torch.tensor([0, 0, 0, 1, 1, 1]))


@pytest.fixture(scope="session")
def block_graph():
    """600 nodes of three classes that features alone tell apart badly."""
    return load_graph("synthetic:nodes=600,edges=6000,features=32,classes=3,seed=1")
