"""For the tests of the model: random Longformers of transformers and of ldt, and batches."""

import json

import torch
import transformers
from safetensors.torch import load_file
from transformers import LongformerConfig

import ldt.model

HEADS = (
    "Model",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForMultipleChoice",
    "ForTokenClassification",
    "ForQuestionAnswering",
)
VOCABULARY = 40
PAD, SEP = 1, 2


def longformer_config(**changes):
    """Two layers of width 16, 64 tokens long; three labels, two token types, no dropout."""
    values = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "attention_window": [8, 4],
        "max_position_embeddings": 66,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-5,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.3,  # peaked attention, outputs of order one
        "num_labels": 3,
    }
    return LongformerConfig(**values | changes)


def longformer(head, **changes):
    """A random model of transformers in evaluation mode; biases and norms are random as well."""
    if head == "ForQuestionAnswering":
        changes["num_labels"] = 2
    model = getattr(transformers, "Longformer" + head)(longformer_config(**changes))
    return shaken(model)


def ldt_config(**changes):
    """`longformer_config` as an LdtConfig."""
    return ldt.model.LdtConfig.from_dict(longformer_config().to_dict() | changes)


def ldt_model(head, **changes):
    """A random model of ldt in evaluation mode; biases and norms are random as well."""
    return shaken(getattr(ldt.model, "Ldt" + head)(ldt_config(**changes)))


def shaken(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


def padding_mask(n, kind):
    """[4, n] int64, zeros where ``kind`` puts padding; n >= 8 unless the kind is none."""
    mask = torch.ones(4, n, dtype=torch.long)
    if kind in ("right", "mixed"):
        mask[1, n - 3 :] = 0
        mask[3, n // 2 :] = 0
    if kind in ("left", "mixed"):
        mask[0, :2] = 0
        mask[2, : n // 2] = 0
    if kind in ("middle", "mixed"):
        mask[0, n // 2 + 1 : n // 2 + 3] = 0
        mask[2, n - 3] = 0
    if kind == "row":
        mask[1] = 0
        mask[2, n - 1] = 0
    return mask


def global_mask(n, kind):
    """[4, n] int64, ones where ``kind`` puts global attention, maybe on padding; None: default."""
    mask = torch.zeros(4, n, dtype=torch.long)
    if kind == "one":
        mask[:, n // 2] = 1
    if kind == "some":  # a different number in every row, none in the last
        mask[0, n // 2] = 1
        mask[1, ::2] = 1
        mask[2, [n // 3, n - 1]] = 1
    if kind == "all":
        mask[:] = 1
    return None if kind == "default" else mask


def batch(n, padding="none", globals_="none"):
    """Inputs [4, n] of the base model; each row with 8 tokens or more has three separators."""
    mask = padding_mask(n, padding)
    ids = torch.randint(3, VOCABULARY, (4, n))
    for row in range(4):
        real = mask[row].nonzero().squeeze(1)
        if len(real) >= 8:
            ids[row, real[[2, 4, -1]]] = SEP
    return {
        "input_ids": ids.masked_fill(mask == 0, PAD),
        "attention_mask": mask,
        "global_attention_mask": global_mask(n, globals_),
        "token_type_ids": torch.randint(0, 2, (4, n)),
    }


def to_bin(folder, prefix=""):
    """Turn the weights of ``folder`` into pytorch_model.bin."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({prefix + name: x for name, x in weights.items()}, folder / "pytorch_model.bin")


def to_shards(folder):
    """Turn the weights of ``folder`` into several files and an index."""
    model = transformers.LongformerModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="4KB")
    assert len(list(folder.glob("*.safetensors"))) > 2


def to_bin_shards(folder):
    """Turn the weights of ``folder`` into several .bin files and an index."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    where = {}
    for shard, part in (("a.bin", names[::2]), ("b.bin", names[1::2])):
        torch.save({name: weights[name] for name in part}, folder / shard)
        where |= dict.fromkeys(part, shard)
    index = {"metadata": {}, "weight_map": where}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def reconfigured(folder, **changes):
    """``folder`` after changes to its config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


def gradients(model):
    """{name: gradient} of the parameters that have one."""
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: gradient for name, gradient in found.items() if gradient is not None}


def training_pass(model, inputs):
    """Loss and gradients of a classifier of three classes, of seed 0; ``inputs`` have four rows."""
    torch.manual_seed(0)
    labels = torch.tensor([0, 1, 0, 1], device=inputs["input_ids"].device)
    loss = model(**inputs, labels=labels).loss
    model.zero_grad()
    loss.backward()
    return {"loss": loss.detach()} | gradients(model)


def checkpoint_layers(model):
    """Have the layers computed again in the backward pass, as transformers calls it by version."""
    enable = getattr(model, "activation_checkpointing_enable", None)  # from 5.23 on
    (enable or model.gradient_checkpointing_enable)()


def with_labels(head, inputs):
    """The inputs, and labels for the head; multiple choice gets two rows of two choices."""
    real = inputs["attention_mask"].bool()
    b, n = real.shape
    if head == "ForMaskedLM":
        hidden = ~real | (torch.rand(b, n) < 0.5)
        hidden[0, real[0].int().argmax()] = False
        return inputs | {"labels": torch.randint(0, VOCABULARY, (b, n)).masked_fill(hidden, -100)}
    if head == "ForTokenClassification":
        return inputs | {"labels": torch.randint(0, 3, (b, n)).masked_fill(~real, -100)}
    if head == "ForSequenceClassification":
        return inputs | {"labels": torch.tensor([2, 0, 1, 1])}
    if head == "ForMultipleChoice":
        folded = {key: None if x is None else x.view(2, 2, n) for key, x in inputs.items()}
        return folded | {"labels": torch.tensor([1, 0])}
    if head == "ForQuestionAnswering":
        end = n - 1 - real.flip(1).int().argmax(1)
        return inputs | {"start_positions": real.int().argmax(1), "end_positions": end}
    return inputs
