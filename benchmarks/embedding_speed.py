"""Vectors of long documents by ldt and by sentence-transformers: time, memory, and difference.

    python benchmarks/embedding_speed.py            # minutes; sentence-transformers installed
    python benchmarks/embedding_speed.py --only sentence-transformers,1     # others stay
    python benchmarks/embedding_speed.py --tiny     # that it runs; the figures mean nothing

One folder, a ModernBERT of random weights with modules.json, that both read; documents of random
words, of 250 to 4,000 tokens. A fresh process each loads the model, embeds a document that does not
count, and then all. Both run in turn, with as many threads; the figures are medians. Beside other
programs the processor seconds of one thread (--threads 1) tell more than the clock.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

RESULT = Path(__file__).parent / "results" / "embedding_speed.json"
HERE = Path(__file__).parents[1]
WAYS = ("ldt", "sentence-transformers", "sentence-transformers,1")  # in batches of 32, and of 1
SHAPE = {
    "hidden_size": 256,
    "num_hidden_layers": 9,
    "num_attention_heads": 4,
    "intermediate_size": 384,
    "local_attention": 128,
}
TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "local_attention": 8,
}


def documents(count, longest):
    """Texts of words, from a sixteenth of ``longest`` to all of it, most of them short."""
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(900)]
    lengths = [int(longest / 16 ** draw.random()) for _ in range(count)]
    return [" ".join(draw.choices(words, k=length)) for length in lengths]


def make(folder, texts, shape, longest):
    """Write a random ModernBERT with a word for each token, and the modules of its vectors."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import ModernBertConfig, ModernBertModel, PreTrainedTokenizerFast

    roles = {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}
    backend = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [*roles.values()]
    backend.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=special))
    ids = {role: backend.token_to_id(token) for role, token in roles.items()}
    ends = [(roles[role], ids[role]) for role in ("cls", "sep")]
    backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    names = {f"{role}_token": token for role, token in roles.items()}
    longest += 2
    PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=longest, **names
    ).save_pretrained(folder)
    torch.manual_seed(0)
    used = {f"{role}_token_id": ids[role] for role in ("pad", "cls", "sep")}
    used |= {"bos_token_id": ids["cls"], "eos_token_id": ids["sep"]}
    size = {"vocab_size": backend.get_vocab_size(), "max_position_embeddings": longest}
    ModernBertModel(ModernBertConfig(**shape, **used, **size)).save_pretrained(folder)
    kinds = ("Transformer", "Pooling", "Normalize")
    places = ("", "1_Pooling", "2_Normalize")
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(zip(kinds, places, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": shape["hidden_size"], "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def embedder(way, folder):
    """A function that gives the vectors of texts."""
    if way == "ldt":
        import ldt

        model = ldt.load(folder, device="cpu")
        return lambda texts: np.concatenate([each["vectors"] for each in model(texts)])
    from sentence_transformers import SentenceTransformer

    encode = SentenceTransformer(folder, device="cpu").encode
    return partial(encode, batch_size=1) if way.endswith(",1") else encode


def measure(way, folder, file):
    """Seconds of a way in this process, and the MB that embedding adds at its peak."""
    texts = json.loads((folder / "texts.json").read_text())
    embed = embedder(way, str(folder))
    embed(texts[:1])
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = memory("VmRSS")
    start, spent = time.perf_counter(), time.process_time()
    vectors = embed(texts)
    seconds = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - spent}
    np.save(file, vectors)
    return seconds | {"added_mb": memory("VmHWM") - before}


def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(field))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="a smoke test")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=WAYS, nargs="+", default=WAYS)
    parser.add_argument("--json", type=Path, default=RESULT, help="file of the result")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        way, folder, file = options.measure
        print(json.dumps(measure(way, Path(folder), Path(file))))
        return
    from ldt.inference.measure import machine

    count, longest, shape = options.documents, 4000, SHAPE
    if options.tiny:
        count, longest, shape = 4, 60, TINY
    ways = WAYS[:1] if options.tiny else options.only
    rounds = json.loads(options.json.read_text())["rounds"] if options.json.exists() else {}
    rounds |= {way: [] for way in ways}
    with TemporaryDirectory() as place:
        folder = Path(place)
        texts = documents(count, longest)
        (folder / "texts.json").write_text(json.dumps(texts))
        make(folder, texts, shape, longest)
        for _ in range(1 if options.tiny else options.rounds):
            for way in ways:
                command = [sys.executable, __file__, "--measure", way, place, f"{place}/{way}.npy"]
                environment = os.environ | {"HF_HUB_OFFLINE": "1"}
                environment["OMP_NUM_THREADS"] = str(options.threads)
                search = [str(HERE), environment.get("PYTHONPATH", "")]
                environment["PYTHONPATH"] = os.pathsep.join(filter(None, search))
                done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
                rounds[way].append(json.loads(done.stdout.splitlines()[-1]))
        vectors = [np.load(f"{place}/{way}.npy") for way in ways]
    figures = {
        way: {name: statistics.median(each[name] for each in found) for name in found[0]}
        for way, found in rounds.items()
    }
    result = {
        "machine": machine(),
        "threads": options.threads,
        "documents": count,
        "tokens": sum(len(text.split()) + 2 for text in texts),
        "longest": longest + 2,
        "rounds": rounds,
        "medians": figures,
        "largest_difference": float(np.abs(vectors[0] - vectors[-1]).max()),
    }
    for way in figures.keys() - {"ldt"}:
        shares = {name: figures["ldt"][name] / x for name, x in figures[way].items()}
        result[f"ldt beside {way}"] = shares
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: x for name, x in result.items() if name != "rounds"}, indent=1))


if __name__ == "__main__":
    main()
