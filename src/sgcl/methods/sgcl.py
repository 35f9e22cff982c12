"""SGCL: one view, one encoder, a predictor read off the previous targets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.transforms import Compose

from sgcl.augment import DropEdges, DropFeatures
from sgcl.encoders import encode
from sgcl.errors import InputError
from sgcl.functional import cosine_distance, inferential_predictor
from sgcl.graph import View
from sgcl.kernels import product
from sgcl.methods.base import Method


class SGCL(Method):
    """Simplified graph contrastive learning (Sun et al., WSDM 2024, Algorithm 1).

    The target of a step is what the just-updated encoder made of the *previous* view; the predictor is the covariance
    of these targets. Neither carries gradient. ``targets`` is a buffer with a row per node, saved with the state.

    Args:
        encoder: any module ``(x, edge_index) -> [N, d]``.
        edge_drop: share of ordered pairs dropped (Eq. 8).
        feature_drop: share of feature columns dropped (Eq. 9).
        minimise: push prediction and target apart instead of together; the paper says that both work.
    """

    def __init__(
        self, encoder: nn.Module, edge_drop: float = 0.5, feature_drop: float = 0.2, minimise: bool = False
    ) -> None:
        super().__init__(encoder)
        self.edge_drop, self.feature_drop, self.minimise = edge_drop, feature_drop, minimise
        self._thin = Compose([DropEdges(edge_drop), DropFeatures(feature_drop)])
        self.register_buffer("targets", None)
        self.targets: Tensor | None

    def augment(self, batch: View) -> View:
        """Line 4: a new view of the graph."""
        view: View = self._thin(batch)
        return view

    def loss(self, view: View) -> Tensor:
        """Lines 5-7: the distance between prediction and target, in [0, 2]."""
        target = self._targets_of(view)
        dtype = torch.bfloat16 if getattr(self.learner, "precision", None) == "bf16" else target.dtype
        predictor = inferential_predictor(target, dtype)  # Eqs. 10-11
        prediction = product(encode(self.learner, view, dtype), predictor, dtype)  # Eq. 12
        distance = cosine_distance(prediction, target)  # Eq. 13
        return 2 - distance if self.minimise else distance

    @torch.no_grad()
    def update(self, view: View) -> None:
        """Line 9: targets for the next step, from the same view and the updated weights."""
        # Paper: silent on the mode. Official code: evaluation. Ours: evaluation, see docs/fidelity.md.
        self._store(view, self._evaluated(view))

    @torch.no_grad()
    def prepare(self, batches: Iterable[View]) -> None:
        """Lines 1-2: targets of the untrained encoder, in training mode, which also sets its running statistics."""
        self.targets = None
        for view in batches:
            self._store(view, encode(self.learner.train(), view))

    @property
    def learner(self) -> nn.Module:
        """What the loss trains, and what makes the targets."""
        return self.encoder

    @torch.no_grad()
    def _evaluated(self, view: View) -> Tensor:
        """What the learner makes of a view in evaluation mode; the mode before is restored."""
        mode = self.learner.training
        made = encode(self.learner.eval(), view)
        self.learner.train(mode)
        return made

    def monitored(self) -> Tensor:
        """The current targets."""
        if self.targets is None:
            raise InputError("SGCL: no targets yet; call prepare with a first view of every node")
        return self.targets

    def _targets_of(self, view: View) -> Tensor:
        targets = self.monitored()
        target = targets if view.n_id is None else targets[view.n_id]
        if len(target) != view.num_nodes:
            raise InputError(
                f"SGCL: the view has {view.num_nodes} nodes and no n_id, but targets are kept for {len(target)}; "
                "give the view n_id, or call prepare with views of this graph"
            )
        return target

    def _store(self, view: View, target: Tensor) -> None:
        if view.n_id is None:
            self.targets = target
            return
        rows = int(view.n_id.max()) + 1
        if self.targets is None or len(self.targets) < rows:
            grown = target.new_zeros(rows, target.shape[1])
            if self.targets is not None:
                grown[: len(self.targets)] = self.targets
            self.targets = grown
        self.targets[view.n_id] = target

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if (saved := state_dict.get(prefix + "targets")) is not None:
            self.targets = torch.empty_like(saved, device=next(self.parameters()).device)
        super()._load_from_state_dict(state_dict, prefix, *args)
