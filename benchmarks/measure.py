"""What the benchmarks share: models of equal shape, times taken in turn, and the machine."""

import platform
import statistics
import time
from pathlib import Path

import torch

PEERS = ("longformer", "roberta")
WINDOW = 512


def build(name, length, *, layers, width=768, vocabulary=50265):
    """A random encoder for inputs of ``length`` tokens: ldt, longformer or roberta (SDPA).

    Heads are 64 wide, the feed-forward network four times the width, the window 512 tokens.
    """
    from transformers import LongformerConfig, LongformerModel, RobertaConfig, RobertaModel

    from ldt.model import LdtConfig, LdtModel

    config, model, own = {
        "ldt": (LdtConfig, LdtModel, {"attention_window": WINDOW}),
        "longformer": (LongformerConfig, LongformerModel, {"attention_window": WINDOW}),
        "roberta": (RobertaConfig, RobertaModel, {"attn_implementation": "sdpa"}),
    }[name]
    torch.manual_seed(0)
    common = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_attention_heads": width // 64,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "max_position_embeddings": length + 2,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    return model(config(**common, **own), add_pooling_layer=False).eval()


def inputs(name, lengths, *, vocabulary=50265, device="cpu"):
    """Random ids of documents of these lengths, padded on the right, token 0 global."""
    generator = torch.Generator().manual_seed(1)
    shape = len(lengths), max(lengths)
    batch = {"input_ids": torch.randint(5, vocabulary, shape, generator=generator)}
    batch["attention_mask"] = (torch.arange(shape[1]) < torch.tensor(lengths)[:, None]).long()
    if name != "roberta":
        batch["global_attention_mask"] = torch.zeros(shape, dtype=torch.long)
        batch["global_attention_mask"][:, 0] = 1
    return {key: value.to(device) for key, value in batch.items()}


def step(model, batch, kind):
    """One forward pass (``kind`` forward), or forward and backward (training)."""
    if kind == "forward":
        with torch.inference_mode():
            model(**batch)
        return
    model(**batch).last_hidden_state.float().square().mean().backward()
    for parameter in model.parameters():
        parameter.grad = None


def medians(runs, rounds, device="cpu"):
    """{name: median seconds} of {name: function}, run in turn; one more round first to warm up."""
    seconds = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            taken = seconds_of(run, device)
            if turn:
                seconds[name].append(taken)
    return {name: statistics.median(values) for name, values in seconds.items()}


def seconds_of(run, device="cpu"):
    """Wall time of one call, the device's work included."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def machine():
    """What the figures depend on."""
    import transformers

    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return {
        "cpu": names[0] if names else platform.processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
