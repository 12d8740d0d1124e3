"""Small random encoder-decoders: models that read and write."""

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

ROWS = 16  # longest input of a BART, and longest output of both
SMALL = {"max_length": 44, "window": 8}


def random_writer(parent, kind, tokenizer_folder, cls="ForConditionalGeneration", **changes):
    """A folder in ``parent``, named after the kind (bart, led): random weights, a tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    end = tokenizer.eos_token_id
    lengths = {"max_position_embeddings": ROWS}
    if kind == "led":
        lengths = {"max_encoder_position_embeddings": 24, "max_decoder_position_embeddings": ROWS}
        lengths["attention_window"] = [8, 4]
    config = transformers.AutoConfig.for_model(
        kind,
        **{
            "vocab_size": len(tokenizer) + 3,
            "d_model": 16,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "decoder_layers": 3,
            "decoder_attention_heads": 4,
            "decoder_ffn_dim": 24,
            "dropout": 0.25,
            "activation_dropout": 0.125,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": end,
            "pad_token_id": tokenizer.pad_token_id,
            "decoder_start_token_id": end,
        }
        | ({"forced_eos_token_id": end} if kind == "bart" else {})
        | lengths
        | changes,
    )
    torch.manual_seed(1)
    model = getattr(transformers, {"bart": "Bart", "led": "LED"}[kind] + cls)(config)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        mean = float("norm" in name and name.endswith("weight"))  # else each layer hides its input
        torch.nn.init.normal_(tensor, mean, std=0.3)
    folder = parent / kind
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def rewritten(folder, change):
    """Write the weights of a folder anew, as ``change`` returns them."""
    save_file(change(weights_of(folder)), folder / "model.safetensors", metadata={"format": "pt"})
