"""Coreference with time and memory linear in the length: scored spans, and links between them.

Spans are scored in a band (the next words of a sentence), and the best ones are linked to one of
the last candidates before them, in blocks of rows. The scorers are those of s2e (Kirstain et al.
2021, arXiv:2101.00434) and LingMess (Otmazgin et al. 2023, arXiv:2205.12644), with the names of
their published weights.
"""

from collections.abc import Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import initialization as init
from transformers.activations import ACT2FN

from ldt.attention.matmul import Linear
from ldt.model.base import INPUTS, Head, LdtHeadOutput, at_positions, takes_inputs
from ldt.model.config import usable_length
from ldt.model.heads.losses import exact, mean
from ldt.model.heads.rows import by_tokens, length_of, micro_batched, same_document

ROWS = 512  # spans of a block
CATEGORIES = 6  # of pairs of spans in LingMess, beside all of them
FORMS = ("s2s", "e2e", "s2e", "e2s")  # products of the states at starts and ends of two spans

# `config.coref_head`, which may have some of these keys.
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "scorer": "s2e",  # or "lingmess"
        "ffnn_size": 1024,
        "max_span_length": 30,  # words
        "top_lambda": 0.4,  # candidates a word
        "dropout_prob": 0.3,
        "antecedents": 1000,  # candidates before a span that it may be linked to, the last ones
        "singletons": False,  # the score of a span says whether it is a mention
    }
)


class LdtForCoreference(Head):
    """Mentions of a document, and the link of each to one before it.

    ``logits`` [b, k, 5] have, in the first row of each document, its candidates in their order:
    first and last word, the place of the candidate it is linked to or -1, the score of the best
    link, the score of the span; -100 where there are fewer. A link has a score of 0 or more.
    ``global_attention_mask=None`` means no global attention.
    """

    def __init__(self, config):
        super().__init__(config)
        self.settings = {**DEFAULTS, **config.coref_head}
        size = self.settings["ffnn_size"]
        layer = partial(FullyConnected, config, dropout=self.settings["dropout_prob"])
        self.start_mention_mlp, self.end_mention_mlp = layer(size), layer(size)
        self.mention_start_classifier = nn.Linear(size, 1)
        self.mention_end_classifier = nn.Linear(size, 1)
        self.mention_s2e_classifier = _bilinear(size)
        self.by_category = self.settings["scorer"] == "lingmess"
        if self.by_category:
            experts = CATEGORIES + 1
            self.coref_start_all_mlps = layer(experts * size)
            self.coref_end_all_mlps = layer(experts * size)
            for form in FORMS:
                weights = nn.Parameter(torch.zeros(experts, size, size))
                self.register_parameter(f"antecedent_{form}_all_weights", weights)
                biases = nn.Parameter(torch.zeros(experts, size))
                self.register_parameter(f"antecedent_{form}_all_biases", biases)
        else:
            self.start_coref_mlp, self.end_coref_mlp = layer(size), layer(size)
            for form in FORMS:
                setattr(self, f"antecedent_{form}_classifier", _bilinear(size))
        self.post_init()

    def begin(self):
        """Initialise a new head in place: LingMess's experts, whose scores get a deviation of about
        1, and with ``singletons`` a bias by which few spans are mentions."""
        if self.settings["singletons"]:
            init.constant_(self.mention_end_classifier.bias, -4.0)
        for form in FORMS if self.by_category else ():
            deviation = 1 / self.settings["ffnn_size"]
            init.normal_(getattr(self, f"antecedent_{form}_all_weights"), std=deviation)

    @staticmethod
    def fit_weights(weights, config):
        """Return ``weights`` unchanged; set ``config.coref_head["scorer"]``, if it has none, by the
        names that the weights of a published head have."""
        if "mention_s2e_classifier.weight" in weights:
            scorer = "lingmess" if "antecedent_s2s_all_weights" in weights else "s2e"
            config.coref_head = {"scorer": scorer} | config.coref_head
        return weights

    @takes_inputs(*INPUTS)
    def forward(
        self, *, words=None, labels=None, example_ids=None, num_items_in_batch=None, **inputs
    ):
        """Compute candidates with their links as ``logits``, and the loss: `LdtHeadOutput`.

        Args:
            words: [b, w, 6] int64, of each word of a row: its number in the document, its first and
                its last token, the number of its sentence, the group of a pronoun or -1, a number
                of the lower-cased word or -1 where it is a stop word; -100 where a row has fewer.
                The words of a document are numbered on through its rows.
            labels: [b, m, 3] int64, mentions: first and last word, number of the cluster; -100
                where a row has fewer.
            example_ids: [b] int64, the document of each row; None: each row is one.
            num_items_in_batch: divisor of the loss, for several batches; see `Head`.
            inputs: inputs of the encoder. Rows of one document give no hidden states.
        """
        if words is None:
            raise ValueError("LdtForCoreference needs words [b, w, 6]")
        if same_document(example_ids):  # so that memory does not grow with the chunks
            lengths = [length_of(inputs)] * len(words)
            groups = by_tokens(lengths, usable_length(self.config))
            (states,) = micro_batched(
                lambda **rows: (self.word_states(**rows),), groups, words=words, **inputs
            )
            others = {}
        else:
            states, others = self._states(words, **inputs)
        documents = range(len(words)) if example_ids is None else example_ids.tolist()
        rows: dict[int, list[int]] = {}
        for row, document in enumerate(documents):
            rows.setdefault(document, []).append(row)
        total, tables, items = 0, {}, self.loss_items(words=words, example_ids=example_ids)
        for own in rows.values():
            real = words[own][..., 0] >= 0
            marks = None if labels is None else labels[own][labels[own][..., 0] >= 0]
            table, loss = self.links(states[own][real], words[own][real], marks)
            tables[own[0]], total = table, total + loss
        most = max(1, *map(len, tables.values()))
        logits = exact(states).new_full((len(words), most, 5), -100.0)
        for row, table in tables.items():
            logits[row, : len(table)] = table
        loss = None if labels is None else mean(total, items, num_items_in_batch)
        return LdtHeadOutput(loss, logits=logits, **others)

    def loss_items(self, *, words, example_ids=None, **inputs):
        """Number of candidates of all documents, a scalar: of each ``top_lambda`` times its number
        of words, rounded down, and one at least."""
        sizes = (words[..., 0] >= 0).sum(1)
        if example_ids is not None:
            _, documents = example_ids.to(sizes.device).unique(return_inverse=True)
            sizes = torch.zeros_like(sizes).index_add(0, documents, sizes)
        return sum(map(self._candidates, sizes.tolist()), torch.zeros((), dtype=torch.int64))

    def word_states(self, words: torch.Tensor, **inputs):
        """Encoder states at the first and at the last token of each word, joined: [b, w, 2d]."""
        return self._states(words, **inputs)[0]

    def _states(self, words, **inputs):
        x, packing, others = self.encode(**inputs)
        x = packing.unpack(x)
        return torch.cat([at_positions(x, words[..., side]) for side in (1, 2)], -1), others

    def _candidates(self, words):
        return max(int(self.settings["top_lambda"] * words), min(words, 1))

    def links(self, states: torch.Tensor, words: torch.Tensor, mentions=None):
        """Link the candidates of one document.

        Args:
            states: [w, 2d], of all words, see `word_states`.
            words: [w, 6], see `forward`.
            mentions: [m, 3], gold ones, see `forward`; None: there are none, and the loss is 0.

        Returns:
            ([k, 5], a row for each candidate span: first and last word, number of the row it is
                linked to or -1, scores of that link and of the span; sum of the losses).
        """
        states = states.to(self.start_mention_mlp.dense.weight.dtype)
        count, size = len(words), self._candidates(len(words))
        if not count:
            return exact(states).new_zeros(0, 5), states.sum()
        starts, ends = states.chunk(2, 1)
        band = self._band(starts, ends, words[:, 3])
        width = band.shape[1]
        best = band.detach().flatten().topk(size).indices.sort().values
        first, length = best // width, best % width
        spans = _Spans(first, first + length, band[first, length], words)
        loss = states.new_zeros((), dtype=torch.promote_types(states.dtype, torch.float32))
        if mentions is not None:
            mentions = mentions - mentions.new_tensor([1, 1, 0]) * words[0, 0]
            mentions = mentions[(mentions[:, 0] >= 0) & (mentions[:, 1] < count)]
            spans.clusters = _Clusters(mentions, count)(spans.first, spans.last)
            if self.settings["singletons"]:
                loss = loss + _mention_loss(band, mentions)
        antecedent, score, linking = self._links(starts, ends, spans)
        columns = (first + words[0, 0], spans.last + words[0, 0], antecedent, score, spans.scores)
        return torch.stack([each.detach().to(band.dtype) for each in columns], 1), loss + linking

    # -- spans

    def _band(self, starts, ends, sentences):
        """[w, width], the score of the span from each word to each of those that follow it; -inf
        where it would cross the end of a sentence. ``starts`` and ``ends`` are states [w, d] of
        words."""
        count, width = len(starts), min(self.settings["max_span_length"], len(starts))
        run = _recomputed(count > ROWS)
        blocks = []
        for begin in range(0, count, ROWS):
            rows = starts[begin : begin + ROWS]
            columns = ends[begin : begin + len(rows) + width - 1]
            blocks.append(run(self._block, rows, columns, width))
        offsets = torch.arange(width, device=starts.device)
        last = torch.arange(count, device=starts.device)[:, None] + offsets
        inside = sentences[last.clamp(max=count - 1)] == sentences[:, None]
        return torch.cat(blocks).masked_fill(~inside | (last >= count), float("-inf"))

    def _block(self, starts, ends, width):
        """[rows, width] of the states at starts [rows, d] and at ends [rows + width - 1, d]."""
        starts, ends = self.start_mention_mlp(starts), self.end_mention_mlp(ends)
        scores = self.mention_s2e_classifier(starts) @ ends.T
        scores = scores + self.mention_start_classifier(starts)
        scores = scores + self.mention_end_classifier(ends).T
        places = torch.arange(len(starts), device=starts.device)[:, None]
        places = places + torch.arange(width, device=starts.device)
        return exact(scores.gather(1, places.clamp(max=len(ends) - 1)))

    # -- links

    def _links(self, starts, ends, spans):
        """The antecedent of each span [k], -1 for none; the score of its best link [k]; and the sum
        of the losses, 0 where the clusters are not known."""
        count, reach = len(spans.first), self.settings["antecedents"]
        starts, ends = starts[spans.first], ends[spans.last]
        run = _recomputed(count > ROWS)
        antecedents, scores, loss = [], [], 0
        for begin in range(0, count, ROWS):
            low, end = max(0, begin - reach), min(begin + ROWS, count)
            part = spans.part(low, end, begin, reach)
            pairs = run(self._pairs, starts[low:end], ends[low:end], part.scores, part)
            final = pairs[0].detach().masked_fill(~part.before, float("-inf"))
            best, place = final.max(1)
            antecedents.append(torch.where(best >= 0, place + low, -1))
            scores.append(best.clamp(min=torch.finfo(best.dtype).min))
            if spans.clusters is not None:
                loss = loss + run(_link_loss, pairs, part)
        return torch.cat(antecedents), torch.cat(scores), loss

    def _pairs(self, starts, ends, scores, part):
        """[1, rows, columns], the score of a link of each of the last spans to each of the columns;
        of LingMess [8, rows, columns], then those of its experts."""
        rows = len(part.before)
        if not self.by_category:
            starts, ends = self.start_coref_mlp(starts)[None], self.end_coref_mlp(ends)[None]
        else:
            starts, ends = self.coref_start_all_mlps(starts), self.coref_end_all_mlps(ends)
            starts, ends = (
                x.unflatten(1, (CATEGORIES + 1, -1)).transpose(0, 1) for x in (starts, ends)
            )
        above, below = starts[:, -rows:], ends[:, -rows:]
        pairs = (self._form("s2s", above) + self._form("e2s", below)) @ starts.mT
        pairs = pairs + (self._form("s2e", above) + self._form("e2e", below)) @ ends.mT
        pairs, both = exact(pairs), scores[-rows:, None] + scores
        if not self.by_category:
            return pairs + both
        own = pairs[:-1].gather(0, part.categories[None])
        return torch.cat([own + pairs[-1:], pairs]) + both

    def _form(self, name, x):
        """[experts, rows, f], what the antecedent's state is multiplied with; of x as large."""
        if not self.by_category:
            return getattr(self, f"antecedent_{name}_classifier")(x)
        weights = getattr(self, f"antecedent_{name}_all_weights")
        # The bias of an expert goes with the side that the second letter names.
        return x @ weights + getattr(self, f"antecedent_{name}_all_biases")[:, None]


class FullyConnected(nn.Module):
    """Dense, activation, LayerNorm, dropout."""

    def __init__(self, config, size, dropout):
        super().__init__()
        act = getattr(config, "hidden_act", None) or config.hidden_activation
        eps = getattr(config, "layer_norm_eps", None) or config.norm_eps
        self.dense = Linear(config.hidden_size, size)
        self.act, self.dropout = ACT2FN[act], nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(size, eps=eps)

    def forward(self, x: torch.Tensor):
        """Apply dense, activation, LayerNorm and dropout: [..., width] -> [..., size]."""
        return self.dropout(self.layer_norm(self.act(self.dense(x))))


def _bilinear(size):
    """Make a layer between two states of unit variance; products begin with a deviation of 1."""
    layer = nn.Linear(size, size)
    layer.drawn = 1 / size, 3 / size
    return layer


def _recomputed(several):
    """Function that calls others; in training on ``several`` blocks it runs each again in the
    backward pass, so that memory is that of one block."""
    if several and torch.is_grad_enabled():
        return partial(checkpoint, use_reentrant=False)
    return lambda run, *args: run(*args)


class _Spans:
    """Candidate spans in the order of the text.

    Args:
        first, last: [k], words, both inclusive.
        words: [w, 6], see `LdtForCoreference.forward`.

    Attributes:
        clusters: [k], number of each span's cluster, -1 for none; None if they are not known.
        before: [rows, columns] bool, of a `part`: True if a row may be linked to a column.
    """

    clusters = before = None

    def __init__(self, first, last, scores, words):
        self.first, self.last, self.scores, self.words = first, last, scores, words

    def part(self, low, end, begin, reach):
        """Spans from ``low`` to before ``end`` as columns; those from ``begin`` on are the rows."""
        part = _Spans(self.first[low:end], self.last[low:end], self.scores[low:end], self.words)
        if self.clusters is not None:
            part.clusters = self.clusters[low:end]
        places = torch.arange(low, end, device=self.first.device)
        distance = places[begin - low :, None] - places
        part.before = (distance > 0) & (distance <= reach)
        return part

    @cached_property
    def categories(self):
        """[rows, columns] int64, the category of each pair: pronouns of one group, of two, one
        pronoun alone, the same content words, those of one among those of the other, others."""
        rows = len(self.before)
        width = int((self.last - self.first).max()) + 1
        places = self.first[:, None] + torch.arange(width, device=self.first.device)
        inside = places <= self.last[:, None]
        ids = self.words[:, 5][places.clamp(max=len(self.words) - 1)].masked_fill(~inside, -1)
        one = (ids == ids[:, :1]) | ~inside  # a pronoun that is said again is one
        group = self.words[self.first, 4].masked_fill(~one.all(1), -1)
        ordered = ids.sort(1).values
        sizes = (ordered[:, 0] >= 0) + ((ordered.diff(dim=1) > 0) & (ordered[:, 1:] >= 0)).sum(1)
        # Words of the rows, by which those of a row and of a column are counted.
        names = ids[-rows:].unique()
        names = names[names >= 0]
        column = torch.searchsorted(names, ids).clamp(max=max(len(names) - 1, 0))
        known = (ids >= 0) & (names[column] == ids) if len(names) else torch.zeros_like(inside)
        bags = self.scores.new_zeros(len(ids), len(names) + 1, dtype=torch.float32)
        bags.scatter_(1, column.masked_fill(~known, len(names)), 1.0)
        shared = bags[-rows:, :-1] @ bags[:, :-1].T
        mine, theirs = sizes[-rows:, None], sizes[None]
        kinds = torch.full_like(shared, 5, dtype=torch.int64)
        kinds[shared == torch.minimum(mine, theirs)] = 4
        kinds[(shared == mine) & (shared == theirs)] = 3
        my, their = group[-rows:, None], group[None]
        kinds[(my >= 0) != (their >= 0)] = 2
        kinds[(my >= 0) & (their >= 0)] = 1
        kinds[(my >= 0) & (my == their)] = 0
        return kinds


class _Clusters:
    """Lookup of the cluster of a span among mentions [m, 3] of a document of ``count`` words."""

    def __init__(self, mentions, count):
        keys, order = (mentions[:, 0] * count + mentions[:, 1]).sort(stable=True)
        self.keys, self.clusters, self.count = keys, mentions[order, 2], count

    def __call__(self, first, last):
        """Number of the cluster of each span, [k] int64, -1 for none."""
        if not len(self.keys):
            return torch.full_like(first, -1)
        keys = first * self.count + last
        place = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        return torch.where(self.keys[place] == keys, self.clusters[place], -1)


def _link_loss(pairs, part):
    """Negative log likelihood of the right antecedents, summed over rows and scorers of LingMess.

    Of each row the logarithm of the sum of exp(score) over all antecedents and "none", less that
    over the right ones; "none" is right where no antecedent is. An expert sees only the pairs of
    its category; the last one sees all.
    """
    rows, least = len(part.before), float("-inf")
    right = (part.clusters[-rows:, None] == part.clusters) & (part.clusters >= 0)
    allowed = part.before[None]
    if len(pairs) > 1:
        kinds = part.categories
        own = torch.stack([kinds == kind for kind in range(CATEGORIES)]) & part.before
        allowed = torch.cat([allowed, own, allowed])
    scores = F.pad(pairs.masked_fill(~allowed, least), (0, 1))  # 0 for none
    right = F.pad(right & allowed, (0, 1))
    right[..., -1] = ~right.any(-1)
    return (scores.logsumexp(-1) - scores.masked_fill(~right, least).logsumexp(-1)).sum()


def _mention_loss(band, mentions):
    """Sum of the binary cross entropies of spans, scores [w, width], for being a mention [m, 3];
    -inf is no span, and mentions that are no span do not count."""
    length = mentions[:, 1] - mentions[:, 0]
    known = mentions[length < band.shape[1]]
    gold = torch.zeros_like(band)
    gold[known[:, 0], known[:, 1] - known[:, 0]] = 1
    valid = band.isfinite()
    return F.binary_cross_entropy_with_logits(band[valid], gold[valid], reduction="sum")
