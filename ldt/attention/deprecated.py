"""Earlier names of `ldt.attention`, which warns when one of them is asked for."""

from ldt import attention

_ATTRIBUTES = {
    "keep": "key_padding_mask",
    "total": "total_tokens",
    "globals": "num_global",
    "borders": "cu_seqlens_host",
    "global_borders": "cu_globals_host",
    "silent": "masked_queries",
}


class Documents(attention.Layout):
    """`Layout`, whose arguments and attributes have their earlier names as well."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **{_ATTRIBUTES.get(k, k): value for k, value in kwargs.items()})

    def __getattr__(self, name):
        if name not in _ATTRIBUTES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self, _ATTRIBUTES[name])


def band_attention(q, k, v, documents, **arguments):
    """`ldt.attention.sliding_window_attention`."""
    return attention.sliding_window_attention(q, k, v, documents, **arguments)


def global_rows(q, x, key, value, documents, **arguments):
    """`ldt.attention.global_attention`."""
    return attention.global_attention(q, x, key, value, documents, **arguments)
