"""Heads with one set of logits: classes or a number of a document, classes of tokens, words."""

import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from ldt.model.base import INPUTS, Head, LdtHeadOutput, first_real, given_words, takes_inputs
from ldt.model.config import usable_length
from ldt.model.heads.losses import (
    best_means,
    binary_cross_entropy,
    class_items,
    class_weights,
    cross_entropy,
    exact,
    mean,
    ranking_losses,
)
from ldt.model.heads.rows import (
    before_first,
    by_tokens,
    micro_batched,
    rows_of_documents,
    same_document,
)


class LdtForSequenceClassification(Head):
    """Labels or numbers for each row; ``logits`` are [b, num_labels].

    ``global_attention_mask=None`` means global attention on the first real token of each row, with
    ``inputs_embeds`` too; where ``config.global_attention`` names a query, on every real token
    before the first separator. With ``documents`` the rows are chunks of documents of queries, and
    the loss is that of a ranking: `ranking_losses` of the `best_means`, by ``config.ranking``.
    Differences from transformers' LongformerForSequenceClassification,
    besides those of `LdtModel`:

    - the answer is read from the first real token; transformers reads position 0, and under left
      padding its answer does not depend on the text;
    - with ``config.classifier_pooling`` mean or max it is read from all real tokens instead;
    - where the config has no ``problem_type``, it is guessed from the labels of each batch, and
      never stored: one label is regression; floats, or labels of the logits' shape, are
      multi_label_classification; else single_label_classification.
    """

    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.add_answer("document", config.num_labels)
        self.post_init()

    @takes_inputs(*INPUTS)
    def forward(
        self,
        *,
        labels=None,
        documents=None,
        example_ids=None,
        teacher=None,
        num_items_in_batch=None,
        **inputs,
    ):
        """Compute logits and loss, as `LdtHeadOutput`.

        Args:
            labels: [b] int64, -100 where there is none; or [b, num_labels]; or [b] numbers, of a
                document's relevance alike in all of its rows.
            documents: [b] int64, number of the row's document; rows of one document are its chunks.
            example_ids: [b] int64, number of the row's query.
            teacher: [b] numbers, another model's score of the document.
            num_items_in_batch: divisor of the loss, for several batches; see `Head`.
            inputs: input_ids [b, n] and other inputs of the encoder, see `PackedEncoder.forward`.
        """
        # So that memory does not grow with the documents of a query.
        if example_ids is not None and same_document(example_ids):
            lengths = inputs["attention_mask"].count_nonzero(1).tolist()
            groups = by_tokens(lengths, usable_length(self.config))
            (logits,) = micro_batched(lambda **rows: self._logits(**rows)[:1], groups, **inputs)
            others = {}
        else:
            logits, others = self._logits(**inputs)
        loss = None
        if labels is not None:
            labels = labels.to(logits.device)
            if documents is None:
                loss = self._loss(logits, labels, num_items_in_batch)
            else:
                rows = documents, example_ids, teacher
                loss = self._ranking_loss(logits, labels, *rows, num_items_in_batch)
        return LdtHeadOutput(loss, logits=logits, **others)

    def _default_globals(self, input_ids, inputs_embeds, attention_mask):
        if "query" in (self.config.global_attention or ()):
            return before_first(self.config, input_ids, attention_mask)
        return first_real(given_words(input_ids, inputs_embeds), attention_mask)

    def loss_items(self, *, labels, documents=None, example_ids=None, teacher=None, **inputs):
        """Number of items of the loss, a scalar: rows with a class, or the sum of their classes'
        weights; all numbers of ``labels`` in regression and with several labels a row; in a
        ranking (with ``documents``) queries, listwise those with a relevant document."""
        if documents is not None:
            each = labels.new_ones(labels.shape) if self._counts_all(teacher) else labels
            return (rows_of_documents(example_ids).to(each.dtype) @ each > 0).sum()
        if self._problem(labels) == "single_label_classification":
            return class_items(labels, class_weights(self.config, labels.device))
        return torch.tensor(labels.numel(), device=labels.device)

    def _loss(self, logits, labels, count):
        problem = self._problem(labels)
        weighing = class_weights(self.config, logits.device), self.config.focal_gamma
        if problem == "single_label_classification":
            return cross_entropy(logits, labels.flatten(), count, *weighing)
        logits = exact(logits)
        labels = labels.to(logits.dtype)
        if problem == "regression":
            total = F.mse_loss(logits.flatten(), labels.flatten(), reduction="sum")
        else:
            total = binary_cross_entropy(logits, labels, *weighing)
        return mean(total, self.loss_items(labels=labels), count)

    def _logits(self, **inputs):
        """Logits [b, num_labels], and the dict of the encoder's other outputs."""
        pooling = self.config.classifier_pooling
        x, packing, others = self.encode(read="first" if pooling == "cls" else "all", **inputs)
        return self.answer(x if pooling == "cls" else packing.reduce(x, pooling)), others

    def _counts_all(self, teacher):
        """True if queries that no document is relevant to have a loss."""
        return self.config.ranking["loss"] == "pointwise" or teacher is not None

    def _ranking_loss(self, logits, labels, documents, example_ids, teacher, count):
        """The mean of `ranking_losses` over queries; arguments as of `forward`."""
        logits, facts = exact(logits).squeeze(1), self.config.ranking
        documents, example_ids = (each.to(logits.device) for each in (documents, example_ids))
        member = rows_of_documents(example_ids * (documents.max() + 1) + documents)
        first = member.int().argmax(1)
        queries, sizes = example_ids[first].unique(return_counts=True)

        def grid(values):  # [queries, documents] of [documents], which are in the order of queries
            return pad_sequence(values.split(sizes.tolist()), batch_first=True)

        labels, there = grid(labels[first].to(logits.dtype)), grid(torch.ones_like(first)).bool()
        if teacher is not None:
            teacher = grid(teacher.to(logits)[first])
        scores = grid(best_means(logits, member, facts["best_chunks"]))
        losses = ranking_losses(scores, labels, there, teacher, facts["loss"] == "pointwise")
        items = len(queries) if self._counts_all(teacher) else (labels.sum(1) > 0).sum()
        return mean(losses.sum(), torch.as_tensor(items), count)

    def _problem(self, labels):
        if self.config.problem_type:
            return self.config.problem_type
        if self.num_labels == 1:
            return "regression"
        if labels.is_floating_point() or labels.shape == (len(labels), self.num_labels):
            return "multi_label_classification"
        return "single_label_classification"


class LdtForTokenClassification(Head):
    """A label for each token; ``logits`` are [b, n, num_labels].

    ``global_attention_mask=None`` means no global attention. Differences from transformers'
    LongformerForTokenClassification: those that `LdtForMaskedLM` names.
    """

    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.add_answer("tokens", config.num_labels)
        self.post_init()

    @takes_inputs(*INPUTS)
    def forward(self, *, labels: torch.Tensor | None = None, num_items_in_batch=None, **inputs):
        """Compute logits and loss, as `LdtHeadOutput`.

        Args:
            labels: [b, n] int64, -100 where there is none.
            num_items_in_batch: divisor of the loss, for several batches; see `Head`.
            inputs: input_ids [b, n] and other inputs of the encoder, see `PackedEncoder.forward`.
        """
        x, packing, others = self.encode(**inputs)
        logits = self.answer(x)
        weighing = class_weights(self.config, logits.device), self.config.focal_gamma
        return self.token_output(logits, packing, labels, others, num_items_in_batch, *weighing)

    def loss_items(self, *, labels, **inputs):
        """Number of labels other than -100, or the sum of their classes' weights, a scalar."""
        return class_items(labels, class_weights(self.config, labels.device))


class LdtForMaskedLM(Head):
    """Masked language model; ``logits`` are [b, n, vocabulary].

    ``global_attention_mask=None`` means no global attention. Differences from transformers'
    LongformerForMaskedLM, besides those of `LdtModel`: logits at padding are zero, labels at
    padding do not count, and a batch without any label has the loss 0 instead of nan.
    """

    accepts_loss_kwargs = True  # the Trainer counts the labels of all batches of a step

    def __init__(self, config):
        super().__init__(config)
        self.add_answer("words", config.vocab_size)
        names = [name for name, _ in self.named_modules()]
        self._decoder = next(name for name in names if name.split(".")[-1] == "decoder")
        holder = self._decoder.rpartition("decoder")[0]
        words = self.get_input_embeddings().weight
        tied = next(name for name, weight in self.named_parameters() if weight is words)
        self._tied_weights_keys = {f"{self._decoder}.weight": tied}
        if holder:  # a bias that two names have
            self._tied_weights_keys[f"{self._decoder}.bias"] = f"{holder}bias"
        self.post_init()

    def get_output_embeddings(self):
        """Linear layer [width, vocabulary] of the head, tied to the word embeddings."""
        return self.get_submodule(self._decoder)

    def set_output_embeddings(self, new_embeddings: torch.nn.Linear):
        """Replace the layer that `get_output_embeddings` gives."""
        self.set_submodule(self._decoder, new_embeddings)

    @takes_inputs(*INPUTS)
    def forward(self, *, labels=None, num_items_in_batch=None, at_labels=False, **inputs):
        """Compute logits and loss, as `LdtHeadOutput`.

        Args:
            labels: [b, n] int64, -100 where there is none.
            at_labels: True to compute the logits only where there is a label, which costs a
                seventh: ``logits`` are [labels, vocabulary], in the order of the labels.
            num_items_in_batch: divisor of the loss, for several batches; see `Head`.
            inputs: input_ids [b, n] and other inputs of the encoder, see `PackedEncoder.forward`.
        """
        x, packing, others = self.encode(**inputs)
        if not at_labels:
            logits = self.answer(x)
            return self.token_output(logits, packing, labels, others, num_items_in_batch)
        labels = packing.pack(labels.to(x.device).masked_fill(~packing.real(), -100))
        places = (labels != -100).nonzero().squeeze(1)
        logits = self.answer(x[places])
        loss = cross_entropy(logits, labels[places], num_items_in_batch)
        return LdtHeadOutput(loss, logits=logits, **others)
