import json
import urllib.error
import urllib.request

import pytest
import torch

from sgcl.data.wikics import wikics
from sgcl.errors import InputError

NODES = 4


def article_graph():
    return {
        # Less the minimum -1: (0, 2, 0), (3, 0, 0), (0, 5, 0), (1, 0, 0); divided: (0, 1, 0) or (1, 0, 0).
        "features": [[-1.0, 1.0, -1.0], [2.0, -1.0, -1.0], [-1.0, 4.0, -1.0], [0.0, -1.0, -1.0]],
        "labels": [0, 1, 0, 2],
        "links": [[1], [0, 2], [2], []],
        "train_masks": [[split == node for node in range(NODES)] for split in range(20)],
        "val_masks": [[split == node + 1 for node in range(NODES)] for split in range(20)],
        "stopping_masks": [[False] * NODES] * 20,
        "test_mask": [False, False, True, True],
    }


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Writes a graph to where the loader looks for it."""
    monkeypatch.setenv("SGCL_DATA", str(tmp_path))

    def write(graph):
        (tmp_path / "WikiCS" / "raw").mkdir(parents=True, exist_ok=True)
        path = tmp_path / "WikiCS" / "raw" / "data.json"
        path.write_text(graph if isinstance(graph, str) else json.dumps(graph))
        return path

    return write


def test_features_links_and_splits(stored):
    stored(article_graph())
    data = wikics()
    # Columns of 0 and 1 in equal parts have mean and population deviation 1/2; the third is constant.
    assert data.x.tolist() == [[-1.0, 1.0, 0.0], [1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [1.0, -1.0, 0.0]]
    assert data.edge_index.tolist() == [[1, 0, 2, 1, 2], [0, 1, 1, 2, 2]]
    assert data.y.tolist() == [0, 1, 0, 2] and data.num_nodes == NODES
    assert data.train_mask.shape == data.val_mask.shape == (NODES, 20)
    assert torch.equal(data.train_mask, torch.eye(NODES, 20, dtype=torch.bool))
    assert data.val_mask.nonzero().tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert data.test_mask.tolist() == [False, False, True, True]
    assert data.edge_index.is_contiguous()
    assert (data.x.dtype, data.edge_index.dtype, data.y.dtype) == (torch.float32, torch.int64, torch.int64)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"links": [[1], [4], [], []]},
            r"data\.json: 'links' names node 4, but there are 4 nodes \(0 to 3\)",
        ),
        ({"links": [[1], [-2], [], []]}, r"'links' names node -2, but"),
        ({"links": [[1], [0]]}, r"'links' has 2 rows, but 'features' has 4"),
        ({"labels": [0, 1]}, r"'labels' covers 2 nodes, but 'features' has 4 rows"),
        ({"val_masks": [[True] * 5] * 20}, r"'val_masks' covers 5 nodes, but"),
        ({"test_mask": [True] * 3}, r"'test_mask' covers 3 nodes, but"),
        (
            {"features": [[1.0], [2.0, 3.0]]},
            r"'features' is not a regular array of numbers \(expected sequence",
        ),
        ({"labels": ["a", 1, 2, 3]}, r"'labels' is not a regular array of numbers"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(stored, change, sentence):
    stored(article_graph() | change)
    with pytest.raises(InputError, match=sentence):
        wikics()


def test_missing_entry_is_named_with_those_found(stored):
    graph = article_graph()
    del graph["train_masks"]
    stored(graph)
    with pytest.raises(InputError, match="'train_masks' is missing; found 'features', 'labels', 'links', 'val_masks'"):
        wikics()


def test_broken_file_is_named(stored):
    stored('{"features": [')
    with pytest.raises(InputError, match=r"data\.json: not valid JSON \(Expecting value"):
        wikics()


def test_missing_file_without_network(tmp_path, monkeypatch):
    def no_network(*_, **__):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    monkeypatch.setenv("SGCL_DATA", str(tmp_path))
    monkeypatch.setenv("SGCL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(
        InputError, match=r"wikics: 'data\.json' cannot be downloaded .*no network.*put it into .*WikiCS"
    ):
        wikics()
