"""The base of tasks whose answer a model with a decoder writes, and the settings of its search."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from ldt.data.features import Feature, Segment, ends
from ldt.data.options import Count, DataSection, Length, Section
from ldt.data.tokenization import special_id, tokenize
from ldt.errors import DataError, RecipeError
from ldt.io.records import Example
from ldt.tasks.base import (
    WRITTEN,
    Outputs,
    Task,
    TaskAnswers,
    TaskInputs,
)

log = logging.getLogger("ldt")

BLOCK = 8  # documents in a row that an evaluation takes, so that whole batches are answered
START = 1  # tokens that the decoder starts with
GIVEN = ("input_ids", "attention_mask", "global_attention_mask", "encoder_outputs")
# Keys of a model and its tokenizer, which stay as they are.
_OWN = (
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
    *("forced_bos_token_id", "forced_eos_token_id"),
)


class Generation(Section):
    """The search for a text, by the names that transformers' GenerationConfig has for it.

    Lengths are in tokens, special ones included, and that which the decoder starts with.

    Args:
        num_beams: beams of the search; 1 takes the likeliest token at each place.
        length_penalty: power of its length that a text's log probability is divided by; above 1
            favours long ones.
        early_stopping: end of the search: as soon as ``num_beams`` texts are finished (``true``),
            when no better one is likely (``false``), or when none is possible (``never``).
        max_length: longest text; none is the 95th percentile of the training set.
        min_length: shortest text.
        no_repeat_ngram_size: tokens in a row that a text has once at most; 0 allows all. It holds
            for names and numbers too.
        encoder_no_repeat_ngram_size: tokens in a row of the input that a text must not have; 0
            allows all.
        repetition_penalty: divisor of the odds of tokens that the text has; 1 changes nothing.
        encoder_repetition_penalty: factor of the odds of tokens that the input has; 1 changes
            nothing.
    """

    num_beams: int = Field(default=4, ge=1, le=1024)
    length_penalty: float = Field(default=1.0, ge=-100, le=100)
    early_stopping: bool | Literal["never"] = False
    max_length: Length | None = None
    min_length: int = Field(default=0, ge=0, le=1 << 24)
    no_repeat_ngram_size: int = Field(default=3, ge=0, le=1 << 24)
    encoder_no_repeat_ngram_size: int = Field(default=0, ge=0, le=1 << 24)
    repetition_penalty: float = Field(default=1.0, gt=0, le=1e6)
    encoder_repetition_penalty: float = Field(default=1.0, gt=0, le=1e6)

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.num_beams == 1:
            for name in ("length_penalty", "early_stopping"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} compares beams, num_beams is 1")
        if self.max_length is not None and self.min_length > self.max_length:
            raise ValueError(
                f"a text of {self.min_length:,} tokens at least and {self.max_length:,} at most"
            )
        return self

    def settings(self, longest: int) -> dict[str, Any]:
        """Arguments of a GenerationConfig; ``longest`` where the recipe does not say."""
        values = self.model_dump(exclude_none=True)
        if self.num_beams == 1:
            del values["length_penalty"], values["early_stopping"]
        return values | {"max_length": self.max_length or longest}


class WritingTask(Task):
    """A text that is written for a document, which is one input.

    It is learnt as <s> text </s>, as in LED (Beltagy et al. 2020, arXiv:2004.05150). While a model
    trains, some of the documents are answered, the likeliest token at each place is taken; when it
    is trained, all are, as `ldt predict` does.

    Args:
        max_question: tokens of the question that are read; none reads all.
        max_target_tokens: tokens of a text that are learnt, special ones included; none is as many
            as the decoder has positions.
        evaluated: documents that are answered in each evaluation while a model trains, at most.
        generation: settings of the search, by their names in transformers' GenerationConfig; they
            are stored with the model.
    """

    inputs: ClassVar[TaskInputs] = replace(
        Task.inputs,
        head="LdtForConditionalGeneration",
        extras=("target",),
        overflows=("truncate", "error"),
    )
    answers: ClassVar[TaskAnswers] = replace(Task.answers, outputs=(WRITTEN,))
    written: ClassVar[str]  # what the texts are called in messages

    max_question: Length | None = None
    max_target_tokens: Length | None = None
    evaluated: Count = 200
    generation: Generation = Generation()

    _tokenizer: Any = PrivateAttr(None)  # of the inputs, by which answers become text

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Return a line with the lengths of the texts, and how many are cut off."""
        sizes = [(feature["target"], len(feature["labels"])) for feature in features]
        targets = [target for target, _ in sizes]
        cut = sum(target > learnt for target, learnt in sizes)
        median, p95 = (round(q) for q in np.percentile(targets, [50, 95]))
        return [
            f"{self.written}: {median:,} tokens in the median, {p95:,} at the 95th percentile, "
            f"{max(targets):,} in the longest; {cut:,} of {len(targets):,} cut"
            + (f" after {max(learnt for _, learnt in sizes):,} tokens" if cut else "")
        ]

    def weigh(self, features: Sequence[Feature], config) -> tuple[dict[str, Any], list[str]]:
        """Return the settings of the search as ``generation``, and a line with them.

        Raises:
            RecipeError: a text may become longer than the decoder has positions.
        """
        search, positions = self.generation, self.positions(config)
        if (most := max(search.max_length or 0, search.min_length)) > positions:
            raise RecipeError(
                f"task.generation: {self.written} of {most:,} tokens, the decoder of the model has "
                f"{positions:,} positions, the first of them for the token that it starts with"
            )
        sizes = [len(features[number]["labels"]) for number in range(len(features))]
        usual = START + round(float(np.percentile(sizes, 95)))
        settings = search.settings(min(max(usual, search.min_length, START), positions))
        plain = Generation().settings(0)
        shown = {k: v for k, v in settings.items() if k == "num_beams" or v != plain.get(k)}
        words = ", ".join(f"{name} {value}" for name, value in shown.items())
        return {"generation": settings}, [f"generation: {words}"]

    def run(self, model, inputs: Mapping[str, Any], *, quick: bool = False) -> Mapping[str, Any]:
        """Return ``sequences`` [rows, tokens] int64, texts with their special tokens.

        Where there are ``encoder_outputs`` among the inputs, the encoder does not run again.
        """
        passed = {name: inputs[name] for name in GIVEN if name in inputs}
        config = greedy(model.generation_config) if quick else model.generation_config
        return {WRITTEN: model.generate(**passed, generation_config=config)}

    def sampled(self, documents: int) -> Collection[int]:
        """Numbers of the documents of an evaluation set that are answered while a model trains:
        those of blocks that are spread evenly over the set."""
        every = -(-documents // self.evaluated)
        return {number for number in range(documents) if number // BLOCK % every == 0}

    def positions(self, config) -> int:
        """Positions of the decoder.

        Raises:
            RecipeError: there is none, or the recipe wants more.
        """
        positions = getattr(config, "max_decoder_position_embeddings", None)
        if positions is None:
            raise RecipeError(
                f"model.path: a {config.model_type} model has no decoder that writes "
                f"{self.written}; ldt convert facebook/bart-base makes one that has"
            )
        if self.max_target_tokens is not None and self.max_target_tokens > positions:
            raise RecipeError(
                f"task.max_target_tokens: {self.max_target_tokens:,} tokens, the decoder of the "
                f"model has {positions:,} positions"
            )
        return positions

    def learnt(self, text: str, tokenizer, config) -> Feature:
        """Return ``labels`` [tokens] int32 of a text, ``target``, how many it would have without a
        limit, and that it is not learnt whole."""
        cls, sep = ends(tokenizer)
        words, positions = tokenize(tokenizer, text), self.positions(config)
        limit = min(self.max_target_tokens or positions, positions)
        labels = [*cls.ids, *words[: max(limit - 2, 0)], *sep.ids]
        size = len(words) + 2
        cut = {"unlearnt": ("target_cut", size)} if size > len(labels) else {}
        return {"labels": np.array(labels, np.int32), "target": size} | cut

    def asked(self, question: str, tokenizer) -> tuple[Segment, dict[str, Any]]:
        """Return as many tokens of a question as are read, and flags of the answer."""
        ids = tokenize(tokenizer, question)
        cut = self.max_question is not None and len(ids) > self.max_question
        return Segment("question", ids[: self.max_question]), {"question_cut": True} if cut else {}

    def room(self, example: Example, length: int, room: int, least: int, data: DataSection) -> None:
        """Check that a document of some length fits the room of an input.

        Raises:
            DataError: less than ``least`` is left for it, or it does not fit and
                ``data.overflow`` is "error".
        """
        if room < least:
            raise DataError(
                f"{example.where}: the question and the special tokens leave {max(room, 0):,} "
                "tokens for the text; a smaller task.max_question or fewer documents would do"
            )
        if length > room and data.overflow == "error":
            raise DataError(
                f"{example.where}: document {example.id!r} has {length:,} tokens, {room:,} fit; "
                "data.overflow=truncate reads its beginning"
            )

    def read_off(self, name: str, output: Outputs) -> dict[str, Any]:
        """Return what an output says: the text by a name, the number of its tokens without special
        ones, and ``unfinished`` where it had become too long before its end came."""
        tokenizer = self._tokenizer
        ids = [int(token) for token in output[WRITTEN] if token >= 0]
        special = set(tokenizer.all_special_ids)
        words = [token for token in ids if token not in special]
        text = tokenizer.decode(words, clean_up_tokenization_spaces=False).strip()
        answer: dict[str, Any] = {name: text, f"{name}_tokens": len(words)}
        if special_id(tokenizer, "sep") not in ids[START:]:
            answer["unfinished"] = True
        return answer


def configure(model, settings: dict[str, Any]) -> None:
    """Have a model write by these settings; its special tokens stay those that it has."""
    from transformers import GenerationConfig

    tokens = {name: getattr(model.generation_config, name) for name in _OWN}
    model.generation_config = GenerationConfig(**tokens, **settings)


def wordless(count: int, total: int) -> str | None:
    """Warning where so many texts of all are empty or a single token; None if they are not the
    most."""
    if 2 * count <= total:
        return None
    return (
        f"{count:,} of {total:,} summaries are empty or a single token: the model has not learnt "
        "to write; more steps or another training.learning_rate may do"
    )


def greedy(config):
    """A copy of a GenerationConfig that takes the likeliest token at each place."""
    from transformers import GenerationConfig

    values = config.to_dict() | {"num_beams": 1, "length_penalty": None, "early_stopping": None}
    return GenerationConfig.from_dict(values)
