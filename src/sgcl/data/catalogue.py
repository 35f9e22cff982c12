"""The data sets known by name, with their counts, origin and citation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch_geometric.data import Data

from sgcl.data.benchmarks import digits, shchur
from sgcl.data.ogb import arxiv, mag, products
from sgcl.data.wikics import wikics

_SHCHUR = "Shchur et al., Pitfalls of Graph Neural Network Evaluation, 2018"
_OGB = "Hu et al., Open Graph Benchmark, NeurIPS 2020"
_RANDOM = "20 random"


@dataclass(frozen=True)
class Dataset:
    """A graph known by name.

    Attributes:
        title: its full name.
        nodes: number of nodes.
        pairs: number of ordered pairs after loading, without self-loops unless noted.
        features: number of columns.
        classes: number of labels.
        splits: how its nodes are divided for evaluation.
        citation: what to cite.
        load: reads it.
    """

    title: str
    nodes: int
    pairs: int
    features: int
    classes: int
    splits: str
    citation: str
    load: Callable[[], Data]


DATASETS: dict[str, Dataset] = {
    "digits": Dataset(
        "scikit-learn's digits, 10-NN graph", 1_797, 27_510, 64, 10, _RANDOM,
        "Alpaydin & Kaynak, Optical Recognition of Handwritten Digits, UCI 1998", digits,
    ),
    "wikics": Dataset(
        "WikiCS", 11_701, 431_726, 300, 10, "20 public", "Mernyei & Cangea, Wiki-CS, 2020", wikics,
    ),
    "computers": Dataset(
        "Amazon Computers", 13_752, 491_722, 767, 10, _RANDOM, _SHCHUR,
        partial(shchur, "computers", "Computers/raw", "amazon_electronics_computers.npz"),
    ),
    "photo": Dataset(
        "Amazon Photo", 7_650, 238_162, 745, 8, _RANDOM, _SHCHUR,
        partial(shchur, "photo", "Photo/raw", "amazon_electronics_photo.npz"),
    ),
    "cs": Dataset(
        "Coauthor CS", 18_333, 163_788, 6_805, 15, _RANDOM, _SHCHUR,
        partial(shchur, "cs", "CS/raw", "ms_academic_cs.npz"),
    ),
    "physics": Dataset(
        "Coauthor Physics", 34_493, 495_924, 8_415, 5, _RANDOM, _SHCHUR,
        partial(shchur, "physics", "Physics/raw", "ms_academic_phy.npz"),
    ),
    "arxiv": Dataset("ogbn-arxiv", 169_343, 2_315_598, 128, 40, "by year", _OGB, arxiv),
    "mag": Dataset(
        "ogbn-mag, papers and citations", 736_389, 10_792_672, 128, 349, "by year", _OGB, mag
    ),
    "products": Dataset("ogbn-products", 2_449_029, 123_718_280, 100, 47, "by sales rank", _OGB, products),
}  # fmt: skip
