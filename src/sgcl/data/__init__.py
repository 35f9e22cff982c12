"""Where graphs come from: one door for benchmark sets, files, and Python objects."""

from sgcl.data.catalogue import DATASETS, Dataset
from sgcl.data.preprocess import reduce_features
from sgcl.data.source import Source, load_graph, open_source

__all__ = ["DATASETS", "Dataset", "Source", "load_graph", "open_source", "reduce_features"]
