"""Attention by the Triton kernels, on CUDA.

Triton is imported on first use, so the package works where it is not installed.
"""


def sliding_window_attention(q, k, v, layout, **arguments):
    """`reference.sliding_window_attention`, forward and backward in fused kernels.

    Raises:
        ValueError: tensors that no kernel takes, and the backend that does.
    """
    from ldt.attention.triton import attention

    return attention.sliding_window_attention(q, k, v, layout, **arguments)


def global_attention(q, x, key, value, layout, **arguments):
    """`reference.global_attention`, forward and backward in fused kernels.

    Raises:
        ValueError: tensors that no kernel takes, and the backend that does.
    """
    from ldt.attention.triton import rows

    return rows.global_attention(q, x, key, value, layout, **arguments)


def projected_global_attention(q, k, v, layout, **arguments):
    """`reference.projected_global_attention`, forward and backward in fused kernels.

    Raises:
        ValueError: tensors that no kernel takes, and the backend that does.
    """
    from ldt.attention.triton import attention

    return attention.projected_global_attention(q, k, v, layout, **arguments)


def pool(pooling, k, v, weight, cells):
    """`pooled.reference.pool`, keys and values in one pass, forward and backward.

    Raises:
        ValueError: tensors that no kernel takes, and the backend that does.
    """
    from ldt.attention.triton import pooling as kernels

    return kernels.pool(pooling, k, v, weight, cells)


def cell_attention(q, k, v, cells, **arguments):
    """`pooled.reference.cell_attention`, forward and backward in fused kernels.

    Raises:
        ValueError: tensors that no kernel takes, and the backend that does.
    """
    from ldt.attention.triton import attention

    return attention.cell_attention(q, k, v, cells, **arguments)
