"""The proof of an export, and what runs its files: inputs, comparison, threads."""

import pytest
import torch
from exported import make_run

import ldt
from ldt.export import graph
from ldt.export.graph import batch, prove
from ldt.inference.agreement import OutputCheck
from ldt.inference.runtimes import OnnxSession
from ldt.model import LdtForQuestionAnswering

OUTPUTS = ("start_logits", "end_logits")


def test_a_difference_that_is_no_number_or_has_no_spread_passes_no_proof():
    assert OutputCheck("case", 1, 0.5e-4, 1.0).ok
    for difference, spread in ((2e-4, 1.0), (float("nan"), 1.0), (1e-9, 0.0)):
        assert not OutputCheck("case", 1, difference, spread).ok


def test_each_output_is_compared(tokenizer_folder, tmp_path):
    run = make_run(tokenizer_folder, tmp_path / "run", "squad")
    model = LdtForQuestionAnswering.from_pretrained(run).eval()
    interface = graph.GraphInterface("question", ("input_ids", "attention_mask"), OUTPUTS)

    def written(inputs):
        found = model(**inputs)
        return {name: (found[name] + (name == wrong)).numpy() for name in OUTPUTS}

    for wrong in (None, *OUTPUTS):
        checks = prove(model, interface, written, 40)
        assert all(check.ok for check in checks) == (wrong is None)


@pytest.mark.parametrize("padding", ["none", "right", "left", "inside"])
def test_inputs_of_the_proof_have_padding_and_global_tokens_where_they_say(padding):
    config = ldt.model.LdtConfig(vocab_size=40)
    inputs = batch(config, graph.GraphInterface("question", (), ()), 4, 20, padding)
    real = inputs["attention_mask"]
    assert (real.sum() == 80) == (padding == "none")
    assert real.any(1).all()
    first, second, last = real[-1, [0, 1, -1]].tolist()
    assert {"left": not first and last, "right": first and not last}.get(padding, first and last)
    assert (padding == "inside") == (first and not second and last)
    for ids, mask, far in zip(*(inputs[name] for name in inputs), strict=True):
        place = ((ids == config.sep_token_id) & (mask == 1)).nonzero()[0].item()
        assert far.tolist() == [int(i < place and mask[i] == 1) for i in range(20)]
    first = batch(config, graph.GraphInterface("first", (), ()), 4, 20, padding)
    assert torch.equal(first["global_attention_mask"].sum(1), torch.ones(4).long())


def test_types_of_tokens_that_are_not_given_are_all_the_first():
    class Noted(OnnxSession):
        inputs = ("input_ids", "token_type_ids")

        def _open(self, file, threads):
            pass

        def _run(self, given):
            return given

    found = Noted("any")({"input_ids": torch.tensor([[7, 8]]), "attention_mask": torch.ones(1, 2)})
    assert {name: value.tolist() for name, value in found.items()} == {
        "input_ids": [[7, 8]],
        "token_type_ids": [[0, 0]],
    }
