"""Cache of a generation: what beams share is kept once."""

from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache


class SharedCache(EncoderDecoderCache):
    """Keys and values of the decoder: of its own tokens for each row, of a document once, however
    many beams or sequences are written of it.

    Args:
        own: transformers' cache of the decoder's own tokens.
    """

    def __init__(self, own: Cache):
        super().__init__(own, DynamicCache())
        # Of each layer, by its number, `CrossAttention.keys_and_values`.
        self.memory: dict[int, list[tuple]] = {}

    def reorder_cache(self, beam_idx):
        """Rows of the decoder change places within their document, whose keys and values stay."""
        self.self_attention_cache.reorder_cache(beam_idx)

    def reset(self):
        super().reset()
        self.memory.clear()
