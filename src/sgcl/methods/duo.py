"""Duo: what SGCL learns of a node beside what the node says of itself, both averaged over its neighbourhood."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data

from sgcl.data.preprocess import leading_directions, unit_rows
from sgcl.encoders import ViewEncoder, encode
from sgcl.errors import InputError
from sgcl.functional import alignment, diffused, half_whitening, spread
from sgcl.graph import View
from sgcl.methods.sgcl import SGCL

WIDEST = 256
"""Columns that features are reduced to before anything is learned."""


class TwoHalves(ViewEncoder):
    """Features, reduced once, and what an encoder makes of them, side by side.

    Shapes: ``N`` nodes, ``F`` features, ``k`` columns that these are reduced to, ``d`` columns that are learned.

    1. *own* ``[N, k]``: rows of the features, scaled to unit length, on their leading directions, centred, unit again.
    2. *learned* ``[N, d]``: the encoder's embeddings of *own*, centred, half whitened, unit rows.
    3. Both are averaged over the graph (:func:`sgcl.functional.diffused`) and scaled to unit rows. Of *own*, a node
       keeps the share ``s`` for itself, of *learned* ``t = min(s, 1/2)``; *own* weighs ``t / (1 - t)``.

    ``s`` is 1 minus the mean cosine of *own* over pairs, within 1/20 and 1: the more linked nodes look alike, the more
    of a node its neighbours tell. A graph made from the features says in its neighbourhoods whatever a node says alone.
    """

    def __init__(self, core: nn.Module, own_columns: int = WIDEST) -> None:
        super().__init__()
        self.core, self.own_columns = core, own_columns
        self.directions: Tensor | None
        self.centre: Tensor
        self.share: Tensor
        self.learned_centre: Tensor | None
        self.whitening: Tensor
        for name in ("directions", "centre", "share", "learned_centre", "whitening"):
            self.register_buffer(name, None)

    def read(self, view: View) -> View:
        """The view with *own* for features; the first one that is read decides directions, centre and share."""
        x = view.features.csr if not isinstance(view.features, Tensor) else view.features
        rows = unit_rows(x.cpu()).to(x.device)
        if self.directions is None:
            self.directions = leading_directions(rows.cpu(), getattr(self.core, "in_channels", WIDEST)).to(x.device)
            self.centre = (rows @ self.directions).mean(dim=0)
            own = F.normalize(rows @ self.directions - self.centre, dim=1)
            if not spread(own) > 1e-3 or float((rows @ self.directions - self.centre).abs().max()) < 1e-6:
                raise InputError(
                    "duo: the features, each row scaled to length 1, are the same for every node; give more columns "
                    "(one-hot degrees, for one), or use method='sgcl' (--method sgcl)"
                )
            alike = alignment(own, view.edge_index)
            self.share = torch.tensor(min(1.0, max(0.05, 1 - alike)), device=x.device)
        own = F.normalize(rows @ self.directions - self.centre, dim=1)
        return view.replace(x=own, feature_mask=None)

    def settle(self, learned: Tensor) -> None:
        """Take centre and whitening from embeddings of a whole graph."""
        self.learned_centre = learned.mean(dim=0)
        self.whitening = half_whitening(learned - self.learned_centre)

    def encode(self, view: View, made: torch.dtype | None = None) -> Tensor:
        """Embeddings ``[N, d + own_columns]`` of a view of the features as they come.

        Raises:
            InputError: nothing has been learned that could be settled on.
        """
        if self.directions is None or self.learned_centre is None:
            raise InputError("duo: nothing learned yet; train first, or load a model that was saved after training")
        read = self.read(view)
        learned = _to_length((encode(self.core, read) - self.learned_centre) @ self.whitening)
        assert isinstance(read.features, Tensor)
        share = float(self.share)
        half = min(share, 0.5)
        own = diffused(read.features[:, : self.own_columns].contiguous(), read.adjacency, share)
        learned = diffused(learned, read.adjacency, half)
        both = torch.cat([_to_length(learned), _to_length(own, half / (1 - half))], dim=1)
        return both.to(made or view.dtype)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in self._buffers:
            if (saved := state_dict.get(prefix + name)) is not None:
                setattr(self, name, torch.empty_like(saved, device=next(self.core.parameters()).device))
        super()._load_from_state_dict(state_dict, prefix, *args)


def _to_length(rows: Tensor, length: float = 1.0) -> Tensor:
    """Scale rows in place; rows of zeros stay."""
    return rows.mul_(length / rows.norm(dim=1, keepdim=True).clamp_(min=1e-12))


class Duo(SGCL):
    """SGCL on reduced features, beside these features themselves, both averaged over the graph.

    Args:
        encoder: any module ``(x, edge_index) -> [N, d]`` of reduced features, or a :class:`TwoHalves`.
        edge_drop: as in SGCL, also ``feature_drop`` and ``minimise``.
        own_columns: how many of the reduced features' columns the embeddings hold.
    """

    reduces_features = True

    def __init__(
        self,
        encoder: nn.Module,
        edge_drop: float = 0.8,
        feature_drop: float = 0.0,
        minimise: bool = False,
        own_columns: int = WIDEST,
    ) -> None:
        halves = encoder if isinstance(encoder, TwoHalves) else TwoHalves(encoder, own_columns)
        super().__init__(halves, edge_drop, feature_drop, minimise)
        self._last: tuple[View, View] | None = None

    @property
    def halves(self) -> TwoHalves:
        """The encoder, which holds the one that is trained."""
        assert isinstance(self.encoder, TwoHalves)
        return self.encoder

    @property
    def learner(self) -> nn.Module:
        """The encoder inside."""
        return self.halves.core

    def augment(self, batch: View) -> View:
        """A new view of the reduced features; what was made of a batch is kept until another one comes."""
        if self._last is None or self._last[0] is not batch:
            self._last = batch, self.halves.read(batch)
        return super().augment(self._last[1])

    def prepare(self, batches: Any) -> None:
        """Targets of the untrained encoder, also settled on."""
        super().prepare(batches)
        self.halves.settle(self.monitored())

    def settle(self, graph: View | Data) -> None:
        """Centre and whitening of what has been learned, from the plain graph."""
        self.halves.settle(self.represented(graph))

    def represented(self, graph: View | Data) -> Tensor:
        """What has been learned, without the features and their averages."""
        with torch.no_grad():
            return self._evaluated(self.halves.read(View.of(graph)))

    @staticmethod
    def plan(features: int, hidden: Sequence[int], dim: int) -> tuple[list[int], dict[str, Any]]:
        """Half of the columns for the features, as far as they reach, the rest for what is learned."""
        reduced = min(features, WIDEST)
        own = min(dim // 2, reduced)
        return [reduced, *hidden, dim - own], {"own_columns": own}
