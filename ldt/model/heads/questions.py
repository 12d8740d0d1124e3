"""Heads that answer questions by spans, classes and passages at markers, and their losses."""

import copy
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F
from transformers.activations import gelu

from ldt.attention.matmul import Linear
from ldt.model.base import (
    INPUTS,
    ClassificationHead,
    Head,
    LdtHeadOutput,
    at_positions,
    check_positions,
    real_tokens,
    takes_inputs,
)
from ldt.model.heads.losses import counts, cross_entropy, exact, mean, weighted
from ldt.model.heads.rows import (
    before_first,
    length_of,
    micro_batched,
    rows_of_documents,
    same_document,
)

# Of each part of an answer: names of its outputs and labels, in the order of the losses.
OUTPUTS = {
    "span": ("start_logits", "end_logits"),
    "class": ("logits",),
    "passages": ("passage_logits",),
    "sentences": ("sentence_logits",),
}
LABELS = {
    "span": ("start_positions", "end_positions"),
    "class": ("labels",),
    "passages": ("passage_labels",),
    "sentences": ("sentence_labels",),
}
POSITIONS = {"passages": "passage_positions", "sentences": "sentence_positions"}


class QuestionHead(Head):
    """Base class of heads that answer a question about the document behind it, in several parts.

    A subclass names its ``parts`` in the order of their layers:

    - ``span``: its start and end, ``start_logits`` and ``end_logits`` [b, n]; the loss is the mean
      of two `span_loss`;
    - ``class``: read at the first real token, ``logits`` [b, num_labels]; a cross entropy;
    - ``passages`` and ``sentences``: each scored at its marker by two layers, ``passage_logits``
      and ``sentence_logits`` [b, k]; a binary cross entropy of each, or `one_passage_loss` of the
      passages where ``config.passage_loss`` is ``one``.

    The losses of several parts are weighted by ``config.evidence_weights``, or 1 each; each is a
    mean over what has a label, 0 where nothing has.

    ``global_attention_mask=None`` means global attention on every real token before the first
    separator of its row, that is on ``<s>`` and the question in ``<s> question </s> document </s>``
    and in ``<s> question </s></s> document </s>``.
    """

    parts: ClassVar[tuple[str, ...]]

    def __init__(self, config):
        super().__init__(config)
        for part in self.parts:
            if part == "class":
                self.classifier = ClassificationHead(config)
            elif part == "passages":
                self.passage_classifier = EvidenceHead(config)
            elif part == "sentences":
                self.sentence_classifier = EvidenceHead(config)
            elif len(self.parts) == 1:
                self.add_answer("spans", 2)
            else:
                self.qa_outputs = Linear(config.hidden_size, 2)
                self._answer_names = ("qa_outputs",)
        self.post_init()

    @takes_inputs(*INPUTS)
    def forward(
        self,
        *,
        start_positions=None,
        end_positions=None,
        labels=None,
        passage_positions=None,
        passage_labels=None,
        sentence_positions=None,
        sentence_labels=None,
        example_ids=None,
        num_items_in_batch=None,
        **inputs,
    ):
        """Compute the logits of the head's ``parts`` and their loss; positions and labels of parts
        that the head lacks are not read.

        Args:
            start_positions, end_positions: [b] int64; or [b, spans], all right ones, -100 where a
                row has fewer. A row without an answer may point to its first token.
            labels: [b] int64, the class, -100 for none.
            passage_positions, sentence_positions: [b, k] int64, the marker of each, -100 where a
                row has fewer.
            passage_labels, sentence_labels: [b, k] int64, 1 of a right one, else 0; -100 for none.
            example_ids: [b] int64, the document of each row, any numbers; None: each its own. Where
                rows share one, they are run one by one, so that memory does not grow with their
                number; hidden states and attentions are then not given.
            num_items_in_batch: divisors of the parts' losses, for several batches; see `Head`.
            inputs: input_ids [b, n] and other inputs of the encoder, see `PackedEncoder.forward`.

        Returns:
            `LdtHeadOutput`. The loss is None unless all labels of the parts are given.

        Raises:
            ValueError: besides those of `LdtModel`: no positions of a part, or one outside of the
                input; no ``global_attention_mask``, and a row has no separator or there are no
                ``input_ids``.
        """
        places = {"passages": passage_positions, "sentences": sentence_positions}
        places = {part: places[part] for part in POSITIONS if part in self.parts}
        for part, positions in places.items():
            if positions is None:
                raise ValueError(f"give {POSITIONS[part]}, the marker of each")
            check_positions(positions, length_of(inputs))
        if same_document(example_ids):
            scores = micro_batched(lambda **row: self._scores(**row)[0], **places, **inputs)
            others = {}
        else:
            scores, others = self._scores(**places, **inputs)
        real, *scores = scores
        names = (name for part in self.parts for name in OUTPUTS[part])
        outputs, loss = dict(zip(names, scores, strict=True)), None
        golds = {
            "span": (start_positions, end_positions),
            "class": (labels,),
            "passages": (passage_labels,),
            "sentences": (sentence_labels,),
        }
        if all(gold is not None for part in self.parts for gold in golds[part]):
            losses = self._losses(outputs, golds, places, real, example_ids, num_items_in_batch)
            loss = weighted(losses, self.config.evidence_weights if len(losses) > 1 else {})
        return LdtHeadOutput(loss, **outputs, **others)

    def _default_globals(self, input_ids, inputs_embeds, attention_mask):
        return before_first(self.config, input_ids, attention_mask)

    def loss_items(self, *, input_ids, attention_mask=None, example_ids=None, **inputs):
        """Number of items of each part's loss, [items] int64: documents with a right start, and
        with a right end; rows with a class; labels of passages, or rows with any where one is
        right; labels of sentences."""
        items = []
        for part in self._learned():
            labels = [inputs[name] for name in LABELS[part]]
            if part == "span":
                real = real_tokens(tuple(input_ids.shape), attention_mask, labels[0].device)
                for positions in labels:
                    right = _right_places(positions, real).any(1)
                    if example_ids is not None:
                        right = (rows_of_documents(example_ids) & right).any(1)
                    items.append(right.sum())
                continue
            known = labels[0] != -100
            if part in POSITIONS:
                known = known_evidence(labels[0], inputs[POSITIONS[part]])
            items.append((known.any(1) if self._one_is_right(part) else known).sum())
        return torch.stack(items)

    def _learned(self):
        return [part for part in LABELS if part in self.parts]

    def _one_is_right(self, part):
        """True of passages of which one is right, or none."""
        return part == "passages" and self.config.passage_loss == "one"

    def _scores(self, *, passages=None, sentences=None, **inputs):
        """((real tokens [b, n], outputs of the parts in their order), the encoder's others)."""
        x, packing, others = self.encode(**inputs)
        scores, padded = [packing.real()], None
        for part in self.parts:
            if part == "span":
                logits = self.answer(x)
                logits = packing.unpack(logits, torch.finfo(logits.dtype).min)
                scores += [side.contiguous() for side in logits.unbind(-1)]
            elif part == "class":
                scores.append(self.classifier(packing.first(x)))
            else:
                padded = packing.unpack(x) if padded is None else padded
                positions = passages if part == "passages" else sentences
                scores.append(self.get_submodule(f"{part[:-1]}_classifier")(padded, positions))
        return tuple(scores), others

    def _losses(self, outputs, golds, places, real, example_ids, num_items_in_batch):
        parts = self._learned()
        sizes = iter(counts(num_items_in_batch, sum(len(LABELS[part]) for part in parts)))
        losses = {}
        for part in parts:
            logits, labels = [outputs[name] for name in OUTPUTS[part]], golds[part]
            if part == "span":
                sides = zip(logits, labels, strict=True)
                sides = [span_loss(*side, real, example_ids, next(sizes)) for side in sides]
                losses[part] = sum(sides) / 2
            elif part == "class":
                (logits,), (labels,) = logits, labels
                losses[part] = cross_entropy(logits, labels.to(logits.device), next(sizes))
            else:
                loss = one_passage_loss if self._one_is_right(part) else evidence_loss
                losses[part] = loss(*logits, *labels, places[part], next(sizes))
        return losses


class LdtForQuestionAnswering(QuestionHead):
    """Start and end of an answer; ``start_logits`` and ``end_logits`` are [b, n].

    Differences from transformers' LongformerForQuestionAnswering, besides those of `LdtModel`:

    - any number of separators from one on will do, each row is looked at by itself;
    - padding does not compete: its logits are the dtype's least number, so a loss is that of the
      row without padding. Positions outside of a row's real tokens are ignored, as transformers
      ignores those outside of the input; a batch without any other has the loss 0 instead of nan;
    - a row may have several right positions, and several rows may be one document (`span_loss`);
    - ``num_labels`` is always 2: a config with another number is copied and changed.
    """

    parts: ClassVar[tuple[str, ...]] = ("span",)

    def __init__(self, config):
        if config.num_labels != 2:
            config = copy.deepcopy(config)
            config.num_labels = 2
        super().__init__(config)


class LdtForEvidenceClassification(QuestionHead):
    """A class for each row, and which passages it rests on, as in Span NLI BERT (Koreeda and
    Manning 2021, arXiv:2110.01799, section 4)."""

    parts: ClassVar[tuple[str, ...]] = ("class", "passages")


class LdtForPassageAnswering(QuestionHead):
    """A span of the document with the kind of the answer, as in BERT-joint (Alberti et al. 2019,
    arXiv:1901.08634), and the passages it rests on."""

    parts: ClassVar[tuple[str, ...]] = ("class", "passages", "span")


class LdtForEvidenceAnswering(QuestionHead):
    """A span, yes or no; and which paragraphs and sentences say so: the head of Longformer's
    HotpotQA (Beltagy et al. 2020, arXiv:2004.05150, appendix D)."""

    parts: ClassVar[tuple[str, ...]] = ("span", "class", "passages", "sentences")


class EvidenceHead(nn.Module):
    """Dense, gelu, one number: whether what a token stands for is evidence."""

    def __init__(self, config):
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.out_proj = Linear(config.hidden_size, 1)

    def forward(self, x: torch.Tensor, positions: torch.Tensor):
        """Scores [b, k] of states [b, n, d] at positions [b, k]; the dtype's least number where a
        position is below 0."""
        logits = self.out_proj(gelu(self.dense(at_positions(x, positions)))).squeeze(-1)
        return logits.masked_fill(positions < 0, torch.finfo(logits.dtype).min)


def known_evidence(labels: torch.Tensor, positions: torch.Tensor):
    """True where a label [b, k] is not -100 and its position [b, k] not below 0, [b, k] bool."""
    return (labels != -100) & (positions >= 0)


def evidence_loss(logits: torch.Tensor, labels: torch.Tensor, positions: torch.Tensor, count=None):
    """Binary cross entropy, the mean over the labels other than -100; 0 where there is none.

    Args:
        logits, labels, positions: [b, k], as `QuestionHead.forward` has them.
        count: divides in place of the number of labels.
    """
    labels = labels.to(logits.device)
    known = known_evidence(labels, positions)
    logits = exact(logits).masked_fill(~known, 0)
    gold = labels.masked_fill(~known, 0).to(logits.dtype)
    each = F.binary_cross_entropy_with_logits(logits, gold, reduction="none")
    return mean(each.masked_fill(~known, 0).sum(), known.sum(), count)


def one_passage_loss(logits: torch.Tensor, labels: torch.Tensor, positions, count=None):
    """Negative log likelihood of the right passages of a row, or of "none" where none is right.

    The logarithm of the sum of exp(logit) over the passages of a row and of exp(0) for "none", less
    that over its right ones, or 0; the mean over rows that have a label. So a logit is how much
    likelier its passage is than none, whatever else stands in its input.

    Args:
        logits, labels, positions: [b, k]; passages without a label have no part in it.
        count: divides in place of the number of rows that have a label.
    """
    labels = labels.to(logits.device)
    known = known_evidence(labels, positions.to(logits.device))
    logits = F.pad(exact(logits), (0, 1))  # 0 for none, in the last place
    least = torch.finfo(logits.dtype).min
    right = F.pad(known & (labels == 1), (0, 1))
    right[:, -1] = ~right.any(1)
    total = logits.masked_fill(~F.pad(known, (0, 1), value=True), least).logsumexp(1)
    losses = total - logits.masked_fill(~right, least).logsumexp(1)
    some = known.any(1)
    return mean(losses.masked_fill(~some, 0).sum(), some.sum(), count)


def balanced_loss(logits: torch.Tensor, labels: torch.Tensor, positions: torch.Tensor, count=None):
    """Cross entropy of passages in which the evidence of a row has the weight of its other passages
    together.

    In a row with p passages that are evidence and n that are not, each of the first has weight n +
    1 and each of the others p + 1; the weighted mean over them, and the mean of it over rows with a
    labelled passage. 0 where there is none.

    Args:
        logits, labels, positions: [b, k]; labels 1 of evidence, else 0, -100 for none.
        count: divides in place of the number of rows.

    Source: Dasigi et al. 2021 (arXiv:2105.03011), their code, which has a row in a batch.
    """
    labels = labels.to(logits.device)
    known = known_evidence(labels, positions.to(logits.device))
    right = known & (labels == 1)
    ones = right.sum(1, keepdim=True)
    zeros = known.sum(1, keepdim=True) - ones
    logits = exact(logits).masked_fill(~known, 0)
    weights = torch.where(right, zeros + 1, ones + 1).masked_fill(~known, 0).to(logits.dtype)
    each = F.binary_cross_entropy_with_logits(
        logits, right.to(logits.dtype), weights, reduction="none"
    )
    total = weights.sum(1)
    rows = each.sum(1) / (total + (total == 0))
    return mean(rows.sum(), known.any(1).sum(), count)


def span_loss(logits: torch.Tensor, positions: torch.Tensor, real, example_ids=None, count=None):
    """OR loss of a span's ends: negative log likelihood of all right positions of a document
    together.

    The logarithm of the sum of exp(logit) over all tokens of a document, less that over its right
    positions, each counted once; the mean over documents that have any, 0 where none has. With one
    right position and one row a document it is the cross entropy.

    Args:
        logits: [b, n], in any precision.
        positions: [b] or [b, spans] int64; those outside of a row's real tokens are ignored.
        real: [b, n] bool, False at padding, which does not compete.
        example_ids: [b] int64, the document of each row, any numbers; None: each is one of its own.
        count: divides in place of the number of documents with a right position: those of all
            batches of a step.

    Returns:
        A scalar, at least 0. Documents without a right position have no gradient.

    Source: Clark & Gardner 2018 (arXiv:1710.10723), section 4, as Beltagy et al. 2020
    (arXiv:2004.05150) use it for TriviaQA.
    """
    logits = exact(logits)
    least = torch.finfo(logits.dtype).min
    gold = _right_places(positions.to(logits.device), real)
    # The least number in place of -inf: it counts nothing, and no gradient becomes nan.
    right = logits.masked_fill(~gold, least).logsumexp(1)
    total = logits.masked_fill(~real, least).logsumexp(1)
    some = gold.any(1)
    if example_ids is not None:
        mine = rows_of_documents(example_ids.to(logits.device))
        right, total = (torch.where(mine, side, least).logsumexp(1) for side in (right, total))
        some = (mine & some).any(1)
    return mean((total - right).masked_fill(~some, 0).sum(), some.sum(), count)


def _right_places(positions, real):
    """[b, n] bool: the real tokens that ``positions`` name, [b] or [b, spans]."""
    rows, length = real.shape
    positions = positions.view(rows, -1)
    inside = (positions >= 0) & (positions < length)
    place = positions.masked_fill(~inside, length)  # one column more, for those that are nowhere
    return real.new_zeros(rows, length + 1).scatter(1, place, True)[:, :length] & real
