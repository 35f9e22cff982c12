"""The few hot operations, behind plain functions: products of matrices, and passes over their rows.

On the CPU, in float32 and bfloat16, they are compiled loops (:mod:`sgcl.kernels.loops`) and torch's products; elsewhere
torch's own operations. Nothing else in the package knows which.
"""

from sgcl.kernels.dense import kept_columns, product, rows_product
from sgcl.kernels.rows import centred_unit_rows, cosine_distance, norm_prelu
from sgcl.kernels.sparse import SparseMatrix, build_csr, spaced_pairs

__all__ = [
    "SparseMatrix",
    "build_csr",
    "centred_unit_rows",
    "cosine_distance",
    "kept_columns",
    "norm_prelu",
    "product",
    "rows_product",
    "spaced_pairs",
]
