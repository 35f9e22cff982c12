"""Graph in, vectors out: the estimator that scikit-learn users expect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sgcl.data import Source, open_source
from sgcl.errors import InputError
from sgcl.graph import View
from sgcl.pipeline import METRICS, WEIGHTS, Run, Settings, build, pick_device, pick_precision, read_config, read_metrics
from sgcl.recipes import recipe_for
from sgcl.store import read_tensors
from sgcl.training import Step
from sgcl.tuning import TRIALS, Budget, Trial, tuned


class NodeEmbedder:
    """Learns vectors for the nodes of a graph, without labels.

    Settings left at ``None`` are the recipe's: the same for all graphs with ``"duo"``, the data set's own with
    ``"sgcl"`` where it is known. They are stored as given; what was learned ends in an underscore.

    Args:
        method: ``"duo"``, what SGCL learns beside the features themselves, both averaged over the graph; or ``"sgcl"``,
            the paper's; see ``sgcl methods``.
        dim: columns of the embeddings.
        steps: number of updates, or ``"auto"``: the recipe's, or fewer if label-free signals say that more would change
            little (:mod:`sgcl.stopping`).
        seed: same seed, same graph, same vectors (on one machine and number of threads).
        edge_drop: share of ordered pairs dropped per view.
        feature_drop: share of feature columns dropped per view.
        lr: peak learning rate.
        weight_decay: of AdamW.
        hidden: sizes of the layers before the last.
        minimise: push predictions and targets apart instead of together.
        tune: number of short runs (:data:`sgcl.tuning.STEPS` steps each) with other values of what is left at ``None``,
            compared without labels; the best one's values are then trained with. 0 does without.
        schedule: ``"short"``, or ``"paper"`` for the published number of steps.
        encoder: any module ``(x, edge_index) -> [N, d]`` instead of the graph convolutions; copied before training.
            With ``"duo"`` it reads features reduced to its ``in_channels`` and makes a part of the columns.
        directed: keep the directions of an own graph instead of adding the opposite ones.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ...
        precision: of products of dense matrices while training: ``"fp32"``, ``"bf16"``, or ``"auto"``, which is
            bfloat16 where the device multiplies it in hardware.

    Example:
        >>> from sgcl import NodeEmbedder
        >>> NodeEmbedder(dim=32, steps=5).fit_transform("digits").shape
        (1797, 32)
    """

    def __init__(
        self,
        method: str = "duo",
        dim: int | None = None,
        steps: int | Literal["auto"] = "auto",
        seed: int = 0,
        *,
        edge_drop: float | None = None,
        feature_drop: float | None = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        hidden: tuple[int, ...] | None = None,
        minimise: bool = False,
        tune: int = 0,
        schedule: str = "short",
        encoder: nn.Module | None = None,
        directed: bool = False,
        device: str = "auto",
        precision: str = "auto",
    ) -> None:
        self.method, self.dim, self.steps, self.seed = method, dim, steps, seed
        self.edge_drop, self.feature_drop, self.lr, self.weight_decay = (
            edge_drop,
            feature_drop,
            lr,
            weight_decay,
        )
        self.hidden, self.minimise, self.tune = hidden, minimise, tune
        self.schedule, self.encoder = schedule, encoder
        self.directed, self.device, self.precision = directed, device, precision

    def settings_for(self, graph_name: str) -> Settings:
        """What a run on the named graph would use.

        Raises:
            InputError: a setting is out of range.
        """
        if self.steps != "auto" and (not isinstance(self.steps, int) or self.steps < 1):
            raise InputError(f"steps: must be a whole number of at least 1, or 'auto', got {self.steps!r}")
        given = {
            "dim": self.dim,
            "steps": None if self.steps == "auto" else self.steps,
            "edge_drop": self.edge_drop,
            "feature_drop": self.feature_drop,
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            "hidden": None if self.hidden is None else tuple(self.hidden),
            "minimise": self.minimise or None,
        }
        if not isinstance(self.tune, int) or self.tune < 0:
            raise InputError(f"tune: must be a number of short runs, 0 for none, got {self.tune!r}")
        if self.tune and self.schedule == "paper":
            raise InputError("tune: would change the paper's own settings; leave tune or schedule='paper' out")
        if self.dim is not None and self.dim < 1:
            raise InputError(f"dim: must be at least 1, got {self.dim!r}")
        recipe = recipe_for(graph_name, self.schedule, self.method)
        return Settings(
            self.method,
            replace(recipe, **{name: value for name, value in given.items() if value is not None}),  # type: ignore[arg-type]
            self.seed,
            pick_precision(self.precision, pick_device(self.device)),
            early_stop=self.steps == "auto" and self.schedule != "paper",
        )

    def fit(
        self,
        graph: Any,
        features: Any = None,
        *,
        folder: Path | str | None = None,
        resume: bool = False,
        on_step: Callable[[Step], None] = lambda step: None,
        on_trial: Callable[[Trial], None] = lambda trial: None,
        should_stop: Callable[[], bool] = lambda: False,
        checkpoint_every: int = 100,
    ) -> NodeEmbedder:
        """Learn from a graph.

        Args:
            graph: PyG ``Data``, a SciPy sparse adjacency, a NetworkX graph, an ``[2, E]`` array,
                ``(graph, features)``, or a name: whatever :func:`sgcl.data.open_source` reads.
            features: ``[N, F]``, where the graph does not carry its own.
            folder: for metrics and checkpoints while training.
            resume: go on with the unfinished run in ``folder``, if there is one.
            on_step: called with every :class:`sgcl.training.Step`.
            on_trial: called with every :class:`sgcl.tuning.Trial`.
            should_stop: asked after every step; ``True`` leaves a checkpoint and stops.
            checkpoint_every: steps between checkpoints.

        Raises:
            InputError: the graph or a setting cannot be used.
        """
        source = open_source(graph, features, directed=self.directed)
        folder = None if folder is None else Path(folder)
        settings = self.settings_for(source.name)
        if self.tune:
            given = ("edge_drop", "feature_drop", "lr")
            fixed = frozenset(name for name in given if getattr(self, name) is not None)
            budget = Budget(self.tune, fixed, self.device, self.encoder)
            settings, self.trials_ = tuned(source, settings, budget, folder, resume, on_trial, should_stop)
        run = Run(
            source,
            settings,
            folder,
            self.device,
            self.encoder,
            checkpoint_every,
        )
        run(resume, on_step, should_stop)
        if folder and run.finished and not self.tune:
            (folder / TRIALS).unlink(missing_ok=True)  # of an earlier run, not of this one
        self.run_, self.method_, self.history_ = run, run.method, run.history
        self.settings_, self.in_channels_ = run.settings, source.data.x.shape[1]
        return self

    def transform(self, graph: Any, features: Any = None) -> NDArray[np.float32]:
        """Vectors ``[N, d]`` of any graph with the same feature columns: new nodes, no training.

        Raises:
            InputError: nothing was learned yet, or the features do not fit.
        """
        source = open_source(graph, features, directed=self.directed)
        return self.transform_source(source)

    def transform_source(self, source: Source) -> NDArray[np.float32]:
        """As :meth:`transform`, of a graph that is already open."""
        if not hasattr(self, "method_"):
            raise InputError("NodeEmbedder: nothing learned yet; call fit first, or NodeEmbedder.load")
        columns = source.data.x.shape[1]
        if columns != self.in_channels_:
            raise InputError(f"transform: the model knows {self.in_channels_} feature columns, the graph has {columns}")
        device = pick_device(self.device)
        vectors: NDArray[np.float32] = (
            self.method_.to(device).embed(View.of(source.data).to(device)).float().cpu().numpy()
        )
        return vectors

    def fit_transform(self, graph: Any, features: Any = None) -> NDArray[np.float32]:
        """:meth:`fit`, then the vectors of the same graph."""
        source = open_source(graph, features, directed=self.directed)
        return self.fit(source).transform_source(source)

    def save(self, folder: Path | str) -> None:
        """Write ``model.safetensors``, ``config.json`` and ``metrics.jsonl``.

        Raises:
            InputError: nothing was learned yet, or this embedder was itself loaded.
        """
        if not hasattr(self, "run_"):
            raise InputError("NodeEmbedder: nothing to save; call fit first")
        self.run_.save(Path(folder))

    @classmethod
    def load(cls, folder: Path | str, encoder: nn.Module | None = None, device: str = "auto") -> NodeEmbedder:
        """A saved embedder, ready to transform.

        Args:
            folder: what :meth:`save` or ``sgcl embed --model`` wrote.
            encoder: a module of the same architecture, needed only if the model was trained with an own encoder.
            device: see the class.

        Raises:
            InputError: the folder does not hold a model, or the weights do not fit.
        """
        folder = Path(folder)
        config = read_config(folder)
        settings, columns = Settings.from_dict(config["settings"]), int(config["graph"]["features"])
        if config["encoder"] == "custom" and encoder is None:
            raise InputError(
                f"{folder}: was trained with an own encoder; pass one of the same architecture as encoder="
            )
        recipe = settings.recipe
        embedder = cls(
            settings.method, recipe.dim, recipe.steps, settings.seed, edge_drop=recipe.edge_drop,
            feature_drop=recipe.feature_drop, lr=recipe.lr, weight_decay=recipe.weight_decay, hidden=recipe.hidden,
            minimise=recipe.minimise, encoder=encoder, device=device, precision=settings.precision,
        )  # fmt: skip
        weights, _ = read_tensors(folder / WEIGHTS)
        embedder.method_ = build(settings, columns, encoder)
        try:
            embedder.method_.encoder.load_state_dict(weights)
        except RuntimeError as error:
            raise InputError(f"{folder / WEIGHTS}: does not fit its config.json ({error})") from None
        embedder.settings_, embedder.in_channels_ = settings, columns
        embedder.history_ = read_metrics(folder / METRICS)
        return embedder

    def __repr__(self) -> str:
        return f"NodeEmbedder(method={self.method!r}, dim={self.dim}, steps={self.steps!r}, seed={self.seed})"
