"""Judging embeddings: splits, probes, protocols, training-free baselines and label-free diagnostics.

Knows embeddings, labels and splits; not how embeddings were made.
"""

from sgcl.evaluation.baselines import average_hops, training_free
from sgcl.evaluation.diagnostics import diagnose
from sgcl.evaluation.probe import DECAYS, PROBES, ProbeConfig, Score, linear_probe, logistic_regression
from sgcl.evaluation.protocols import PROTOCOLS, CheckpointRule, PaperBestTest, Validation
from sgcl.evaluation.splits import (
    CHECK_SEEDS,
    TEST_SEEDS,
    TUNING_SEEDS,
    Split,
    public_splits,
    random_splits,
    splits_of,
)

__all__ = [
    "CHECK_SEEDS",
    "DECAYS",
    "PROBES",
    "PROTOCOLS",
    "TEST_SEEDS",
    "TUNING_SEEDS",
    "CheckpointRule",
    "PaperBestTest",
    "ProbeConfig",
    "Score",
    "Split",
    "Validation",
    "average_hops",
    "diagnose",
    "linear_probe",
    "logistic_regression",
    "public_splits",
    "random_splits",
    "splits_of",
    "training_free",
]
