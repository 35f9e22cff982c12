"""Sparse matrices: products with dense ones, and what a thinned graph is made by."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sgcl.buffers import empty
from sgcl.kernels.threads import array, in_parts, looped, loops


def build_csr(crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A torch CSR tensor from its three parts, unchecked, without torch's notice that CSR is in beta."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta", category=UserWarning)
        return torch.sparse_csr_tensor(crow, col, values, shape, check_invariants=False)


def _row_pointers(counts: Tensor) -> Tensor:
    """CSR row pointers ``[n + 1]`` of rows that hold ``counts`` (``[n]``) entries."""
    pointers = counts.new_zeros(len(counts) + 1)
    torch.cumsum(counts, 0, out=pointers[1:])
    return pointers


class SparseMatrix:
    """A constant sparse matrix that multiplies dense ones and passes gradients through to them.

    The transpose, which the gradient needs, is made once, when first asked for, and kept.
    """

    def __init__(self, crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> None:
        if len(col) < 2**31 and max(shape) < 2**31:
            crow, col = crow.int(), col.int()  # half the traffic
        self.crow, self.col, self.values, self.shape = crow, col, values, shape

    @classmethod
    def from_torch(cls, matrix: Tensor) -> SparseMatrix:
        """The matrix of a torch CSR tensor."""
        rows, columns = matrix.shape
        return cls(matrix.crow_indices(), matrix.col_indices(), matrix.values(), (rows, columns))

    @classmethod
    def with_loops(cls, sender: Tensor, receiver: Tensor, num_nodes: int, dtype: torch.dtype) -> SparseMatrix:
        r"""The matrix of weights :math:`(d_i d_j)^{-1/2}` of pairs sorted by receiver and one loop per node.

        :math:`d_i` counts receiver ``i``'s pairs with others, and its loop. Loops among the pairs are passed over.
        """
        keep = sender != receiver
        entries = int(keep.sum()) + num_nodes
        if looped(torch.empty(0, dtype=dtype, device=sender.device)):
            small = torch.int32 if entries < 2**31 else torch.int64
            crow, col = torch.zeros(num_nodes + 1, dtype=small), empty((entries,), small)
            values = empty((entries,), torch.float32)
            loops().with_loops(*map(array, (sender.contiguous(), receiver.contiguous(), crow, col, values)))
            return cls(crow, col, values, (num_nodes, num_nodes))
        sender, receiver = sender[keep], receiver[keep]
        counts = torch.bincount(receiver, minlength=num_nodes)
        nodes = torch.arange(num_nodes, device=sender.device)
        crow = _row_pointers(counts + 1)
        # Every row starts with its loop, so the k-th pair is preceded by k pairs and receiver + 1 loops.
        col = torch.empty(entries, dtype=torch.int64, device=sender.device)
        values = torch.empty(entries, dtype=dtype, device=sender.device)
        place = torch.arange(len(sender), device=sender.device) + receiver + 1
        scale = (counts + 1).to(dtype).rsqrt()
        col[crow[:-1]], values[crow[:-1]] = nodes, scale * scale
        col[place], values[place] = sender, scale[sender] * scale[receiver]
        return cls(crow, col, values, (num_nodes, num_nodes))

    @cached_property
    def csr(self) -> Tensor:
        """The matrix as a torch CSR tensor."""
        return build_csr(self.crow, self.col, self.values, self.shape)

    @cached_property
    def T(self) -> SparseMatrix:
        """The transpose, in CSR form too."""
        rows, columns = self.shape
        if looped(self.values):
            crow = torch.zeros(columns + 1, dtype=self.crow.dtype)
            col, values = empty(self.col.shape, self.col.dtype), empty(self.values.shape, self.values.dtype)
            loops().transpose(*map(array, (self.crow, self.col, self.values, crow, col, values)))
            return SparseMatrix(crow, col, values, (columns, rows))
        order = torch.argsort(self.col, stable=True)
        row_of = torch.repeat_interleave(torch.arange(rows, device=self.col.device), self.crow.diff().long())
        counts = torch.bincount(self.col, minlength=columns)
        return SparseMatrix(_row_pointers(counts), row_of[order], self.values[order], (columns, rows))

    def scale_columns(self, factor: Tensor) -> SparseMatrix:
        """The matrix times ``diag(factor)``; entries that become zero stay stored."""
        return SparseMatrix(self.crow, self.col, self.values * factor[self.col], self.shape)

    def __matmul__(self, dense: Tensor) -> Tensor:
        return self.product(dense, self.values.dtype)

    def product(self, dense: Tensor, dtype: torch.dtype) -> Tensor:
        """The product with ``dense``, in type ``dtype``; the gradient for ``dense`` has its type."""
        product: Tensor = _Product.apply(dense, self, dtype)  # type: ignore[no-untyped-call]
        return product

    def times_weight(self, weight: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
        """``self @ diag(mask) @ weight.T`` in type ``dtype``, for ``weight`` ``[d, columns]``; no mask is all ones."""
        product: Tensor = _WeightProduct.apply(weight, self, mask, dtype)  # type: ignore[no-untyped-call]
        return product

    def times_columns(self, dense: Tensor, kept: Tensor | None, dtype: torch.dtype) -> Tensor:
        """``self @ dense[:, kept]`` in type ``dtype``, without gradient; ``None`` keeps all."""
        if kept is None:
            return self.times(dense, dtype)
        if not looped(self.values, dense):
            return self.times(dense[:, kept], dtype)
        out = empty((self.shape[0], len(kept)), dtype)
        work = len(self.col) * dense.shape[1]
        in_parts(loops().spmm_columns, self.shape[0], work, self.crow, self.col, self.values, dense, kept, out)
        return out

    def times(self, dense: Tensor, dtype: torch.dtype) -> Tensor:
        """The product with ``dense``, in type ``dtype``, without gradient."""
        if not looped(self.values, dense):
            return (self.csr @ dense.to(self.values.dtype)).to(dtype)
        out = empty((self.shape[0], dense.shape[1]), dtype)
        in_parts(
            loops().spmm, self.shape[0], len(self.col) * dense.shape[1], self.crow, self.col, self.values, dense, out
        )
        return out


class _WeightProduct(torch.autograd.Function):
    """A sparse matrix times a weight that lies the other way round, some columns masked."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, matrix: SparseMatrix, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
        ctx.matrix, ctx.mask, ctx.dtype = matrix, mask, weight.dtype
        if not looped(matrix.values, weight):
            masked = weight if mask is None else weight * mask
            return matrix.times(masked.T.to(matrix.values.dtype), dtype)
        standing = _transposed(weight, dtype)
        if mask is None:
            return matrix.times(standing, dtype)
        out = empty((matrix.shape[0], len(weight)), dtype)
        parts = (matrix.crow, matrix.col, matrix.values, mask, standing, out)
        in_parts(loops().spmm_masked, matrix.shape[0], len(matrix.col) * len(weight), *parts)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad, mask, turned = grads[0].contiguous(), ctx.mask, ctx.matrix.T
        if mask is None or not looped(turned.values, grad):
            standing = turned.times(grad, ctx.dtype)
            flat = standing.T if mask is None else standing.T * mask
            return flat, None, None, None
        standing = empty((turned.shape[0], grad.shape[1]), ctx.dtype)
        parts = (turned.crow, turned.col, turned.values, mask, grad, standing)
        in_parts(loops().spmm_rows, turned.shape[0], len(turned.col) * grad.shape[1], *parts)
        return _transposed(standing, ctx.dtype), None, None, None


def _transposed(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    return empty((matrix.shape[1], matrix.shape[0]), dtype).copy_(matrix.T)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: SparseMatrix, dtype: torch.dtype) -> Tensor:
        ctx.matrix, ctx.dtype = matrix, dense.dtype
        return matrix.times(dense.contiguous(), dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.matrix.T.times(grads[0].contiguous(), ctx.dtype), None, None


def spaced_pairs(edge_index: Tensor, gaps: Tensor, last: int) -> tuple[Tensor, int]:
    """The columns of ``edge_index`` after number ``last``, with ``gaps`` (whole float64) columns left out before each.

    Also returns the number of the last column reached: the count of columns, if the end was.
    """
    if edge_index.device.type != "cpu" or not edge_index.is_contiguous():
        positions = gaps.add(1).cumsum(0).long() + last
        within = int(torch.searchsorted(positions, edge_index.shape[1]))
        return edge_index[:, positions[:within]], min(int(positions[-1]), edge_index.shape[1])
    kept = torch.empty(2, len(gaps), dtype=edge_index.dtype)
    count, last = loops().spaced_pairs(*map(array, (edge_index, gaps, last, kept)))
    return kept[:, :count], last
