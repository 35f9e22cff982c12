"""Linear probes: how much of the labels a linear classifier reads off frozen embeddings.

Shapes: ``N`` nodes, ``d`` columns, ``C`` classes, ``S`` splits, ``K`` decays, ``n`` nodes of a part of a split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits
from torch import Tensor

from sgcl.errors import InputError
from sgcl.evaluation.splits import Split, as_classes, check_splits

DECAYS = (5e-6, 1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3)
STRENGTHS = (1, 10, 100, 1000)
_BLOCK_BYTES = 256 << 20


@dataclass(frozen=True)
class ProbeConfig:
    """Settings of the linear classifier.

    Attributes:
        lr: learning rate of Adam.
        epochs: passes over the training nodes.
        decays: L2 penalties to choose from on validation nodes; ties go to the earlier one.
        batch_size: ``None`` trains on all nodes at once and takes the last epoch (the official code, five medium sets);
            a number trains on shuffled batches and takes the epoch best on validation (the official code, OGB sets).
        seed: of the initial weights, the same for all decays of a split, and of the batches.
    """

    lr: float = 0.05
    epochs: int = 100
    decays: Sequence[float] = DECAYS
    batch_size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.decays or not all(decay >= 0 for decay in self.decays):
            raise InputError(f"probe: decays must be one or more numbers of at least 0, got {self.decays!r}")
        for name in ("lr", "epochs"):
            if not getattr(self, name) > 0:
                raise InputError(f"probe: {name} must be positive, got {getattr(self, name)!r}")
        if self.batch_size is not None and self.batch_size < 1:
            raise InputError(f"probe: batch_size must be positive or None, got {self.batch_size!r}")


@dataclass(frozen=True)
class Score:
    """Test accuracy in per cent, over splits.

    Attributes:
        mean: over splits.
        std: population standard deviation over splits.
        per_split: one figure per split.
        chosen: per split, the settings chosen on its validation nodes, such as ``{"decay": 1e-4}``.
        protocol: how the choices were made.
        probe: which classifier.
    """

    per_split: list[float]
    chosen: list[dict[str, float]]
    protocol: str
    probe: str
    mean: float = field(init=False)
    std: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", float(np.mean(self.per_split)))
        object.__setattr__(self, "std", float(np.std(self.per_split)))

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.std:.2f} %"


@dataclass(frozen=True)
class Choice:
    """What a probe chose for one split, without having seen a test label.

    Attributes:
        val_accuracy: of the chosen classifier, in [0, 1].
        settings: the choice, such as ``{"decay": 1e-4}``.
        test_prediction: predicted classes of the split's test nodes ``[n]``.
    """

    val_accuracy: float
    settings: dict[str, float]
    test_prediction: Tensor


class Probe(Protocol):
    """A classifier that chooses its settings per split."""

    name: str

    def __call__(self, rows: Tensor, labels: Tensor, splits: Sequence[Split]) -> list[Choice]:
        """A choice per split, from unit rows ``[N, d]`` and classes ``[N]``."""


def linear_probe(
    embeddings: Tensor | np.ndarray[Any, Any],
    labels: Tensor | np.ndarray[Any, Any],
    splits: Sequence[Split],
    config: ProbeConfig | None = None,
) -> Score:
    """Judge embeddings by a linear classifier on unit rows, as the official code does.

    Each split chooses its decay on its validation nodes; then its test labels are read, once.

    Args:
        embeddings: ``[N, d]``.
        labels: classes ``[N]`` from 0; negative means unlabelled.
        splits: see :func:`sgcl.evaluation.random_splits`.
        config: settings of the classifier.

    Raises:
        InputError: shapes do not fit, values are not finite, or a split is not one.
    """
    probe = LinearFit(config or ProbeConfig())
    return judge(probe, embeddings, labels, splits)


def logistic_regression(
    embeddings: Tensor | np.ndarray[Any, Any],
    labels: Tensor | np.ndarray[Any, Any],
    splits: Sequence[Split],
    strengths: Sequence[float] = STRENGTHS,
) -> Score:
    """Judge embeddings by an exact multinomial logistic regression on unit rows; arguments as :func:`linear_probe`.

    ``strengths`` are the inverse penalties ``C`` of scikit-learn that each split chooses from on its validation nodes.
    """
    return judge(LogisticFit(strengths), embeddings, labels, splits)


def judge(
    probe: Probe,
    embeddings: Tensor | np.ndarray[Any, Any],
    labels: Tensor | np.ndarray[Any, Any],
    splits: Sequence[Split],
) -> Score:
    """Let ``probe`` choose per split, then read the test labels."""
    rows, classes = check_probe_input(embeddings, labels, splits)
    return read_test_labels(probe(rows, classes, splits), classes, splits, "validation", probe.name)


def read_test_labels(
    choices: Sequence[Choice], labels: Tensor, splits: Sequence[Split], protocol: str, probe: str
) -> Score:
    """Turn choices into a score: the one place where test labels meet predictions."""
    accuracy = [
        100 * (choice.test_prediction == labels[split.test]).double().mean().item()
        for choice, split in zip(choices, splits, strict=True)
    ]
    return Score(accuracy, [choice.settings for choice in choices], protocol, probe)


def check_probe_input(
    embeddings: Tensor | np.ndarray[Any, Any], labels: Tensor | np.ndarray[Any, Any], splits: Sequence[Split]
) -> tuple[Tensor, Tensor]:
    """Unit rows (float32) and classes (int64), or a sentence about what does not fit."""
    if not isinstance(embeddings, Tensor):
        embeddings = torch.from_numpy(np.require(embeddings, requirements=["C", "W"]))
    if embeddings.layout != torch.strided:
        raise InputError(f"probe: embeddings must be dense, got {embeddings.layout}; see sgcl.data.reduce_features")
    if embeddings.dim() != 2 or 0 in embeddings.shape:
        raise InputError(f"probe: embeddings must be [N, d], got shape {list(embeddings.shape)}")
    rows, classes = embeddings.detach().cpu().float(), as_classes(labels)
    if len(classes) != len(rows):
        raise InputError(f"probe: needs one label per row, got {len(classes)} labels for {len(rows)} rows")
    if not bool(torch.isfinite(rows).all()):
        row = int((~torch.isfinite(rows)).any(dim=1).nonzero()[0])
        raise InputError(f"probe: embeddings must be finite, row {row} is not")
    check_splits(splits, classes)
    if len(classes[classes >= 0].unique()) < 2:
        raise InputError("probe: needs at least two classes among the labels, got one")
    return F.normalize(rows, dim=1), classes


class LogisticFit:
    """scikit-learn's logistic regression, solved to convergence; one strength per split chosen on validation."""

    name = "logistic regression"

    def __init__(self, strengths: Sequence[float]) -> None:
        if not strengths or min(strengths) <= 0:
            raise InputError(f"logistic regression: strengths must be positive numbers, got {strengths!r}")
        self.strengths = strengths

    def __call__(self, rows: Tensor, labels: Tensor, splits: Sequence[Split]) -> list[Choice]:
        """A choice per split."""
        x, y = rows.numpy(), labels.numpy()
        for number, split in enumerate(splits):
            if len(labels[split.train].unique()) < 2:
                raise InputError(
                    f"logistic regression: the train part of split {number} holds one class, needs at least two; "
                    "use the linear probe, or splits with more labels"
                )
        # These products are too small for several threads, which would wait for each other most of the time; several
        # splits are not.
        with threadpool_limits(1), ThreadPoolExecutor(torch.get_num_threads()) as pool:
            return list(pool.map(lambda split: self._one(x, y, [part.numpy() for part in split]), splits))

    def _one(self, x: Any, y: Any, parts: list[Any]) -> Choice:
        train, val, test = parts
        best: Choice | None = None
        # scikit-learn's own tolerance stops well before the optimum where C is large. Each solution starts the search
        # for the next: the loss is convex, so the start does not matter.
        model = LogisticRegression(max_iter=20_000, tol=1e-6, warm_start=True)
        for strength in sorted(self.strengths):
            model.set_params(C=strength).fit(x[train], y[train])
            accuracy = float((model.predict(x[val]) == y[val]).mean())
            if best is None or accuracy > best.val_accuracy:
                best = Choice(accuracy, {"C": strength}, torch.from_numpy(model.predict(x[test])))
        assert best is not None
        return best


class LinearFit:
    """The official code's classifier: one linear layer, Adam with an L2 penalty in the gradient.

    All splits and decays are trained as one tensor program, in blocks of splits of bounded memory.
    """

    name = "linear probe"

    def __init__(self, config: ProbeConfig) -> None:
        self.config = config

    def __call__(self, rows: Tensor, labels: Tensor, splits: Sequence[Split]) -> list[Choice]:
        """A choice per split."""
        known = labels[labels >= 0].unique()  # class numbers may be large and have gaps
        classes, labels = len(known), torch.searchsorted(known, labels)
        widest = max(len(split.train) for split in splits)
        outputs = len(self.config.decays) * classes
        batch = min(widest, self.config.batch_size or widest)
        per_split = 4 * (widest * rows.shape[1] + 4 * batch * outputs + 5 * outputs * rows.shape[1])
        size = max(1, _BLOCK_BYTES // per_split)
        if self.config.batch_size and len({len(split.train) for split in splits}) > 1:
            size = 1  # padding a whole batch would be a step that a shorter split does not take
        choices: list[Choice] = []
        for start in range(0, len(splits), size):
            choices += self._block(rows, labels, splits[start : start + size], classes, start)
        return [replace(choice, test_prediction=known[choice.test_prediction]) for choice in choices]

    def _block(self, rows: Tensor, labels: Tensor, splits: Sequence[Split], classes: int, first: int) -> list[Choice]:
        """Train the classifiers of some splits, the first of which is number ``first``."""
        config = self.config
        generators = [torch.Generator().manual_seed(config.seed + first + i) for i in range(len(splits))]
        model = _Classifiers(rows.shape[1], classes, config, generators)
        widest = max(len(split.train) for split in splits)
        # Splits of unequal size are padded with node 0 at weight 0.
        nodes = torch.zeros(len(splits), widest, dtype=torch.int64)
        weight = torch.zeros(len(splits), widest)
        for i, split in enumerate(splits):
            nodes[i, : len(split.train)], weight[i, : len(split.train)] = split.train, 1.0
        if config.batch_size is None:
            x, y = rows[nodes], labels[nodes]
            for _ in range(config.epochs):
                model.step(x, y, weight)
            return [model.choose(i, rows, labels, split) for i, split in enumerate(splits)]
        best: list[Choice | None] = [None] * len(splits)
        for epoch in range(1, config.epochs + 1):
            for i, split in enumerate(splits):
                nodes[i, : len(split.train)] = split.train[torch.randperm(len(split.train), generator=generators[i])]
            for start in range(0, widest, config.batch_size):
                part = slice(start, start + config.batch_size)
                model.step(rows[nodes[:, part]], labels[nodes[:, part]], weight[:, part])
            for i, split in enumerate(splits):
                choice, kept = model.choose(i, rows, labels, split, {"epoch": epoch}), best[i]
                if kept is None or choice.val_accuracy > kept.val_accuracy:
                    best[i] = choice
        return [choice for choice in best if choice is not None]


class _Classifiers:
    """Linear layers ``[S, d, K·C]`` and ``[S, K·C]`` with PyTorch's initial values, and their Adam state."""

    def __init__(self, d: int, classes: int, config: ProbeConfig, generators: Sequence[torch.Generator]) -> None:
        bound = 1 / math.sqrt(d)
        decays = len(config.decays)
        drawn = [torch.empty(d + 1, classes).uniform_(-bound, bound, generator=g) for g in generators]
        start = torch.stack([one.repeat(1, decays) for one in drawn])
        self.weight, self.bias = start[:, :-1].contiguous(), start[:, -1:].contiguous()
        self.decay = torch.tensor(config.decays).repeat_interleave(classes)
        self.lr, self.decays, self.classes, self.updates = config.lr, config.decays, classes, 0
        self.state = [(torch.zeros_like(part), torch.zeros_like(part)) for part in (self.weight, self.bias)]

    def step(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        """One Adam step on nodes ``x`` ``[S, n, d]`` of classes ``y`` ``[S, n]``, with ``weight`` ``[S, n]``."""
        splits, n, _ = x.shape
        logits = torch.baddbmm(self.bias, x, self.weight).view(splits, n, len(self.decays), self.classes)
        # Gradient of the mean cross-entropy: (softmax - one hot) / n.
        error = logits.softmax(dim=3)
        error -= F.one_hot(y.clamp(min=0), self.classes).unsqueeze(2)
        error *= (weight / weight.sum(dim=1, keepdim=True).clamp(min=1)).view(splits, n, 1, 1)
        error = error.view(splits, n, -1)
        self.updates += 1
        for parameter, gradient, (first, second) in zip(
            (self.weight, self.bias), (x.mT @ error, error.sum(dim=1, keepdim=True)), self.state, strict=True
        ):
            gradient.addcmul_(parameter, self.decay)
            first.lerp_(gradient, 0.1)
            second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            size = (second / (1 - 0.999**self.updates)).sqrt_().add_(1e-8)
            parameter.addcdiv_(first, size, value=-self.lr / (1 - 0.9**self.updates))

    def choose(
        self, i: int, rows: Tensor, labels: Tensor, split: Split, settings: dict[str, float] | None = None
    ) -> Choice:
        """The decay of split ``i`` that is best on its validation nodes, with its predictions for the test nodes."""
        weight, bias = (part[i].view(-1, len(self.decays), self.classes) for part in (self.weight, self.bias))
        logits = (rows[split.val] @ weight.flatten(1)).view(-1, len(self.decays), self.classes) + bias
        accuracy = (logits.argmax(dim=2) == labels[split.val].unsqueeze(1)).double().mean(dim=0)
        best = int(accuracy.argmax())
        prediction = (rows[split.test] @ weight[:, best] + bias[:, best]).argmax(dim=1)
        return Choice(accuracy[best].item(), {"decay": self.decays[best], **(settings or {})}, prediction)


PROBES: dict[str, Callable[[ProbeConfig], Probe]] = {
    "linear": LinearFit,
    "logistic": lambda config: LogisticFit(STRENGTHS),
}
