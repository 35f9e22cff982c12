r"""Formulas of more than one method, as pure functions of tensors.

Shapes: ``N`` nodes, ``d`` columns. Equation numbers are those of Sun et al., *Rethinking and Simplifying
Bootstrapped Graph Latents* (WSDM 2024).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sgcl import kernels
from sgcl.kernels import SparseMatrix, centred_unit_rows, rows_product


def inferential_predictor(target: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    r"""Predictor inferred from the targets, without parameters (Eqs. 10-11).

    Returns :math:`P = \bar H^\top \bar H / (N - 1)`, shape ``[d, d]``, where :math:`\bar H` is ``target``
    (``[N, d]``) centred over nodes, then scaled to unit rows. Carries no gradient.
    """
    with torch.no_grad():
        rows = centred_unit_rows(target, dtype or target.dtype)
        return rows_product(rows, rows) / (len(rows) - 1)


def cosine_distance(prediction: Tensor, target: Tensor) -> Tensor:
    r"""Mean over nodes of :math:`1 - \cos(z_i, h_i)` (Eq. 13), between 0 and 2; both ``[N, d]``."""
    return kernels.cosine_distance(prediction, target)


def warmup_cosine(step: int, *, peak: float, warmup: int, total: int) -> float:
    """Learning rate of ``step`` (1 to ``total``): linear up to ``peak`` at ``warmup``, then a half cosine to 0."""
    if step < warmup:
        return peak * step / warmup
    if total <= warmup:
        return peak
    return peak * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2


def effective_rank(embeddings: Tensor) -> float:
    r"""Number of directions that ``embeddings`` (``[N, d]``) really use, between 1 and ``d``.

    The exponential of the entropy of the singular values, normalised to sum 1 (RankMe, Garrido et al. 2023). Read
    off the Gram matrix in float64; 0 for a matrix of zeros.
    """
    embeddings = embeddings.detach().contiguous()
    singular = torch.linalg.eigvalsh(rows_product(embeddings, embeddings).double()).clamp(min=0).sqrt()
    total = singular.sum()
    if not total > 0:
        return 0.0
    share = singular / total
    return math.exp(-torch.special.xlogy(share, share).sum().item())


def spread(embeddings: Tensor) -> float:
    r"""How widely unit rows of ``embeddings`` are scattered: 0 when all nodes share a direction, 1 at most.

    The root of the mean squared distance of :math:`h_i / \|h_i\|` from their mean.
    """
    # The mean squared distance of rows from their mean is the mean square of the rows minus the square of their mean.
    total, squares = embeddings.new_zeros(embeddings.shape[1], dtype=torch.float64), 0.0
    for block in embeddings.detach().split(512):
        rows = F.normalize(block.double(), dim=1)
        total += rows.sum(dim=0)
        squares += rows.square().sum().item()
    count = len(embeddings)
    return math.sqrt(max(squares / count - (total / count).square().sum().item(), 0.0))


def diffused(rows: Tensor, adjacency: SparseMatrix, share: float, hops: int = 10) -> Tensor:
    r"""Rows averaged over the graph, near nodes counting most: :math:`\sum_k s (1-s)^k \hat A^k` ``rows``.

    ``rows`` ``[N, d]``; ``share`` is s, in (0, 1], what a node keeps for itself; the sum ends after ``hops`` terms, the
    last of which gets all that is left (personalised PageRank, Gasteiger et al. 2019).
    """
    spread_out = rows
    for _ in range(hops):
        spread_out = (adjacency @ spread_out).mul_(1 - share).add_(rows, alpha=share)
    return spread_out


def half_whitening(rows: Tensor) -> Tensor:
    r"""The symmetric map ``[d, d]`` that takes square roots of the deviations of ``rows`` along their principal axes.

    For rows ``[N, d]`` of mean 0 with covariance C this is :math:`C^{-1/4}`, up to a factor: directions that vary
    little are heard, without being as loud as those that vary most. Axes without any deviation are left out.
    """
    values, axes = torch.linalg.eigh(rows_product(rows, rows).double())
    used = values > 1e-12 * values[-1].clamp(min=0)
    scale = torch.where(used, values.clamp(min=1e-300) / values[-1].clamp(min=1e-300), 1.0).pow(-0.25) * used
    whitening: Tensor = ((axes * scale) @ axes.T).to(rows.dtype)
    return whitening


def alignment(embeddings: Tensor, edge_index: Tensor) -> float:
    r"""Mean cosine of linked nodes (``edge_index`` ``[2, E]``), between -1 and 1; 0 without edges."""
    if edge_index.shape[1] == 0:
        return 0.0
    rows = F.normalize(embeddings.detach(), dim=1)
    total = 0.0
    for block in edge_index.split(max(1, (1 << 22) // rows.shape[1]), dim=1):  # 16 MiB of rows
        total += (rows[block[0]] * rows[block[1]]).sum(dim=1).double().sum().item()
    return total / edge_index.shape[1]
