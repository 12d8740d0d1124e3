"""Embeddings: vectors of texts, of spans in them or of tokens, and losses over all of a batch."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import distributed
from torch.distributed.nn.functional import all_gather
from torch.nn import functional as F

from ldt.attention.matmul import Linear
from ldt.model.base import INPUTS, Head, LdtHeadOutput, first_real, given_words, takes_inputs
from ldt.model.heads.losses import exact, mean
from ldt.model.heads.rows import micro_batched

QUERY, POSITIVE, NEGATIVE = range(3)  # labels of rows
PRODUCTS = 1 << 25  # of vectors that are compared at a time

# `config.embedding`, which may have some of these keys.
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "pooling": "mean",  # of a text's tokens: mean, max, cls (the first one) or last
        "normalize": True,  # vectors have the length 1
        "vectors": "document",  # one of each text, or "tokens": one of each token
        "size": None,  # of the vectors, by a layer without bias; None: the encoder's width
        "dimensions": (),  # first dimensions that are vectors too (Matryoshka), most first
        "prompts": {},  # texts in front of a "query" and of a "document"
        "skip": (),  # ids of tokens that documents have no vectors of
        "loss": "contrastive",  # a name in `LOSSES`
        "temperature": 0.05,  # divides the similarities
    }
)


class LdtForEmbedding(Head):
    """Embedding vectors of texts; ``vectors`` are [b, c, dim] in float32 at least.

    ``config.embedding`` has the settings (`DEFAULTS`). A row has one vector; with ``spans`` one for
    each span, the mean (or maximum) of its tokens' states in the whole row; with ``vectors:
    tokens`` one for each token.

    ``global_attention_mask=None`` means global attention on the first real token of each row where
    that is what is pooled, else none.
    """

    whole_batch_loss = True

    def __init__(self, config):
        super().__init__(config)
        self.settings = {**DEFAULTS, **config.embedding}
        size = self.settings["size"]
        self.project = Linear(config.hidden_size, size, bias=False) if size else None
        self.post_init()

    @takes_inputs(*INPUTS)
    def forward(
        self,
        *,
        spans=None,
        labels=None,
        texts=None,
        scores=None,
        example_ids=None,
        groups=None,
        num_items_in_batch=None,
        **inputs,
    ):
        """Compute vectors, and the loss of a batch of queries and documents, as `LdtHeadOutput`.

        The loss compares the texts of all rows, and while training those of all processes. Its
        gradients are exact however few rows are run at a time: they are run again in the backward
        pass, with the random numbers that they had (Gao et al. 2021, arXiv:2101.06983).

        Args:
            spans: [b, c, 2] int64, first token of a span in its row and the one behind the last;
                two equal ones stand for none, whose vector is zero.
            labels: [b] int64, the role of each row for the query of its example: `QUERY`,
                `POSITIVE` or `NEGATIVE`; -100 has no part in the loss.
            texts: [b] int64, a number of the row's text, the same for equal texts. Rows of one text
                are parts of it.
            scores: [b] float, a teacher's or a person's score of a row for its query.
            example_ids: [b] int64, the example of each row.
            groups: numbers of the rows that are run at a time, in lists that have each row once;
                None: all.
            num_items_in_batch: divisor of the loss, for several batches; see `Head`.
            inputs: input_ids [b, n] and other inputs of the encoder, see `PackedEncoder.forward`.
        """
        if spans is not None:
            inputs["spans"] = spans
        if groups is not None and len(groups) > 1:
            (vectors,) = micro_batched(lambda **rows: self._vectors(**rows)[:1], groups, **inputs)
            others = {}
        else:
            vectors, others = self._vectors(**inputs)
        loss = None
        if labels is not None:
            known = vectors
            if self._each and self.settings["skip"]:
                skipped = torch.isin(
                    inputs["input_ids"], torch.tensor(self.settings["skip"], device=labels.device)
                )
                skipped &= (labels > QUERY)[:, None]
                known = vectors.masked_fill(skipped[..., None], 0)
            total = self._loss(known, labels, texts, scores, example_ids)
            items = self.loss_items(labels=labels, texts=texts, example_ids=example_ids)
            loss = mean(total, items, num_items_in_batch)
        return LdtHeadOutput(loss, vectors=vectors, **others)

    def _default_globals(self, input_ids, inputs_embeds, attention_mask):
        if self.settings["pooling"] != "cls":
            return None
        return first_real(given_words(input_ids, inputs_embeds), attention_mask)

    def loss_items(self, *, labels, texts, example_ids, **inputs):
        """Number of different pairs of a query and a right text, a scalar; arguments as of
        `forward`."""
        pairs = torch.stack([example_ids, texts])[:, labels == POSITIVE]
        return torch.tensor(pairs.unique(dim=1).shape[1], device=labels.device)

    def _vectors(self, spans=None, **inputs):
        """Vectors [b, c, dim], and the dict of the encoder's other outputs."""
        x, packing, others = self.encode(**inputs)
        pooling = self.settings["pooling"]
        if spans is not None:
            vectors = _of_spans(exact(x), packing, spans, "max" if pooling == "max" else "mean")
        elif self._each:
            vectors = packing.unpack(x)
        else:
            vectors = pooled(exact(x), packing, pooling)[:, None]
        if self.project is not None:
            vectors = self.project(vectors.to(x.dtype))
        vectors = exact(vectors)
        return F.normalize(vectors, dim=-1) if self.settings["normalize"] else vectors, others

    def _loss(self, vectors, labels, texts, scores, example_ids):
        """The sum of the loss over items, of whole vectors and of each of their beginnings."""
        loss, temperature = LOSSES[self.settings["loss"]], self.settings["temperature"]
        share = self.training and distributed.is_available() and distributed.is_initialized()
        whole = vectors.shape[-1]
        sizes = [whole, *(size for size in self.settings["dimensions"] if size < whole)]
        total = 0
        for size in sizes:
            cut = F.normalize(vectors[..., :size], dim=-1)
            batch = ComparedBatch(cut, labels, texts, scores, example_ids, share, each=self._each)
            total = total + loss(batch, temperature)
        return total

    @property
    def _each(self):
        return self.settings["vectors"] == "tokens"


def pooled(x: torch.Tensor, packing, pooling: str):
    """Pool packed states [total, d] to a vector a row, [b, d]: by ``mean`` or ``max`` of its real
    tokens, its first one (``cls``), or its ``last``."""
    if pooling in ("mean", "max"):
        return packing.reduce(x, pooling)
    return packing.first(x) if pooling == "cls" else x[packing.last_index()]


def _of_spans(x, packing, spans, reduction):
    """Pool the tokens of spans [b, c, 2] of a row's places: [total, d] -> [b, c, d]; 0 of empty
    ones."""
    begin = packing.layout.cu_seqlens[:-1]
    rows = torch.arange(len(begin), device=x.device) * packing.shape[1]
    first = rows if packing.index is None else packing.index[begin]
    starts = (spans[..., 0] + (begin - first + rows)[:, None]).flatten()
    lengths = (spans[..., 1] - spans[..., 0]).flatten()
    skipped = starts - (lengths.cumsum(0) - lengths)
    places = torch.arange(int(lengths.sum()), device=x.device)
    states = x[places + skipped.repeat_interleave(lengths)]
    kind = "sum" if reduction == "mean" else reduction
    total = torch.segment_reduce(states, kind, lengths=lengths, unsafe=True)
    if reduction == "mean":
        total = total / lengths.clamp(min=1)[:, None]
    return total.masked_fill((lengths == 0)[:, None], 0).unflatten(0, spans.shape[:2])


class ComparedBatch:
    """Queries and documents of a batch with their similarities.

    Args:
        vectors: [rows, c, dim] of length 1; a zero vector stands for none.
        labels, texts, scores, example_ids: [rows], see `LdtForEmbedding.forward`.
        share: True to compare with the documents of all processes.
        each: True if all vectors of a query count (MaxSim), False for their mean.

    Attributes:
        similarities: [queries, documents], see `similarities`.
        right: [queries, documents] bool, the documents that are right for a query.
        own: [queries, documents] bool, the documents of the query's own example.
    """

    def __init__(self, vectors, labels, texts, scores, example_ids, share=False, each=False):
        asked, read = labels == QUERY, labels > QUERY
        documents, numbers = vectors[read], texts[read]
        if share:
            documents, numbers = _gathered(documents), _gathered(numbers)
        known, of_document = numbers.unique(return_inverse=True)
        queries, of_query = example_ids[asked].unique(return_inverse=True)
        self.share = share
        shape = len(queries), len(known)
        self.similarities = similarities(
            vectors[asked], documents, of_query, of_document, shape, each
        )
        of = torch.searchsorted(queries, example_ids[read]), torch.searchsorted(known, texts[read])
        self.own = torch.zeros_like(self.similarities, dtype=torch.bool)
        self.own[of] = True
        right = labels[read] == POSITIVE
        self.right = torch.zeros_like(self.own)
        self.right[of[0][right], of[1][right]] = True
        if scores is not None:
            self.scores = torch.zeros_like(self.similarities)
            self.scores[of] = scores[read].to(self.scores.dtype)


def similarities(queries: torch.Tensor, documents, of_query, of_document, shape, each=False):
    """Similarity of queries and documents, [queries, documents]: for each vector of a query the
    largest product with a vector of the document; their sum (MaxSim), or their mean.

    Args:
        queries, documents: [rows, c, dim] of both; a vector that is zero is none.
        of_query, of_document: [rows] int64, the number of each row's query or document.
        shape: (number of queries, number of documents).
        each: True for the sum.
    """
    rows, width, _ = queries.shape
    there, least = documents.any(-1), torch.finfo(queries.dtype).min
    at_once = max(1, PRODUCTS // max(1, rows * width * documents.shape[1]))
    parts = [
        torch.einsum("qid,rjd->qirj", queries, part).masked_fill(~mask, least).amax(-1)
        for part, mask in zip(documents.split(at_once), there.split(at_once), strict=True)
    ]
    best = queries.new_full((rows, width, shape[1]), least)
    best = best.scatter_reduce(2, of_document.expand(rows, width, -1), torch.cat(parts, 2), "amax")
    real = queries.any(-1).to(queries.dtype)
    totals = best.new_zeros(shape).index_add(0, of_query, (best * real[..., None]).sum(1))
    if each:
        return totals
    counts = real.new_zeros(shape[0]).index_add(0, of_query, real.sum(1))
    return totals / counts.clamp(min=1)[:, None]


def contrastive(batch: ComparedBatch, temperature: float) -> torch.Tensor:
    """Contrastive loss (InfoNCE), summed over pairs of a query and a right document: minus the
    logarithm of its softmax among itself and all documents of the batch that are not right for
    the query. The temperature divides similarities."""
    logits = batch.similarities / temperature
    others = logits.masked_fill(batch.right, torch.finfo(logits.dtype).min).logsumexp(1)
    losses = torch.logaddexp(logits, others[:, None]) - logits
    return losses[batch.right].sum()


def kl(batch: ComparedBatch, temperature: float) -> torch.Tensor:
    """KL divergence of the softmax over a query's own documents from that of the teacher's scores,
    summed over queries, each times its number of right documents."""
    least = torch.finfo(batch.similarities.dtype).min
    logits = (batch.similarities / temperature).masked_fill(~batch.own, least).log_softmax(1)
    right = batch.scores.masked_fill(~batch.own, least).softmax(1)
    divergence = F.kl_div(logits, right, reduction="none").masked_fill(~batch.own, 0).sum(1)
    return (divergence * batch.right.sum(1)).sum()


def margin_mse(batch: ComparedBatch, temperature: float) -> torch.Tensor:
    """Sum over pairs of a query and a right document of the mean squared error of the differences
    from its other documents to the teacher's (Hofstätter et al. 2020, arXiv:2010.02666)."""
    error = batch.similarities / temperature - batch.scores
    query, right = batch.right.nonzero(as_tuple=True)
    wrong = (batch.own & ~batch.right)[query]
    squares = (error[query, right][:, None] - error[query]).square().masked_fill(~wrong, 0)
    return (squares.sum(1) / wrong.sum(1).clamp(min=1)).sum()


def graded(batch: ComparedBatch, temperature: float) -> torch.Tensor:
    """CoSENT: log(1 + sum of exp(s_i - s_j)) over i, j, which are pairs of a query and a right
    document, where ``batch.scores`` want j to be more alike; times the number of pairs here."""
    similar, wanted = batch.similarities[batch.right], batch.scores[batch.right]
    items = len(similar)
    if batch.share:
        similar, wanted = _gathered(similar), _gathered(wanted)
    differences = (similar[:, None] - similar[None]) / temperature
    wrong = differences[wanted[:, None] < wanted[None]]
    return torch.cat([wrong.new_zeros(1), wrong]).logsumexp(0) * items


LOSSES = {
    "contrastive": contrastive,
    "graded": graded,
    "kl": kl,
    "margin_mse": margin_mse,
}


def _gathered(x):
    """Gather x [rows, …] of all processes in their order, with gradients; padded with zeros where
    other processes have more columns."""
    shape = torch.tensor(x.shape, device=x.device)
    shapes = [torch.empty_like(shape) for _ in range(distributed.get_world_size())]
    distributed.all_gather(shapes, shape)
    largest = torch.stack(shapes).amax(0).tolist()
    padding = [n for most, size in zip(largest, x.shape, strict=True) for n in (most - size, 0)]
    parts = all_gather(F.pad(x, padding[::-1]))
    return torch.cat([part[: int(size[0])] for part, size in zip(parts, shapes, strict=True)])
