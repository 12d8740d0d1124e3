"""For the tests of the encoder-decoder: random LEDs of transformers and of ldt, and batches."""

import torch
import transformers
from longformers import VOCABULARY, batch, shaken
from transformers import LEDConfig

import ldt.model

START, TABLE = 2, 24  # the decoder's start token, and its position table


def led_config(**changes):
    """Two layers and three, of width 16; inputs up to 64 tokens, outputs up to 24; no dropout."""
    values = {
        "vocab_size": VOCABULARY,
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 20,
        "attention_window": [8, 4],
        "max_encoder_position_embeddings": 64,
        "max_decoder_position_embeddings": TABLE,
        "init_std": 0.3,  # peaked attention, outputs of order one
        "dropout": 0.0,
    }
    return LEDConfig(**values | changes)


def led(cls="ForConditionalGeneration", **changes):
    """A random model of transformers in evaluation mode; biases and norms are random as well."""
    model = shaken(getattr(transformers, "LED" + cls)(led_config(**changes)))
    if cls == "ForConditionalGeneration":
        model.final_logits_bias.normal_()
    return model


def pair(folder, dtype=torch.float64, **changes):
    """A random model of transformers and the same file loaded in ldt."""
    theirs = led(**changes)
    theirs.save_pretrained(folder)
    return theirs.to(dtype), ldt.model.load(
        folder, ldt.model.LdtForConditionalGeneration, dtype=dtype
    )


def documents(n, padding="none", globals_="default"):
    """Inputs [4, n] without labels."""
    inputs = batch(n, padding, globals_)
    del inputs["token_type_ids"]
    return inputs


def targets(lengths):
    """[rows, longest] int64: random labels, -100 behind the end of each row."""
    labels = torch.randint(3, VOCABULARY, (len(lengths), max(lengths)))
    place = torch.arange(max(lengths))
    return labels.masked_fill(place >= torch.tensor(lengths)[:, None], -100)


def first_tokens(inputs):
    """The inputs with the global mask that is the default, which transformers does not have."""
    real = inputs["attention_mask"] != 0
    mask = torch.zeros_like(real).scatter(1, real.int().argmax(1, keepdim=True), True)
    return inputs | {"global_attention_mask": mask.long()}


def alone(inputs, row):
    """A row of the inputs by itself, cut to the span of its real tokens, with a global mask."""
    if inputs.get("global_attention_mask") is None:
        inputs = first_tokens(inputs)
    real = inputs["attention_mask"][row].nonzero().squeeze(1)
    first, last = int(real[0]), int(real[-1])
    return {key: x[row : row + 1, first : last + 1] for key, x in inputs.items()}
