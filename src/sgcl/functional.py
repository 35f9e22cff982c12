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
from sgcl.kernels import centred_unit_rows, rows_product


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


def alignment(embeddings: Tensor, edge_index: Tensor) -> float:
    r"""Mean cosine of linked nodes (``edge_index`` ``[2, E]``), between -1 and 1; 0 without edges."""
    if edge_index.shape[1] == 0:
        return 0.0
    rows = F.normalize(embeddings.detach(), dim=1)
    total = 0.0
    for block in edge_index.split(1 << 18, dim=1):
        total += (rows[block[0]] * rows[block[1]]).sum(dim=1).double().sum().item()
    return total / edge_index.shape[1]
