"""Bases of the encoders and of their heads: one config check, strict loading, one way to call."""

from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils import can_return_tuple

from ldt.attention import BACKENDS
from ldt.attention.derivatives import refuse_vmap
from ldt.model.config import LdtConfig
from ldt.model.outputs import LdtModelOutput
from ldt.model.packing import pack_words


class LdtPreTrainedModel(PreTrainedModel):
    """Base of all encoders and heads of ldt, which share strict loading.

    `from_pretrained` is strict, unlike in transformers: encoder weights that are missing, have
    another shape or have no place raise `ModelError`; a head that the file lacks is announced.
    Parameters are named as in transformers' Longformer.
    """

    config: LdtConfig
    base_model_prefix = "longformer"
    supports_gradient_checkpointing = True
    # transformers' Trainer counts labels, which are not the items of every loss; ldt's Trainer asks
    # the head (`Head.loss_items`).
    accepts_loss_kwargs = False

    position_table = None  # the weight [rows, d] of an encoder that learns positions

    # Names of the tensors that loading had to make anew, such as those of a new head.
    new_weights: tuple[str, ...] = ()

    def __init__(self, config, *args, **kwargs):
        if not isinstance(config, self.config_classes()):
            name = self.config_class.__name__
            raise TypeError(
                f"{type(self).__name__} needs an {name}, got {type(config).__name__}; "
                f"{name}.from_dict(config.to_dict()) makes one"
            )
        config.check()
        super().__init__(config, *args, **kwargs)

    def get_correct_attn_implementation(self, requested_attention, is_init_check=False):
        """transformers' name of the attention, for what ``attn_implementation`` asks.

        ``eager`` and ``sdpa`` mean the same here: the backend that ``config.attention_backend``
        names, by default the fastest that the device has.

        Raises:
            ValueError: another name, such as ``flash_attention_2``.
        """
        if requested_attention not in (None, "eager", "sdpa"):
            raise ValueError(
                "attn_implementation must be eager or sdpa, which both leave the choice to "
                f"attention_backend (auto, {', '.join(BACKENDS)}), got {requested_attention!r}"
            )
        return "eager"

    @classmethod
    def config_classes(cls):
        """Classes of the configs that a model can be made of."""
        return (cls.config_class,)

    @staticmethod
    def fit_weights(weights, config):
        """Tensors of a file by the names, without the prefix of the base model, and in the shapes
        of the model of a config; may change the dict ``weights``."""
        return weights

    def global_projections(self):
        """Pairs of modules of an encoder: a projection, and its twin for global tokens."""
        return []

    def _init_weights(self, module):
        """Draw the weights of a module, as transformers does; one may have ``drawn``, deviation and
        largest number of its weight, or a ``begin`` of its own."""
        super()._init_weights(module)
        if hasattr(module, "drawn"):
            deviation, most = module.drawn
            init.trunc_normal_(module.weight, std=deviation, a=-most, b=most)
        if hasattr(module, "begin"):
            module.begin()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """Load a model strictly, else as transformers does; see the class and `ldt.model.loading`.

        Raises:
            ModelError: the folder or its weights cannot be used, and why.
        """
        from ldt.model.loading import from_pretrained

        return from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs)


class PackedEncoder(LdtPreTrainedModel):
    """Base of the encoders alone, which pack a padded batch at their door; see
    `ldt.model.encoders`."""

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        global_attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        inputs_embeds=None,
        *,
        output_attentions=None,
        output_hidden_states=None,
        packing=None,
        packed=False,
        read="all",
    ):
        """Encode a padded batch.

        Args:
            input_ids: [b, n] int64; or ``inputs_embeds`` [b, n, d] in their place.
            attention_mask: [b, n], 0 at padding, 1 at real tokens, 2 at real tokens with global
                attention. None: all tokens are real.
            global_attention_mask: [b, n], 1 at tokens with global attention. None: none.
            token_type_ids: [b, n] int64. None: zeros. A ModernBERT has no types, and ignores them.
            position_ids: [b, n] or [1, n] int64. None: counted from the first real token of a row
                on; of a Longformer as `LdtModel.position_ids_of` does.
            output_attentions, output_hidden_states, return_dict: None: as the config says.
            packing: the `Packing` of these masks, made before by `pack`; the masks are then not
                looked at, and on CUDA the host never waits (as a CUDA graph demands).
            packed: for heads: return (states, packing, dict of the other fields of the output).
            read: states of that triple. ``all`` gives packed tokens [total, d]; ``first`` and
                ``pooled`` give [b, d], the first real token of each row and what the pooler, or
                ``config.classifier_pooling``, makes of the row, and leave out what only others
                need.

        Returns:
            `LdtModelOutput`, or the tuple of what is not None in it.

        Raises:
            ValueError: an input that is empty, too long, or of the wrong shape or value.
        """
        masks = attention_mask, global_attention_mask
        refuse_vmap(input_ids, *masks, token_type_ids, position_ids)
        words, packing = pack_words(self, input_ids, inputs_embeds, masks, packing)
        options = []
        for name, value in (
            ("output_attentions", output_attentions),
            ("output_hidden_states", output_hidden_states),
        ):
            options.append(getattr(self.config, name) if value is None else value)
        ids = input_ids, token_type_ids, position_ids
        x, packing, others = self._encode(words, packing, ids, read, *options)
        if packed:
            return x, packing, others
        x, pooled = self._pooled(x, packing)
        return LdtModelOutput(packing.unpack(x), pooled, **others)

    def _encode(self, words, packing, ids, read, output_attentions, output_hidden_states):
        """(states, packing, dict of the other fields) of ids [b, n] or embeddings [b, n, d].

        Args:
            ids: input_ids, token_type_ids and position_ids, [b, n] or None.
        """
        raise NotImplementedError

    def _pooled(self, x, packing):
        """States [total, d], and the pooler's output [b, d] of those with one."""
        return x, None
