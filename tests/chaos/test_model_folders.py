"""Model folders that are damaged, or made to do harm: a line, no code, no waiting."""

import json
import os
import pickle
import shutil
import struct

import pytest
from faults import sample


class Command:
    """Makes a folder where it is unpickled as code."""

    def __reduce__(self):
        return (eval, ("__import__('os').mkdir('executed')",))


def config(**changes):
    """A fault that changes values of config.json."""

    def change(folder):
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def text(name, content):
    """A fault that gives a file another content."""

    def change(folder):
        path = folder / name
        path.unlink(missing_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def part(name, share):
    """A fault that cuts a file off."""

    def change(folder):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * share)])

    return change


def other(name, make):
    """A fault that puts something in the place of a file that is none."""

    def change(folder):
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def header(edit):
    """A fault that changes the header of the weights, a table of tensors."""

    def change(folder):
        file = folder / "model.safetensors"
        data = file.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        table = json.loads(data[8 : 8 + size])
        edit(table)
        raw = json.dumps(table).encode()
        file.write_bytes(struct.pack("<Q", len(raw)) + raw + data[8 + size :])

    return change


def each(key, value):
    def edit(table):
        for name, row in table.items():
            if name != "__metadata__":
                row[key] = value

    return edit


def fill(word):
    """A fault that fills the tensors with one value of four bytes."""

    def change(folder):
        file = folder / "model.safetensors"
        data = file.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        body = len(data) - 8 - size
        file.write_bytes(data[: 8 + size] + word * (body // 4))

    return change


def to_pickle(make):
    """A fault that has a pickle in place of safetensors."""

    def change(folder):
        (folder / "model.safetensors").unlink()
        make(folder / "pytorch_model.bin")

    return change


def torch_save(path):
    import torch

    torch.save({"a": Command()}, path)


def index(target):
    """A fault that has an index of weights name a file."""

    def change(folder):
        (folder / "model.safetensors").unlink()
        row = {"metadata": {}, "weight_map": {"a": target}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(row))

    return change


def code(folder):
    """Code that a config and a tokenizer ask for."""
    (folder / "evil.py").write_text("import os\nos.mkdir('executed')\nclass A: pass\n")
    names = {"AutoConfig": "evil.A", "AutoModel": "evil.A", "AutoTokenizer": ["evil.A", "evil.A"]}
    config(auto_map=names, trust_remote_code=True, attn_implementation="evil.A")(folder)
    file = folder / "tokenizer_config.json"
    values = json.loads(file.read_text()) | {"auto_map": names, "tokenizer_class": "A"}
    file.write_text(json.dumps(values))


def tokens(edit):
    """A fault that changes the tokenizer."""

    def change(folder):
        values = json.loads((folder / "tokenizer.json").read_text())
        edit(values)
        (folder / "tokenizer.json").write_text(json.dumps(values))

    return change


def far(values):
    vocabulary = values["model"]["vocab"]
    vocabulary["party"] = 1 << 30
    vocabulary["Ġthe"] = (1 << 32) - 1


def loop(path):
    path.symlink_to(path.name)


def endless(path):
    path.symlink_to("/dev/zero")


DEEP = "[" * 100_000
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
SPECIAL = {"folder": os.mkdir, "pipe": os.mkfifo, "loop": loop, "endless": endless}
FAULTS = {
    **{f"{name} gone": lambda folder, name=name: (folder / name).unlink() for name in FILES},
    **{f"{name} empty": text(name, "") for name in FILES},
    **{f"{name} cut": part(name, 0.7) for name in FILES},
    **{f"{name} bytes": text(name, bytes(range(256)) * 9) for name in FILES},
    **{f"{name} {kind}": other(name, make) for name in FILES for kind, make in SPECIAL.items()},
    **{f"{name} deep": text(name, DEEP) for name in FILES if name.endswith(".json")},
    **{f"{name} list": text(name, "[1, 2]") for name in FILES if name.endswith(".json")},
    **{f"{name} null": text(name, "null") for name in FILES if name.endswith(".json")},
    **{f"{name} digits": text(name, "9" * 5000) for name in FILES if name.endswith(".json")},
    "config large": text("config.json", "[" + "1," * (40 << 20) + "1]"),
    "config of another kind": config(model_type="gpt2"),
    "config of no kind": config(model_type="no such"),
    "config of a list for a kind": config(model_type=["ldt"]),
    "config with code": code,
    "config without heads": config(num_attention_heads=0),
    "config with odd heads": config(num_attention_heads=7),
    "config huge": config(hidden_size=1 << 40),
    "config large vocabulary": config(vocab_size=1 << 31),
    "config negative": config(num_hidden_layers=-3),
    "config NaN": config(layer_norm_eps=float("nan")),
    "config text for number": config(hidden_size="64"),
    "config list for number": config(hidden_size=[64]),
    "config text for window": config(attention_window="16"),
    "config odd window": config(attention_window=15),
    "config huge windows": config(attention_window=[1 << 60, 16]),
    "config short list of windows": config(attention_window=[16]),
    "config activation": config(hidden_act="__import__"),
    "config dtype": config(dtype="load"),
    "config torch_dtype": config(torch_dtype={"a": 1}),
    "config architectures": config(architectures=7),
    "config labels list": config(id2label=["a", "b"]),
    "config labels twice": config(id2label={"0": "a", "1": "a"}),
    "config labels far": config(id2label={"0": "a", "1000000000000": "b"}),
    "config labels numbers": config(id2label={"0": 1, "1": None}),
    "config labels many": config(num_labels=1 << 40, id2label=None, label2id=None),
    "config quantization": config(quantization_config={"quant_method": "gptq"}),
    "config backend": config(attention_backend="os.system"),
    "config pooling": config(pooling="evil", pooling_layers=[0]),
    "config pooled layers": config(pooling_layers=[99, "x"]),
    "config merge": config(window_merge="evil"),
    "config ids": config(pad_token_id=-5, sep_token_id=1 << 40),
    "config max positions": config(max_position_embeddings=1),
    "config methods": config(from_dict=1, to_dict=2, __class__="x", save_pretrained=None),
    "config decoder": config(is_decoder=True, is_encoder_decoder=True, pruned_heads={"0": [0]}),
    "weights of a huge header": text("model.safetensors", struct.pack("<Q", 1 << 60) + b"{}"),
    "weights of no table": text("model.safetensors", struct.pack("<Q", 2) + b"[]"),
    "weights of a pointer": text("model.safetensors", "version https://git-lfs.github.com/spec\n"),
    "weights overlapping": header(each("data_offsets", [0, 4])),
    "weights beyond": header(each("data_offsets", [0, 1 << 50])),
    "weights of a shape": header(each("shape", [1 << 31, 1 << 31])),
    "weights of another type": header(each("dtype", "I32")),
    "weights of no type": header(each("dtype", "EVIL")),
    "weights without a row": header(lambda table: table.pop(next(reversed(table)))),
    "weights with other names": header(lambda table: table.update(a=table.popitem()[1])),
    "weights NaN": fill(struct.pack("<f", float("nan"))),
    "weights infinite": fill(struct.pack("<f", float("inf"))),
    "weights largest": fill(struct.pack("<f", 3.4e38)),
    "weights with code": to_pickle(torch_save),
    "weights with plain code": to_pickle(lambda path: path.write_bytes(pickle.dumps(Command()))),
    "index up": index("../../../etc/passwd"),
    "index absolute": index("/etc/passwd"),
    "index of itself": index("model.safetensors.index.json"),
    "index of none": index(""),
    "tokenizer with far ids": tokens(far),
    "tokenizer of no kind": tokens(lambda values: values["model"].update(type="Evil")),
    "tokenizer without vocabulary": tokens(lambda values: values["model"].update(vocab={})),
    "tokenizer without special": tokens(lambda values: values.update(added_tokens=[])),
    "tokenizer that does not split": tokens(lambda values: values.update(pre_tokenizer=None)),
    "tokenizer merges": tokens(lambda values: values["model"].update(merges=[["a", "zzz"]])),
    "tokenizer class": text("tokenizer_config.json", '{"tokenizer_class": "os.system"}'),
    "tokenizer length": text("tokenizer_config.json", '{"model_max_length": "long"}'),
    "tokenizer special": text("tokenizer_config.json", '{"cls_token": {"content": 7}}'),
    "tokenizer template": text(
        "tokenizer_config.json",
        '{"tokenizer_class": "RobertaTokenizer", "chat_template": "{{ cycler.__init__ }}"}',
    ),
}
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)
)
RECIPES = {
    "gone": lambda folder: (folder / "recipe.yaml").unlink(),
    "empty": text("recipe.yaml", ""),
    "list": text("recipe.yaml", "[1]"),
    "bytes": text("recipe.yaml", bytes(range(256))),
    "deep": text("recipe.yaml", DEEP),
    "code": text("recipe.yaml", "task: !!python/object/apply:os.mkdir [executed]\n"),
    "laughs": text("recipe.yaml", LAUGHS),
    "no task": text("recipe.yaml", "task: {name: evil}\n"),
    "whole disk": text(
        "recipe.yaml",
        "task: {name: classification}\ndata: {train: /**/*.jsonl, eval: /**/*, max_length: 64}\n",
    ),
    "a task for languages": text("recipe.yaml", "task: {name: mlm}\ndata: {train: x}\n"),
    "other labels": text("recipe.yaml", "task: {name: classification, labels: [a, b, c]}\n"),
    **{kind: other("recipe.yaml", make) for kind, make in SPECIAL.items()},
}
COMMANDS = {
    "predict": ("runs/done", "predict new.jsonl --model runs/done --output a.jsonl"),
    "finetune": ("long", "finetune ft.yaml"),
    "perplexity": ("masked", "evaluate masked --gold text.txt --length 32"),
    "characters": ("characters", "evaluate characters --part eval"),
    "generate": ("characters", "predict new.jsonl --model characters --output a.jsonl"),
    "convert": ("short", "convert short other --max-length 512 --window 16"),
}
CASES = [(command, fault) for command in COMMANDS for fault in FAULTS]


def ends_well(outcome, home):
    """Assert an end with one line, in time, without code run."""
    assert not outcome.bug, (outcome.code, outcome.err[-2000:])
    assert outcome.code in (0, 2, 3, 4, 5, 6, 8), outcome.err[-2000:]
    if outcome.code:
        last = outcome.err.strip().splitlines()[-1]
        assert last.startswith("error: ")
        assert len(last) < 1000
    assert not list(home.rglob("executed"))
    assert not [path for path in home.rglob("*") if ".tmp-" in path.name]


@pytest.mark.parametrize(("command", "fault"), sample(CASES, 12))
def test_a_model_folder_with_a_fault_is_a_line(command, fault, ldt, home):
    folder, line = COMMANDS[command]
    FAULTS[fault](home / folder)
    ends_well(ldt(*line.split(), cwd=home, limit=60, fault=None), home)


@pytest.mark.parametrize("fault", sample(RECIPES, 4))
def test_a_run_folder_with_another_recipe_is_a_line(fault, ldt, home):
    RECIPES[fault](home / "runs/done")
    outcome = ldt(*COMMANDS["predict"][1].split(), cwd=home, limit=30)
    ends_well(outcome, home)


def test_a_model_folder_that_is_no_folder_is_a_line(ldt, home):
    shutil.rmtree(home / "runs/done")
    for make in (os.mkfifo, loop, endless):
        make(home / "runs/done")
        outcome = ldt(*COMMANDS["predict"][1].split(), cwd=home, limit=30)
        assert (outcome.code, outcome.err.count("\n")) == (5, 1), outcome.err
        (home / "runs/done").unlink()
