import gzip
import io
import urllib.error
import urllib.request
import zipfile

import pytest
import torch

from sgcl.data.ogb import arxiv, mag, products
from sgcl.errors import InputError

ARXIV = {
    "raw/num-node-list": "4\n",
    "raw/edge": "2,0\n0,2\n0,1\n0,1\n3,3\n",
    "raw/node-feat": "0.5,-1\n1e-3,2\n-0.25,0\n3,4\n",
    "raw/node-label": "3\n0\n1\n3\n",
    "split/time/train": "2\n0\n",
    "split/time/valid": "1\n",
    "split/time/test": "3\n",
}
PRODUCTS = {
    "raw/num-node-list": "3\n",
    "raw/edge": "0,1\n2,2\n2,1\n",
    "raw/node-feat": "1.5,2.5\n-3,0\n0,1\n",
    "raw/node-label": "1\n0\n1\n",
    "split/sales_ranking/train": "0\n",
    "split/sales_ranking/valid": "1\n",
    "split/sales_ranking/test": "2\n",
}
MAG = {
    "raw/num-node-dict": "author,field_of_study,institution,paper\n7,5,2,3\n",
    "raw/relations/paper___cites___paper/edge": "0,1\n2,1\n",
    "raw/node-feat/paper/node-feat": "-1,1\n0,3\n-1,-1\n",
    "raw/node-label/paper/node-label": "348\n2\n0\n",
    "split/time/paper/train": "0\n",
    "split/time/paper/valid": "1\n",
    "split/time/paper/test": "2\n",
}


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Writes files in OGB's raw layout to where the loaders look for them."""
    monkeypatch.setenv("SGCL_DATA", str(tmp_path))

    def write(folder, files):
        for name, text in files.items():
            path = tmp_path / folder / f"{name}.csv.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else gzip.compress(text.encode()))

    return write


def test_arxiv_keeps_features_and_symmetrises(stored):
    stored("ogbn_arxiv", ARXIV)
    data = arxiv()
    assert torch.equal(data.x, torch.tensor([[0.5, -1.0], [1e-3, 2.0], [-0.25, 0.0], [3.0, 4.0]]))
    assert data.edge_index.tolist() == [[1, 2, 0, 0, 3], [0, 0, 1, 2, 3]]
    assert data.y.tolist() == [3, 0, 1, 3] and data.num_nodes == 4
    assert data.train_mask.tolist() == [True, False, True, False]
    assert data.val_mask.tolist() == [False, True, False, False]
    assert data.test_mask.tolist() == [False, False, False, True]
    assert data.edge_index.is_contiguous()
    assert (data.x.dtype, data.edge_index.dtype, data.y.dtype) == (torch.float32, torch.int64, torch.int64)


def test_mag_reads_papers_and_normalises_their_rows(stored):
    stored("ogbn_mag", MAG)
    data = mag()
    # Less the minimum -1: (0, 2), (1, 4), (0, 0).
    torch.testing.assert_close(data.x, torch.tensor([[0.0, 1.0], [0.2, 0.8], [0.0, 0.0]]))
    assert data.edge_index.tolist() == [[1, 0, 2, 1], [0, 1, 1, 2]]
    assert data.y.tolist() == [348, 2, 0]
    assert data.test_mask.tolist() == [False, False, True]


def test_products_stores_every_line_of_the_file_in_both_directions(stored):
    stored("ogbn_products", PRODUCTS)
    data = products()
    assert data.x.tolist() == [[1.5, 2.5], [-3.0, 0.0], [0.0, 1.0]]
    assert data.edge_index.tolist() == [[1, 0, 2, 1, 2, 2], [0, 1, 1, 2, 2, 2]]
    assert data.edge_index.is_contiguous() and data.val_mask.tolist() == [False, True, False]


def test_missing_labels_become_minus_one(stored):
    stored("ogbn_arxiv", ARXIV | {"raw/node-label": "3.0\nnan\n1.0\nNaN\n"})
    assert arxiv().y.tolist() == [3, -1, 1, -1]


def test_a_file_of_many_blocks_is_read_in_order(stored):
    nodes, columns = 20_000, 64
    rows = "\n".join(",".join([f"{node}.125"] * columns) for node in range(nodes))
    stored("ogbn_arxiv", ARXIV | {"raw/num-node-list": str(nodes), "raw/node-feat": rows})
    stored("ogbn_arxiv", {"raw/node-label": "0\n" * nodes})
    assert torch.equal(arxiv().x, (torch.arange(nodes) + 0.125)[:, None].expand(-1, columns))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"raw/edge": "0,1\n3,4\n"},
            r"raw/edge\.csv\.gz: line 2 names node 4, but there are 4 nodes \(0 to 3\)",
        ),
        ({"raw/edge": "-1,1\n"}, r"raw/edge\.csv\.gz: line 1 names node -1, but"),
        ({"raw/edge": "0,1,2\n"}, r"raw/edge\.csv\.gz: number of columns must be 2, got 3"),
        (
            {"raw/edge": "0,1\n0,\n"},
            r"edge\.csv\.gz: cannot be read as a table of int64 \(.*invalid value ''",
        ),
        (
            {"raw/edge": "0,1\n0,x\n"},
            r"edge\.csv\.gz: cannot be read as a table of int64 \(.*invalid value 'x'",
        ),
        ({"raw/edge": ""}, r"edge\.csv\.gz: cannot be read as a table of int64 \(Empty CSV file\)"),
        ({"raw/edge": b"0,1\n"}, r"edge\.csv\.gz: cannot be read as a table of int64 \(Not a gzipped file"),
        (
            {"raw/edge": gzip.compress(b"0,1\n" * 99)[:-12]},
            r"edge\.csv\.gz: cannot be read as a table of int64",
        ),
        (
            {"raw/num-node-list": "5\n"},
            r"node-feat\.csv\.gz: 4 rows, but raw/num-node-list\.csv\.gz counts 5 nodes",
        ),
        (
            {"raw/node-label": "0\n1\n"},
            r"node-label\.csv\.gz: 2 rows, but raw/num-node-list\.csv\.gz counts 4",
        ),
        ({"raw/node-label": "0\n1\n2.5\n0\n"}, r"node-label\.csv\.gz: line 3 is no class number: 2\.5"),
        ({"raw/node-label": "0\n-3\n2\n0\n"}, r"node-label\.csv\.gz: line 2 is no class number: -3"),
        (
            {"raw/node-feat": "1,2\n3,\n5,6\n7,8\n"},
            r"node-feat\.csv\.gz: cannot be read as a table of float32",
        ),
        (
            {"raw/num-node-list": "4\n6\n"},
            r"num-node-list\.csv\.gz: must hold the number of nodes, got '4\\n6'",
        ),
        ({"raw/num-node-list": b"4\n"}, r"num-node-list\.csv\.gz: cannot be read \(Not a gzipped file"),
        (
            {"raw/num-node-list": "many\n"},
            r"num-node-list\.csv\.gz: must hold the number of nodes, got 'many'",
        ),
        (
            {"split/time/valid": "1\n9\n"},
            r"split/time/valid\.csv\.gz: line 2 names node 9, but there are 4 nodes",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_named(stored, change, sentence):
    stored("ogbn_arxiv", ARXIV | change)
    with pytest.raises(InputError, match=sentence):
        arxiv()


def test_mag_needs_the_number_of_papers(stored):
    stored("ogbn_mag", MAG | {"raw/num-node-dict": "author\n7\n"})
    with pytest.raises(InputError, match=r"num-node-dict\.csv\.gz: must hold the number of nodes, got 'author\\n7'"):
        mag()


def test_the_archive_unpacks_to_where_it_is_looked_for(tmp_path, monkeypatch):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as out:
        for name, text in ARXIV.items():
            out.writestr(f"arxiv/{name}.csv.gz", gzip.compress(text.encode()))
    asked = []

    def urlopen(url, **_):
        asked.append(url)
        return io.BytesIO(archive.getvalue())

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    monkeypatch.delenv("SGCL_DATA", raising=False)
    monkeypatch.setenv("SGCL_CACHE", str(tmp_path))
    assert arxiv().num_nodes == arxiv().num_nodes == 4
    assert asked == ["https://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"]


@pytest.mark.parametrize("load", [arxiv, mag, products])
def test_missing_files_without_network(load, tmp_path, monkeypatch):
    def no_network(*_, **__):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    monkeypatch.setenv("SGCL_DATA", str(tmp_path))
    monkeypatch.setenv("SGCL_CACHE", str(tmp_path / "cache"))
    name = load.__name__
    sentence = rf"{name}: the files 'raw/num-node-\w+\.csv\.gz', .* cannot be downloaded from https://\S+/{name}\.zip"
    with pytest.raises(InputError, match=rf"{sentence} \(.*no network.*put them into .*ogbn_{name}"):
        load()
