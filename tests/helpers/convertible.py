"""Small random models of every kind that can be converted."""

import hashlib
import json

import torch
import transformers
from transformers import AutoTokenizer

from ldt.convert.kinds import KINDS

ROWS = 18  # of the sources' position tables
SMALL = {"max_length": 44, "window": 8}

WORDS = ["the", "lease", "ends", "party", "##s", "pays", "rent", ".", ",", "2"]


def _unigram(special):
    pieces = ["▁", "▁the", "▁party", "e", "n", "d", "s", "t", "h", "p", "a", "r", "y", "."]
    return [(piece, 0.0) for piece in special] + [(piece, -2.0) for piece in pieces]


def _tokenizer(kind, tokenizer_folder):
    if kind == "bert":
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
        return transformers.BertTokenizer(vocab={word: i for i, word in enumerate(words)})
    if kind == "xlm-roberta":
        vocab = _unigram(["<s>", "<pad>", "</s>", "<unk>"]) + [("<mask>", 0.0)]
        return transformers.XLMRobertaTokenizer(vocab=vocab)
    if kind == "camembert":
        special = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"]
        return transformers.CamembertTokenizer(vocab=[*_unigram(special), ("<mask>", 0.0)])
    return AutoTokenizer.from_pretrained(tokenizer_folder)


def random_encoder(parent, kind, cls, tokenizer_folder, **changes):
    """A folder in ``parent``, named after the kind: random weights of a class, and a tokenizer."""
    tokenizer = _tokenizer(kind, tokenizer_folder)
    config = transformers.AutoConfig.for_model(
        kind,
        **{
            "vocab_size": len(tokenizer) + 3,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": ROWS,
            "type_vocab_size": 2 if kind == "bert" else 1,
            "layer_norm_eps": 1e-3,
            "hidden_dropout_prob": 0.25,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        }
        | ({"attention_window": [8, 8]} if kind == "longformer" else {})
        | changes,
    )
    torch.manual_seed(1)
    model = getattr(transformers, KINDS[kind] + cls)(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    folder = parent / kind
    model.save_pretrained(folder)
    tokenizer.model_max_length = ROWS - 2
    tokenizer.save_pretrained(folder)
    return folder


def digests(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def edit(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
