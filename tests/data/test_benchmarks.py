import shutil
import urllib.error

import numpy as np
import pytest
import torch
from torch_geometric.datasets import Amazon, Coauthor
from torch_geometric.transforms import NormalizeFeatures
from torch_geometric.utils import is_undirected

from sgcl import InputError, load_graph
from sgcl.data import DATASETS
from sgcl.data.files import raw_folder
from sgcl.data.preprocess import sort_by_receiver
from sgcl.graph import is_csr

REAL = {
    "computers": (Amazon, "Computers"),
    "photo": (Amazon, "Photo"),
    "cs": (Coauthor, "CS"),
    "physics": (Coauthor, "Physics"),
}


def test_digits_needs_nothing_and_is_as_described():
    graph, described = load_graph("digits"), DATASETS["digits"]
    assert graph.num_nodes == described.nodes and graph.edge_index.shape[1] == described.pairs
    assert graph.x.shape[1] == described.features and int(graph.y.max()) + 1 == described.classes
    assert graph.x.min() == 0 and graph.x.max() == 1
    assert is_undirected(graph.edge_index) and not (graph.edge_index[0] == graph.edge_index[1]).any()
    degree = torch.bincount(graph.edge_index[1])
    assert degree.min() >= 10  # each has its ten nearest, and those it is nearest of
    unit = torch.nn.functional.normalize(graph.x, dim=1)
    nearest = set((unit @ unit[7]).topk(11).indices.tolist()) - {7}
    assert nearest <= set(graph.edge_index[0, graph.edge_index[1] == 7].tolist())


@pytest.mark.dataset
@pytest.mark.parametrize("name", REAL)
def test_counts_are_those_of_the_paper(real_data, name):
    graph, described = load_graph(name), DATASETS[name]
    assert graph.x.shape == (described.nodes, described.features)
    assert graph.edge_index.shape[1] == described.pairs
    assert int(graph.y.max()) + 1 == described.classes
    assert is_undirected(graph.edge_index)
    assert is_csr(graph.x) == (name in ("cs", "physics"))


@pytest.mark.dataset
@pytest.mark.parametrize("name", ["photo", "computers", "cs"])
def test_a_graph_is_what_pygs_loader_gives(real_data, tmp_path, name):
    loader, folder = REAL[name]
    shutil.copytree(real_data / folder, tmp_path / folder)
    theirs = NormalizeFeatures()(loader(str(tmp_path), folder)[0])
    ours = load_graph(name)
    torch.testing.assert_close(ours.x.to_dense() if is_csr(ours.x) else ours.x, theirs.x)
    assert torch.equal(ours.edge_index, sort_by_receiver(theirs.edge_index))
    assert torch.equal(ours.y, theirs.y)


@pytest.mark.dataset
def test_physics_has_empty_columns(real_data):
    x = load_graph("physics").x
    assert 8415 - len(x.col_indices().unique()) == 235


def test_missing_files_that_cannot_be_downloaded_take_one_sentence(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setenv("SGCL_DATA", str(tmp_path))
    with pytest.raises(InputError) as caught:
        load_graph("photo")
    message = str(caught.value)
    assert message.startswith("photo: 'amazon_electronics_photo.npz' cannot be downloaded from https://")
    assert message.endswith(f"put it into {tmp_path / 'Photo/raw'}") and "\n" not in message
    monkeypatch.delenv("SGCL_DATA")
    with pytest.raises(InputError, match="or into Photo/raw under a folder named by SGCL_DATA"):
        load_graph("photo")
    monkeypatch.setenv("SGCL_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"SGCL_DATA: '.*nowhere' is not a folder"):
        load_graph("photo")


def test_a_download_is_kept_and_found_again(monkeypatch, tmp_path):
    source = tmp_path / "there.npz"
    np.savez(source, a=np.arange(3))
    monkeypatch.delenv("SGCL_DATA", raising=False)
    monkeypatch.setenv("SGCL_CACHE", str(tmp_path / "cache"))
    for _ in range(2):
        folder = raw_folder("toy", "Toy/raw", ["there.npz"], source.as_uri())
        assert folder == tmp_path / "cache/data/Toy/raw" and [one.name for one in folder.iterdir()] == ["there.npz"]
        source.unlink(missing_ok=True)
