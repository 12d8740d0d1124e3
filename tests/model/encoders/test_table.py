"""A second encoder is a file and a row: every head, loading and the Auto classes take it."""

import pytest
import torch
from huggingface_hub.dataclasses import strict
from longformers import batch, ldt_model
from torch import nn
from transformers import AutoModelForMaskedLM, PreTrainedConfig

from ldt import model as models
from ldt.errors import ModelError
from ldt.model.base import Head, PackedEncoder
from ldt.model.config import OwnConfig
from ldt.model.encoders import ENCODERS, encoder_class


@strict
class PlainConfig(OwnConfig, PreTrainedConfig):
    model_type = "plain"

    vocab_size: int = 40
    hidden_size: int = 16
    num_attention_heads: int = 2
    num_hidden_layers: int = 2
    layer_norm_eps: float = 1e-5
    hidden_dropout_prob: float = 0.0
    initializer_range: float = 0.3
    classifier_pooling: str = "cls"
    window_merge: str = "mean"
    class_weights: list[float] | None = None
    focal_gamma: float = 0.0
    sep_token_id: int | None = None
    tie_word_embeddings: bool = True
    pad_token_id: int | None = None


class PlainModel(PackedEncoder):
    """Every token sees every other; no global attention, no positions."""

    config: PlainConfig
    base_model_prefix = "plain"
    has_global_attention = False

    def __init__(self, config, add_pooling_layer=True):
        super().__init__(config)
        width = config.hidden_size
        self.words = nn.Embedding(config.vocab_size, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, config.num_attention_heads, 32, 0.0, batch_first=True)
            for _ in range(config.num_hidden_layers)
        )
        self.pooler = nn.Linear(width, width) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self):
        return self.words

    def _encode(self, words, packing, ids, read, *flags):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=~packing.real())
        x = packing.pack(x)
        if read != "all":
            x = packing.first(x)
        return self.pooler(x) if read == "pooled" else x, packing, {}


HEADS = {
    "LdtForMaskedLM": {"labels": torch.randint(0, 40, (4, 12))},
    "LdtForSequenceClassification": {"labels": torch.tensor([0, 1, 1, 0])},
    "LdtForTokenClassification": {"labels": torch.randint(0, 2, (4, 12))},
    "LdtForQuestionAnswering": dict.fromkeys(
        ("start_positions", "end_positions"), torch.tensor([2, 3, 4, 1])
    ),
    "LdtForCandidateRanking": {
        "positions": torch.tensor([[1, 2]] * 4),
        "labels": torch.tensor([0, 1, 1, 0]),
        "example_ids": torch.tensor([0, 1, 2, 3]),
    },
    "LdtForMultipleChoice": {
        "choices": torch.tensor([0, 1, 0, 1]),
        "labels": torch.tensor([0, 0, 1, 1]),
        "example_ids": torch.tensor([0, 0, 1, 1]),
    },
}


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """A row of the table."""
    monkeypatch.setitem(ENCODERS, "plain", f"{__name__}:PlainModel")
    torch.manual_seed(0)


@pytest.mark.parametrize("head", HEADS)
def test_every_head_learns_on_an_encoder_of_another_row(head):
    model = getattr(models, head)(PlainConfig()).train()
    assert type(model.base_model) is PlainModel
    assert model.plain is model.base_model
    inputs = {name: batch(12, "right")[name] for name in ("input_ids", "attention_mask")}
    step = torch.optim.SGD(model.parameters(), lr=0.01)
    before = model(**inputs, **HEADS[head]).loss
    before.backward()
    step.step()
    assert model(**inputs, **HEADS[head]).loss < before


def test_its_folder_is_read_by_the_table_and_as_strictly(tmp_path):
    model = models.LdtForMaskedLM(PlainConfig()).eval()
    assert model.lm_head.decoder.weight is model.plain.words.weight
    model.save_pretrained(tmp_path)
    inputs = {"input_ids": batch(12)["input_ids"]}
    for again in (
        models.load(tmp_path, models.LdtForMaskedLM),
        models.LdtForMaskedLM.from_pretrained(tmp_path),
    ):
        assert type(again.config) is PlainConfig
        assert again.new_weights == ()
        assert again.lm_head.decoder.weight is again.plain.words.weight
        assert torch.equal(again(**inputs).logits, model(**inputs).logits)
    new = models.load(tmp_path, models.LdtForSequenceClassification, num_labels=3)
    assert set(new.new_weights) == {name for name in new.state_dict() if "plain." not in name}
    with pytest.raises(ModelError, match="weights are missing: plain.layers.2"):
        models.load(tmp_path, models.LdtForMaskedLM, num_hidden_layers=3)
    with pytest.raises(ModelError, match="without a place .*: layers.1"):
        models.load(tmp_path, models.LdtForMaskedLM, num_hidden_layers=1)
    with pytest.raises(TypeError, match="PlainConfig has no field 'attention_window'"):
        models.load(tmp_path, models.LdtForMaskedLM, attention_window=8)


def test_a_head_for_the_auto_classes_names_the_config_of_its_encoder():
    head = models.LdtForMaskedLM.of(PlainModel)
    assert (head.config_class, head.__name__) == (PlainConfig, "LdtForMaskedLM")
    assert issubclass(head, models.LdtForMaskedLM)
    assert models.LdtForMaskedLM.of(encoder_class("ldt")) is models.LdtForMaskedLM
    config = ldt_model("ForMaskedLM").config
    assert type(AutoModelForMaskedLM.from_config(config)) is models.LdtForMaskedLM


@pytest.mark.parametrize(
    "name",
    [x.__name__ for x in vars(models).values() if isinstance(x, type) and issubclass(x, Head)],
)
def test_a_keyword_that_neither_head_nor_encoder_knows_is_an_error(name):
    model = ldt_model(name.removeprefix("Ldt"))
    inputs = batch(12, globals_="one")
    if name == "LdtForCandidateRanking":
        inputs["positions"] = torch.tensor([[1]] * 4)
    if name in ("LdtForEvidenceClassification", "LdtForPassageAnswering"):
        inputs["passage_positions"] = torch.tensor([[1]] * 4)
    if name == "LdtForEvidenceAnswering":
        inputs |= dict.fromkeys(
            ("passage_positions", "sentence_positions"), torch.ones(4, 1).long()
        )
    if name == "LdtForCoreference":
        inputs["words"] = torch.tensor([[[0, 1, 2, 0, -1, 0]]] * 4)
    states = model(**inputs, output_hidden_states=True).hidden_states
    if name != "LdtForMultipleChoice":  # which gives none of packed choices
        assert [x.shape for x in states] == [(4, 12, 16)] * 3
    for typo in ("label", "num_items_in_batches", "global_attention"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{typo}'"):
            model(**inputs, **{typo: torch.zeros(4, dtype=torch.long)})
    assert model.accepts_loss_kwargs == (name == "LdtForMaskedLM")
