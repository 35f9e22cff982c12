"""Which checkpoint of a run is judged: two rules, never mixed.

Feed every checkpoint's embeddings to ``observe``, then ask for the ``score``. Rules that are asked about one run can
share the work of the probe: what one rule's ``judge`` returns, every rule's ``take`` understands.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from torch import Tensor

from sgcl.errors import InputError
from sgcl.evaluation.probe import Choice, LinearFit, Probe, ProbeConfig, Score, check_probe_input, read_test_labels
from sgcl.evaluation.splits import Split


class CheckpointRule(ABC):
    """Sees the checkpoints of a run and chooses among them.

    Args:
        labels: classes ``[N]``; negative means unlabelled.
        splits: see :func:`sgcl.evaluation.random_splits`.
        probe: the classifier, by default the linear one.
    """

    name: str

    def __init__(self, labels: Tensor, splits: Sequence[Split], probe: Probe | None = None) -> None:
        self.labels, self.splits, self.probe = labels, splits, probe or LinearFit(ProbeConfig())

    def observe(self, step: int, embeddings: Tensor) -> float:
        """Take note of a checkpoint; returns its mean validation accuracy in per cent."""
        found = self.judge(step, embeddings)
        self.take(found)
        return 100 * sum(one.val_accuracy for one in found) / len(found)

    def judge(self, step: int, embeddings: Tensor) -> list[Choice]:
        """What the probe chose and predicts, per split."""
        rows, labels = check_probe_input(embeddings, self.labels, self.splits)
        found = self.probe(rows, labels, self.splits)
        return [Choice(one.val_accuracy, {"step": step, **one.settings}, one.test_prediction) for one in found]

    @abstractmethod
    def take(self, found: Sequence[Choice]) -> None:
        """Keep of a judged checkpoint what the score may need."""

    @abstractmethod
    def score(self) -> Score:
        """Test accuracy of the chosen checkpoints.

        Raises:
            InputError: no checkpoint was seen.
        """


class Validation(CheckpointRule):
    """Each split chooses its own checkpoint and decay on its own validation nodes.

    Predictions for the test nodes are kept, not their accuracy: test labels are read once, by :meth:`score`.
    """

    name = "validation"
    _best: Sequence[Choice] = ()

    def take(self, found: Sequence[Choice]) -> None:
        """Keep, per split, the better of this checkpoint and the best so far (ties go to the earlier)."""
        self._best = [
            new if new.val_accuracy > old.val_accuracy else old
            for new, old in zip(found, self._best or found, strict=True)
        ]

    def score(self) -> Score:
        """Read the test labels."""
        if not self._best:
            raise InputError("protocol validation: no checkpoint was observed")
        return read_test_labels(self._best, self.labels, self.splits, self.name, self.probe.name)


class PaperBestTest(CheckpointRule):
    """The official code's rule: the checkpoint with the best mean *test* accuracy. Optimistic by construction.

    Decays are chosen on validation nodes; the checkpoint, the same for all splits, on the test set.
    """

    name = "paper_best_test"
    _best: Score | None = None

    def take(self, found: Sequence[Choice]) -> None:
        """Read the test labels and keep the checkpoint if it is the best so far."""
        score = read_test_labels(found, self.labels, self.splits, self.name, self.probe.name)
        if self._best is None or score.mean > self._best.mean:
            self._best = score

    def score(self) -> Score:
        """The best checkpoint's score."""
        if self._best is None:
            raise InputError("protocol paper_best_test: no checkpoint was observed")
        return self._best


PROTOCOLS: dict[str, Callable[[Tensor, Sequence[Split], Probe], CheckpointRule]] = {
    Validation.name: Validation,
    PaperBestTest.name: PaperBestTest,
}
