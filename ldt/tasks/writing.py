"""Base of tasks whose answer a decoder generates, and the settings of generation."""

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
from ldt.tasks.base import WRITTEN, Outputs, Task, TaskAnswers, TaskInputs

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
    """Generation settings, by their names in transformers' GenerationConfig.

    Lengths are in tokens, including special tokens and the decoder's start token.

    Args:
        num_beams: number of beams; 1 is greedy search.
        length_penalty: exponent of the length by which a text's log probability is divided; above 1
            favours long texts.
        early_stopping: when beam search ends: when ``num_beams`` texts are finished (``true``),
            when a better one is unlikely (``false``), or when none is possible (``never``).
        max_length: longest text; none is the 95th percentile of the training set.
        min_length: shortest text.
        no_repeat_ngram_size: size of n-grams that may occur only once, names and numbers included;
            0 permits all.
        encoder_no_repeat_ngram_size: size of n-grams of the input that may not occur; 0 permits
            all.
        repetition_penalty: penalty on tokens that already occur in the text; 1 has no effect.
        encoder_repetition_penalty: factor that favours tokens of the input; 1 has no effect.
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
        """Return the arguments of a GenerationConfig; its max_length is that of the recipe, else
        ``longest``, in tokens."""
        values = self.model_dump(exclude_none=True)
        if self.num_beams == 1:
            del values["length_penalty"], values["early_stopping"]
        return values | {"max_length": self.max_length or longest}


class WritingTask(Task):
    """Generated text for a document, which is one input.

    The target is <s> text </s>, as in LED (Beltagy et al. 2020, arXiv:2004.05150). During training
    a sample of the evaluation documents is answered greedily; afterwards all are answered as by
    `ldt predict`.

    Args:
        max_question: number of tokens of the question that are read; none reads all.
        max_target_tokens: number of tokens of a target text to train on, with special tokens; none
            is the decoder's number of positions.
        max_eval_examples: largest number of documents answered in each evaluation during training.
        generation: generation settings, by their names in transformers' GenerationConfig; stored
            with the model.
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
    max_eval_examples: Count = 200
    generation: Generation = Generation()

    _tokenizer: Any = PrivateAttr(None)  # of the inputs, by which answers become text

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Return a line with the lengths of the target texts in tokens, and how many are
        truncated."""
        sizes = [(feature["target"], len(feature["labels"])) for feature in features]
        targets = [target for target, _ in sizes]
        cut = sum(target > learnt for target, learnt in sizes)
        median, p95 = (round(q) for q in np.percentile(targets, [50, 95]))
        return [
            f"{self.written}: {median:,} tokens in the median, {p95:,} at the 95th percentile, "
            f"{max(targets):,} in the longest; {cut:,} of {len(targets):,} cut"
            + (f" after {max(learnt for _, learnt in sizes):,} tokens" if cut else "")
        ]

    def config_changes(
        self, features: Sequence[Feature], config
    ) -> tuple[dict[str, Any], list[str]]:
        """Return {"generation": arguments of a GenerationConfig}, max_length the recipe's or else
        the 95th percentile of the training texts, and a line with those that differ from the
        defaults. RecipeError if the recipe's lengths exceed the decoder's positions, or there is
        no decoder."""
        search, positions = self.generation, self.decoder_positions(config)
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
        """Generate a text for each input; returns ``sequences`` [inputs, tokens] int64, with
        special tokens.

        ``quick`` searches greedily. If ``encoder_outputs`` are among the inputs, the encoder does
        not run again.
        """
        passed = {name: inputs[name] for name in GIVEN if name in inputs}
        config = _greedy(model.generation_config) if quick else model.generation_config
        return {WRITTEN: model.generate(**passed, generation_config=config)}

    def sampled(self, documents: int) -> Collection[int]:
        """Return the numbers of the evaluation documents answered during training, of ``documents``
        in all: blocks spread evenly over the set, about ``task.max_eval_examples`` documents."""
        every = -(-documents // self.max_eval_examples)
        return {number for number in range(documents) if number // BLOCK % every == 0}

    def decoder_positions(self, config) -> int:
        """Return the number of positions of the decoder; RecipeError if a model of this config has
        no decoder, or fewer than ``task.max_target_tokens``."""
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

    def target_labels(self, text: str, tokenizer, config) -> Feature:
        """Return the part of a feature that a target text makes: ``labels`` [tokens] int32,
        ``target``, its number of tokens without a limit, and if it is truncated ``unlearnt``:
        ("target_cut", that number)."""
        cls, sep = ends(tokenizer)
        words, positions = tokenize(tokenizer, text), self.decoder_positions(config)
        limit = min(self.max_target_tokens or positions, positions)
        labels = [*cls.ids, *words[: max(limit - 2, 0)], *sep.ids]
        size = len(words) + 2
        cut = {"unlearnt": ("target_cut", size)} if size > len(labels) else {}
        return {"labels": np.array(labels, np.int32), "target": size} | cut

    def question_segment(self, question: str, tokenizer) -> tuple[Segment, dict[str, Any]]:
        """Return the tokens of a question that are read, and {"question_cut": True} if these are
        not all, else {}."""
        ids = tokenize(tokenizer, question)
        cut = self.max_question is not None and len(ids) > self.max_question
        return Segment("question", ids[: self.max_question]), {"question_cut": True} if cut else {}

    def check_room(
        self, example: Example, length: int, room: int, least: int, data: DataSection
    ) -> None:
        """Raise DataError if ``room``, the tokens left for a document, is less than ``least``, or
        than its ``length`` in tokens where ``data.overflow`` is "error"."""
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

    def decode_text(self, name: str, output: Outputs) -> dict[str, Any]:
        """Return the generated text as ``name``, its number of tokens without special ones as
        ``{name}_tokens``, and ``unfinished`` (true) if it hit the length limit. The tokenizer is
        that of the last `encode`."""
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
    """Set the generation settings of a model in place; its special tokens are kept."""
    from transformers import GenerationConfig

    tokens = {name: getattr(model.generation_config, name) for name in _OWN}
    model.generation_config = GenerationConfig(**tokens, **settings)


def wordless(count: int, total: int) -> str | None:
    """Return a warning if more than half of ``total`` texts, ``count`` of them, are empty or a
    single token; else None."""
    if 2 * count <= total:
        return None
    return (
        f"{count:,} of {total:,} summaries are empty or a single token: the model has not learnt "
        "to write; more steps or another training.learning_rate may do"
    )


def _greedy(config):
    from transformers import GenerationConfig

    values = config.to_dict() | {"num_beams": 1, "length_penalty": None, "early_stopping": None}
    return GenerationConfig.from_dict(values)
