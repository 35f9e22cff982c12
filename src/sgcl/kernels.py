"""The few hot loops, behind plain functions: products with sparse matrices.

Nothing else in the package knows how they are made; today they are torch's own CSR products.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


def build_csr(crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A torch CSR tensor from its three parts, unchecked, without torch's notice that CSR is in beta."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta", category=UserWarning)
        return torch.sparse_csr_tensor(crow, col, values, shape, check_invariants=False)


class SparseMatrix:
    """A constant sparse matrix that multiplies dense ones and passes gradients through to them.

    The transpose, which the gradient needs, is made once, when first asked for, and kept.
    """

    def __init__(self, crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> None:
        self.crow, self.col, self.values, self.shape = crow, col, values, shape

    @classmethod
    def from_torch(cls, matrix: Tensor) -> SparseMatrix:
        """Share the memory of a torch CSR tensor."""
        rows, columns = matrix.shape
        return cls(matrix.crow_indices(), matrix.col_indices(), matrix.values(), (rows, columns))

    @cached_property
    def csr(self) -> Tensor:
        """The matrix as a torch CSR tensor, with 32-bit indices where they suffice: half the traffic."""
        crow, col = self.crow, self.col
        if len(col) < 2**31 and max(self.shape) < 2**31:
            crow, col = crow.int(), col.int()
        return build_csr(crow, col, self.values, self.shape)

    @cached_property
    def T(self) -> SparseMatrix:
        """The transpose, in CSR form too."""
        rows, columns = self.shape
        order = torch.argsort(self.col, stable=True)
        row_of = torch.repeat_interleave(torch.arange(rows, device=self.col.device), self.crow.diff().long())
        counts = torch.bincount(self.col, minlength=columns)
        return SparseMatrix(row_pointers(counts), row_of[order], self.values[order], (columns, rows))

    def scale_columns(self, factor: Tensor) -> SparseMatrix:
        """The matrix times ``diag(factor)``; entries that become zero stay stored."""
        return SparseMatrix(self.crow, self.col, self.values * factor[self.col.long()], self.shape)

    def __matmul__(self, dense: Tensor) -> Tensor:
        product: Tensor = _Product.apply(dense, self)  # type: ignore[no-untyped-call]
        return product


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: SparseMatrix) -> Tensor:
        ctx.matrix = matrix
        return matrix.csr @ dense

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.matrix.T.csr @ grads[0].contiguous(), None


def row_pointers(counts: Tensor) -> Tensor:
    """CSR row pointers ``[n + 1]`` of rows that hold ``counts`` (``[n]``) entries."""
    pointers = counts.new_zeros(len(counts) + 1)
    torch.cumsum(counts, 0, out=pointers[1:])
    return pointers
