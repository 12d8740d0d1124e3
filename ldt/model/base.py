"""Base of the encoders and of their heads: one config check, strict loading, known inputs."""

from typing import TypedDict

import torch
from transformers import PreTrainedModel
from transformers import initialization as init

from ldt.attention import BACKENDS
from ldt.model.config import LdtConfig
from ldt.model.packing import Packing


class OutputOptions(TypedDict, total=False):
    """Keywords that every encoder takes besides its inputs."""

    output_attentions: bool | None
    output_hidden_states: bool | None
    return_dict: bool | None
    packing: Packing | None


class EncoderInputs(OutputOptions, total=False):
    """Keywords that a head hands on to its encoder. Any other is a TypeError, unlike in
    transformers, whose models take ``label=`` for ``labels=`` without a word."""

    position_ids: torch.Tensor | None
    inputs_embeds: torch.Tensor | None


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
