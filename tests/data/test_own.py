import logging

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data

from sgcl.data import load_graph, open_source
from sgcl.data.own import as_data
from sgcl.data.preprocess import csr_tensor
from sgcl.errors import InputError

# A path 0 - 1 - 2 with a branch 1 -> 3 and an isolated node 4. Sorted by receiver, then sender:
X = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 0.5], [0.0, 0.0]], dtype=np.float32)
ARROWS = [[0, 1, 1], [1, 2, 3]]
BOTH = [[1, 0, 2, 3, 1, 1], [0, 1, 1, 1, 2, 3]]
LABELS = [0, 1, 0, 1, -1]


def adjacency(kind=scipy.sparse.csr_matrix):
    return kind((np.ones(3), ARROWS), shape=(5, 5)) if kind is not scipy.sparse.lil_matrix else adjacency().tolil()


def networkx_graph(kind=nx.DiGraph, features=True):
    graph = kind()
    for i, name in enumerate(["ann", "ben", "cat", "dan", "eve"]):
        graph.add_node(name, **({"x": X[i]} if features else {}))
    graph.add_edges_from([("ann", "ben"), ("ben", "cat"), ("ben", "dan")])
    return graph


def pyg_graph(**parts):
    return Data(**{"x": torch.from_numpy(X.copy()), "edge_index": torch.tensor(ARROWS), **parts})


def arrays_file(folder, **arrays):
    path = folder / "mine.npz"
    np.savez(path, **arrays)
    return path


FORMS = {
    "PyG": lambda folder: pyg_graph(),
    "PyG without features": lambda folder: (Data(edge_index=torch.tensor(ARROWS)), X),
    "adjacency": lambda folder: (adjacency(), X),
    "COO array": lambda folder: (adjacency(scipy.sparse.coo_array), X),
    "LIL adjacency": lambda folder: (adjacency(scipy.sparse.lil_matrix), X.astype(np.float64)),
    "adjacency, sparse features": lambda folder: (adjacency(), scipy.sparse.csc_matrix(X)),
    "adjacency, torch CSR features": lambda folder: (adjacency(), csr_tensor(scipy.sparse.csr_matrix(X))),
    "adjacency, torch COO features": lambda folder: (adjacency(), torch.from_numpy(X).to_sparse()),
    "NetworkX": lambda folder: networkx_graph(nx.Graph),
    "NetworkX, directed": lambda folder: networkx_graph(nx.DiGraph),
    "NetworkX, multigraph": lambda folder: networkx_graph(nx.MultiGraph),
    "NetworkX without features": lambda folder: (networkx_graph(features=False), X),
    "array": lambda folder: (np.array(ARROWS, dtype=np.int32), X),
    "reversed view": lambda folder: (np.array(ARROWS[::-1])[::-1], X.tolist()),
    "list": lambda folder: (ARROWS, X),
    "tensor": lambda folder: (torch.tensor(ARROWS), torch.from_numpy(X)),
    "source": lambda folder: open_source(pyg_graph()),
    "npz": lambda folder: arrays_file(folder, edge_index=ARROWS, x=X),
    "npz, by name": lambda folder: str(arrays_file(folder, edge_index=ARROWS, x=X)),
    "npz without features": lambda folder: (arrays_file(folder, edge_index=ARROWS), X),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_graph(form, tmp_path):
    data = open_source(FORMS[form](tmp_path)).data
    assert data.edge_index.tolist() == BOTH and data.edge_index.dtype == torch.int64
    assert data.x.to_dense().tolist() == X.tolist() and data.x.dtype == torch.float32
    assert data.num_nodes == 5 and "y" not in data
    assert (data.x.layout == torch.sparse_csr) == ("sparse" in form or "torch C" in form)
    data.validate()


UNDIRECTED = ("source", "NetworkX", "NetworkX, multigraph")


@pytest.mark.parametrize("form", [form for form in FORMS if form not in UNDIRECTED])
def test_directed_graphs_keep_their_directions(form, tmp_path):
    assert open_source(FORMS[form](tmp_path), directed=True).data.edge_index.tolist() == ARROWS
    assert load_graph(FORMS[form](tmp_path), directed=True).edge_index.tolist() == ARROWS


def test_undirected_networkx_graphs_have_both_directions_in_any_case():
    assert as_data(networkx_graph(nx.Graph), directed=True)[0].edge_index.tolist() == BOTH


def test_a_source_is_handed_through():
    source = open_source(pyg_graph())
    assert open_source(source) is source and load_graph(source) is source.data
    assert str(source) == "own graph: 5 nodes, 6 ordered pairs, 2 features"


def test_names_of_nodes_become_ids():
    source = open_source(networkx_graph())
    assert source.ids.tolist() == source.node_ids.tolist() == ["ann", "ben", "cat", "dan", "eve"]
    assert open_source(pyg_graph()).ids is None
    assert open_source(pyg_graph()).node_ids.tolist() == [0, 1, 2, 3, 4]


def test_what_was_changed_is_logged(caplog):
    caplog.set_level(logging.INFO, "sgcl")
    as_data([[0, 0, 1, 2, 2, 3], [1, 1, 0, 2, 3, 3]], X)
    assert [record.getMessage() for record in caplog.records] == [
        "removed 2 self-loops (the encoder adds one per node)",
        "merged 1 duplicate pairs",
        "added 1 opposite directions to make the graph undirected",
    ]


def test_nothing_is_logged_where_nothing_changed(caplog):
    caplog.set_level(logging.INFO, "sgcl")
    as_data(BOTH, X)
    as_data(ARROWS, X, directed=True)
    as_data(networkx_graph(nx.Graph))
    assert not caplog.records


def test_a_loop_of_an_undirected_networkx_graph_is_one(caplog):
    caplog.set_level(logging.INFO, "sgcl")
    graph = networkx_graph(nx.Graph)
    graph.add_edge("ann", "ann")
    assert as_data(graph)[0].edge_index.tolist() == BOTH
    assert [record.getMessage() for record in caplog.records] == [
        "removed 1 self-loops (the encoder adds one per node)"
    ]


def test_unused_weights_are_said_to_be(caplog):
    weighted = adjacency().copy()
    weighted.data[:] = [1, 2, 1]
    as_data(weighted, X)
    as_data(pyg_graph(edge_weight=torch.ones(3)))
    graph = networkx_graph()
    graph.edges["ann", "ben"]["weight"] = 2.0
    as_data(graph)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "weights in the adjacency are not used: every stored entry counts as one edge",
        "edge weights and attributes are not used",
        "edge weights are not used",
    ]


def test_stored_zeros_of_an_adjacency_are_no_edges():
    matrix = scipy.sparse.csr_matrix((np.array([1.0, 1.0, 0.0, 1.0]), ([0, 1, 3, 1], [1, 2, 4, 3])), shape=(5, 5))
    assert as_data(matrix, X)[0].edge_index.tolist() == BOTH


def test_labels_and_masks_travel_along():
    masks = {"train_mask": torch.eye(5, 2).bool(), "test_mask": torch.ones(5, dtype=torch.bool)}
    data, _ = as_data(pyg_graph(y=torch.tensor(LABELS).unsqueeze(1), **masks))
    assert data.y.tolist() == LABELS
    assert torch.equal(data.train_mask, masks["train_mask"]) and torch.equal(data.test_mask, masks["test_mask"])
    assert as_data(ARROWS, X, LABELS)[0].y.tolist() == LABELS
    assert open_source((ARROWS, X), labels=np.array(LABELS, dtype=np.int8)).data.y.dtype == torch.int64
    assert as_data(pyg_graph(y=torch.zeros(5)), labels=LABELS)[0].y.tolist() == LABELS  # those given come first


def test_features_given_come_before_those_of_the_graph():
    assert as_data(pyg_graph(), 2 * X)[0].x.tolist() == (2 * X).tolist()


def test_targets_that_are_no_classes_do_not_keep_a_graph_from_being_learned(caplog):
    data, _ = as_data(pyg_graph(y=torch.rand(5, 3)))
    assert "y" not in data
    assert caplog.messages == [
        "what the graph has as y is left out (labels: need one per node, got shape [5, 3] for 5 nodes)"
    ]


@pytest.mark.filterwarnings("error")
def test_inputs_are_left_unchanged_and_may_be_read_only():
    pairs, x = np.array([[0, 0, 1, 2, 3], [1, 1, 0, 2, 1]]), X.copy()
    matrix = adjacency()
    given = pyg_graph(edge_index=torch.from_numpy(pairs.copy()))
    before = given.clone()
    pairs.flags.writeable = x.flags.writeable = matrix.data.flags.writeable = False
    as_data(pairs, x)
    as_data(matrix, scipy.sparse.csr_matrix(x))
    as_data(given)
    assert given.keys() == before.keys()
    assert torch.equal(given.edge_index, before.edge_index) and torch.equal(given.x, before.x)


@pytest.mark.parametrize("dtype", [">f4", "f2", "i8", "u1", "?"])
def test_features_of_any_real_type(dtype):
    assert as_data(ARROWS, (X > 0).astype(dtype))[0].x.tolist() == (X > 0).astype(float).tolist()


def spoiled(value):
    x = X.copy()
    x[3, 1] = value
    return x


def without_x(name):
    graph = networkx_graph()
    del graph.nodes[name]["x"]
    return graph


def ragged():
    graph = networkx_graph()
    graph.nodes["cat"]["x"] = [1.0]
    return graph


FILL = "; fill or drop such values"
RANGE = r"edge_index: node numbers must lie in 0 to 4 \(the features have 5 rows\), got "
BAD = {
    "too high": (([[0, 1], [1, 5]], X), RANGE + "1 -> 5 in column 1"),
    "negative": (([[-1, 9, 1], [1, 1, 2]], X), RANGE + "-1 -> 1 in column 0 and 1 more such pairs"),
    "adjacency of more nodes": ((scipy.sparse.eye(6).tocsr(), X),
                                r"graph: has 6 nodes, but the features have 5 rows; they must agree"),
    "num_nodes": ((pyg_graph(num_nodes=7), X), r"graph: has 7 nodes, but the features have 5 rows; they must agree"),
    "fewer features": ((pyg_graph(), X[:4]), r"graph: has 5 nodes, but the features have 4 rows; they must agree"),
    "NetworkX nodes": ((networkx_graph(), X[:4]), r"graph: has 5 nodes, but the features have 4 rows; they must agree"),
    "NaN": ((ARROWS, spoiled(np.nan)), r"features: must be finite, got nan in row 3, column 1" + FILL),
    "infinite": ((ARROWS, spoiled(-np.inf).astype(np.float64)),
                 r"features: must be finite, got -inf in row 3, column 1" + FILL),
    "sparse NaN": ((ARROWS, scipy.sparse.csr_matrix(spoiled(np.nan))),
                   r"features: must be finite, got nan in row 3, column 1" + FILL),
    "PyG NaN": ((pyg_graph(x=torch.from_numpy(spoiled(np.inf))), None),
                r"features: must be finite, got inf in row 3, column 1" + FILL),
    "empty": ((np.empty((2, 0), dtype=int), X[:0]), r"graph: is empty, 0 nodes; embeddings need at least 2"),
    "one node": (([[0], [0]], X[:1]), r"graph: has one node; embeddings need at least 2, as they tell nodes apart"),
    "no features": ((ARROWS, None), r"graph: has no features; give an \[N, F\] matrix .*OneHotDegree\)"),
    "no features in PyG": ((Data(edge_index=torch.tensor(ARROWS)), None), r"graph: has no features; .*OneHotDegree\)"),
    "no columns": ((ARROWS, X[:, :0]), r"features: have 0 columns; give at least one"),
    "one dimension": ((ARROWS, X[:, 0]), r"features: must be \[N, F\], a row per node, got shape \[5\]"),
    "words": ((ARROWS, [["a"]] * 5), r"features: must be numbers, got an array of <U1"),
    "objects": ((ARROWS, np.array([[None]] * 5)), r"features: must be numbers, got an array of object"),
    "complex": ((ARROWS, X * 1j), r"features: must be real numbers, got torch\.complex64"),
    "ragged features": ((ARROWS, [[1.0], [1.0, 2.0]]), r"features: cannot be read as an array \(.*inhomogeneous.*\)"),
    "no edges": (([[], []], X), r"graph: has no edges between different nodes \(5 nodes, 0 self-loops\); there is .*"),
    "only loops": (([[1, 2], [1, 2]], X),
                   r"graph: has no edges between different nodes \(5 nodes, 2 self-loops\); there is nothing .*"),
    "no edge_index": ((pyg_graph(edge_index=None), None),
                      r"graph: the Data object has no edge_index; give ordered pairs \[2, E\]"),
    "transposed": ((np.array(ARROWS).T, X),
                   r"edge_index: must be \[2, E\], senders over receivers, got shape \[3, 2\]; transpose it"),
    "flat": ((np.arange(4), X), r"edge_index: must be \[2, E\], senders over receivers, got shape \[4\]"),
    "float pairs": ((np.array(ARROWS, dtype=float), X), r"edge_index: must hold integers, got torch\.float64"),
    "named pairs": (([["a"], ["b"]], X), r"edge_index: must be numbers, got an array of <U1"),
    "ragged pairs": (([[0, 1], [1]], X), r"edge_index: cannot be read as an array \(.*inhomogeneous.*\)"),
    "non-square": ((scipy.sparse.csr_matrix(np.ones((5, 4))), X),
                   r"graph: an adjacency must be square, got shape \[5, 4\]"),
    "node without x": ((without_x("cat"), None),
                       r"graph: node 'cat' has no attribute 'x'; every node needs a feature vector, or none"),
    "ragged x": ((ragged(), None), r"graph: the attributes 'x' must be numeric vectors of one length \(.*\)"),
    "short labels": ((ARROWS, X, [0, 1]), r"labels: need one per node, got shape \[2\] for 5 nodes"),
    "float labels": ((ARROWS, X, np.ones(5)), r"labels: must be integer classes, got torch\.float64"),
    "word labels": ((ARROWS, X, list("abcde")), r"labels: must be numbers, got an array of <U1"),
    "short mask": ((pyg_graph(train_mask=torch.ones(3)), None),
                   r"train_mask: must be \[N\] or \[N, splits\], got shape \[3\] for 5 nodes"),
    "dictionary": (({0: [1]}, X), r"graph: cannot read a builtins\.dict; give PyG Data, .* or the name of a data set"),
}  # fmt: skip


@pytest.mark.parametrize("arguments, sentence", BAD.values(), ids=BAD)
def test_what_is_no_graph(arguments, sentence):
    with pytest.raises(InputError, match=f"^{sentence}$"):
        as_data(*arguments)


def test_unknown_names_are_answered_with_the_known_ones():
    known = "digits, wikics, computers, photo, cs, physics, arxiv, mag, products"
    sentence = rf"^graph: 'foto' is not known; give one of {known}, synthetic:\.\.\., or a file ending in \.npz$"
    with pytest.raises(InputError, match=sentence):
        open_source("foto")


@pytest.mark.parametrize("name", ["digits", "synthetic:nodes=20,edges=40"])
def test_named_graphs_do_not_silently_ignore_other_features(name):
    with pytest.raises(
        InputError, match=rf"^graph: '{name}' has features and labels of its own; for others, give load"
    ):
        open_source(name, X)
    with pytest.raises(InputError, match=rf"^graph: '{name}' has features and labels of its own"):
        open_source(name, labels=LABELS)


def test_fingerprint_tells_graphs_apart_and_knows_one_again():
    graphs = [pyg_graph(), pyg_graph(x=torch.from_numpy(2 * X)), (BOTH[::-1], scipy.sparse.csr_matrix(X)),
              ([[0], [1]], X)]  # fmt: skip
    marks = [open_source(graph).fingerprint for graph in graphs]
    assert len(set(marks)) == 4 and all(len(mark) == 16 for mark in marks)
    assert open_source((BOTH, X)).fingerprint == marks[0]
