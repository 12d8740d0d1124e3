"""The exported graph beside the model: heads, windows, padding, global tokens, rows and lengths."""

import os
import subprocess
import sys
from collections import defaultdict
from itertools import product

import pytest
import torch
from transformers import set_seed

from ldt.inference.measure import STATUS
from ldt.model import (
    LdtConfig,
    LdtForCandidateRanking,
    LdtForMultipleChoice,
    LdtForQuestionAnswering,
    LdtForSequenceClassification,
    LdtForTokenClassification,
    LdtModernBertConfig,
)

for package in ("onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="pip install 'ldt-toolkit[export]' has what exports")

from ldt.export.graph import GraphInterface, batch, write  # noqa: E402
from ldt.inference.agreement import TOLERANCE  # noqa: E402
from ldt.inference.runtimes import OnnxSession  # noqa: E402

pytestmark = pytest.mark.nightly  # minutes

LENGTHS = (1, 2, 17, 130, 515, 1000, 8192)
PADDINGS = ("none", "right", "left", "inside")
COUNTS = (0, 1, 7, 40)  # global tokens of the first row; the next one has half as many
SHORT = 1000  # tokens; above, some cases stand for all
LOGITS, SPANS = ("logits",), ("start_logits", "end_logits")
WINDOWS = ([16, 64], [512, 2])
CASES = [  # head, config, windows, how global tokens are found, outputs
    *(
        (head, LdtConfig, {"attention_window": windows}, "given", outputs)
        for windows in WINDOWS
        for head, outputs in {
            LdtForSequenceClassification: LOGITS,
            LdtForTokenClassification: LOGITS,
            LdtForQuestionAnswering: SPANS,
            LdtForMultipleChoice: LOGITS,
            LdtForCandidateRanking: LOGITS,
        }.items()
    ),
    (LdtForSequenceClassification, LdtConfig, {"attention_window": 64}, "first", LOGITS),
    (LdtForQuestionAnswering, LdtConfig, {"attention_window": [130, 8]}, "question", SPANS),
    (
        LdtForTokenClassification,
        LdtModernBertConfig,
        {"local_attention": 16, "full_attention_window": 64},
        "given",
        LOGITS,
    ),
]


def made(head, config, windows):
    """A random model of two layers of width 32."""
    set_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    size |= {"num_hidden_layers": 2, "vocab_size": 300, "max_position_embeddings": 8200}
    size |= {"initializer_range": 0.5, "type_vocab_size": 1}
    size |= {"pad_token_id": 1, "sep_token_id": 2}
    size |= {"num_labels": {LdtForQuestionAnswering: 2, LdtForMultipleChoice: 1}.get(head, 3)}
    return head(config(**(size | windows))).eval()


def inputs_of(config, interface, rows, tokens, padding, count):
    """`batch` with ``count`` global tokens in the first row, and half as many in the next."""
    inputs = batch(config, interface, rows, tokens, padding)
    if interface.globals_ == "given":
        chosen = torch.rand(rows, tokens, generator=torch.Generator().manual_seed(tokens))
        order = torch.where(inputs["attention_mask"] == 1, chosen, -1.0).argsort(1).argsort(1)
        least = tokens - torch.tensor([count // (row + 1) for row in range(rows)])[:, None]
        inputs["global_attention_mask"] = inputs["attention_mask"] * (order >= least)
    return inputs


def grid(given):
    """(rows, tokens, padding, global tokens) of the cases."""
    counts = COUNTS if given else (1,)
    for rows, tokens, padding, count in product((1, 3), LENGTHS, PADDINGS, counts):
        if rows == 1 and padding != "none":
            continue  # the first row has none
        if tokens > SHORT and (rows > 1) != (padding == "left" and count in (1, 7)):
            continue
        yield 2 if tokens > SHORT and rows > 1 else rows, tokens, padding, count


@pytest.mark.parametrize(
    ("head", "config", "windows", "globals_", "outputs"),
    CASES,
    ids=[f"{c[0].__name__}-{c[1].__name__}-{'-'.join(map(str, c[2].values()))}" for c in CASES],
)
@torch.no_grad()
def test_a_graph_equals_its_model_at_all_sizes(
    head, config, windows, globals_, outputs, tmp_path, capsys
):
    model = made(head, config, windows)
    asked = ["input_ids", "attention_mask"]
    asked += ["global_attention_mask"] * (globals_ == "given")
    asked += ["positions"] * (head is LdtForCandidateRanking)
    interface = GraphInterface(globals_, tuple(asked), outputs)
    file = tmp_path / "model.onnx"
    write(model, interface, 40, file)
    session = OnnxSession(file)
    gaps, values = {}, []
    for case in grid(globals_ == "given"):
        inputs = inputs_of(model.config, interface, *case)
        written, found = session(inputs), model(**inputs)
        expected = [found[name] for name in outputs]
        pairs = zip(outputs, expected, strict=True)
        gaps[case] = max((torch.from_numpy(written[name]) - x).abs().max() for name, x in pairs)
        values += [x[x > torch.finfo(x.dtype).min] for x in expected]
    values = torch.cat(values)
    spread = (values.max() - values.min()).item()
    by_part = defaultdict(float)
    for (rows, tokens, padding, count), gap in gaps.items():
        parts = f"{rows} rows", f"{tokens:,} tokens", f"padding {padding}", f"{count} global tokens"
        for part in parts:
            by_part[part] = max(by_part[part], gap.item() / spread)
    with capsys.disabled():
        print(f"\n{head.__name__}, {windows}, {globals_}: {len(gaps)} cases, spread {spread:.3g}")
        for part, gap in by_part.items():
            print(f"  {part:<20}{gap:.1e}")
    assert max(by_part.values()) <= TOLERANCE


PEAK = """
import sys
import torch
from ldt.inference.measure import peak_mib
from ldt.inference.runtimes import OnnxSession
from pathlib import Path
session = OnnxSession(Path(sys.argv[1]))
def run(tokens):
    ids = torch.full((1, tokens), 5)
    session({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
print(peak_mib(lambda: run(int(sys.argv[2])), lambda: run(64)))
"""


@pytest.mark.skipif(not STATUS.exists(), reason="memory is told by Linux alone")
def test_memory_grows_with_the_length_and_no_faster(tmp_path):
    size = {"hidden_size": 192, "intermediate_size": 384, "num_attention_heads": 3}
    size |= {"num_hidden_layers": 2, "vocab_size": 300, "max_position_embeddings": 16400}
    model = LdtForSequenceClassification(LdtConfig(attention_window=512, **size)).eval()
    interface = GraphInterface("first", ("input_ids", "attention_mask"), LOGITS)
    write(model, interface, 40, tmp_path / "model.onnx")
    peaks = []
    for tokens in (4096, 16384):
        command = [sys.executable, "-c", PEAK, str(tmp_path / "model.onnx"), str(tokens)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
        peaks.append(float(done.stdout))
    # Four times the tokens; scores of all pairs would be sixteen times as much, 3.2 GB.
    assert 3 < peaks[1] / peaks[0] < 5, peaks
