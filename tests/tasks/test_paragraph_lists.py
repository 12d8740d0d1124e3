"""Documents that are lists of paragraphs, and LexGLUE by the task classification."""

import gzip
import json

import numpy as np
import pytest
import torch
from classified import answer, write
from sklearn.metrics import f1_score
from transformers import AutoTokenizer

from ldt import benchmarks
from ldt.benchmarks import formats
from ldt.benchmarks.lexglue import TASKS, with_none
from ldt.errors import DataError
from ldt.inference.answer_file import write_published
from ldt.io.records import Example
from ldt.model import load, load_tokenizer
from ldt.recipe.recipe import DataSection
from ldt.tasks import Classification
from ldt.tasks.base import default_layout, named_labels, score_all
from ldt.tasks.text import join_paragraphs

PARAGRAPHS = ["One  two three", "", "four 🎉 é\u0301 five.", " ", "six seven"]


@pytest.fixture(scope="module", params=["roberta-base", "bert-base-uncased"])
def tokenizer(request, shared_data):
    return AutoTokenizer.from_pretrained(shared_data / "tokenizers" / request.param)


def published(tokenizer, paragraphs, most, words):
    """Ids as the scripts of LexGLUE have them, without the lone blanks in front of separators."""
    cut = [" ".join(paragraph.split()[:words]) for paragraph in paragraphs[:most]]
    ids = tokenizer(f" {tokenizer.sep_token} ".join(cut), add_special_tokens=False)["input_ids"]
    blank = tokenizer.convert_tokens_to_ids("Ġ")  # the unknown token in BERT's
    sep, kept = tokenizer.sep_token_id, []
    for place, token in enumerate(ids):
        if not (token == blank and ids[place + 1 : place + 2] == [sep]):
            kept.append(token)
    return kept


def test_a_case_is_read_as_the_published_scripts_read_it(tokenizer, shared_data):
    file = shared_data / "lexglue" / "ecthr.jsonl.gz"
    for line in gzip.decompress(file.read_bytes()).decode().splitlines()[:3]:
        facts = [" ".join(fact.split()) for fact in json.loads(line)["facts"]]
        for most, words in ((64, 128), (3, 5)):
            found = join_paragraphs(tokenizer, facts, most=most, words=words)
            assert found.ids == published(tokenizer, facts, most, words)


def test_tokens_stand_at_their_characters_and_separators_at_none(tokenizer):
    found = join_paragraphs(tokenizer, PARAGRAPHS)
    assert found.text == "\n\n".join(PARAGRAPHS)
    assert found.unread == 0
    pieces = [found.text[a:b] for a, b in found.offsets]
    separators = [n for n, token in enumerate(found.ids) if token == tokenizer.sep_token_id]
    assert len(separators) == 4
    assert all(not pieces[place] for place in separators)
    once = dict.fromkeys(map(tuple, found.offsets.tolist()))  # the emoji is several tokens
    letters = "".join(found.text[a:b] for a, b in once).replace("\u0301", "")  # BERT drops it
    assert letters == "".join(found.text.split()).replace("\u0301", "")


def test_what_is_left_out_of_a_document_is_said(tokenizer):
    whole = join_paragraphs(tokenizer, PARAGRAPHS)
    task = Classification(max_paragraphs=3, max_paragraph_words=2)
    example = Example({"text": PARAGRAPHS, "label": "a"}, "d", "docs.jsonl:1")
    data = DataSection(text="text")
    (feature,) = task.encode(example, tokenizer, data=data, max_length=99)
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    kept = join_paragraphs(tokenizer, ["One  two", "", "four 🎉"]).ids
    assert feature["input_ids"] == [cls, *kept, sep]
    separators = 2  # of the two paragraphs behind, which are no tokens of the document
    unread = len(whole.ids) - len(kept) - separators
    assert feature["flags"] == {"truncated": True, "unread_tokens": unread}
    assert feature["tokens"] == len(whole.ids) - separators + 2
    reading = task.reading(example, tokenizer, data)
    assert len(reading.offsets) == len(kept)
    assert reading.seen([feature]).tolist() == [True, True, False]
    # Chunks go on from there.
    data = DataSection(overflow="truncate")
    (feature,) = task.encode(example, tokenizer, data=data, max_length=5)
    assert feature["flags"]["unread_tokens"] == unread + len(kept) - 3


def test_a_paragraph_that_is_no_text_is_one_line(tokenizer):
    example = Example({"text": ["a", 3]}, "d", "docs.jsonl:1")
    with pytest.raises(
        DataError, match="docs.jsonl:1: field 'text': a number in place 2, expected"
    ):
        Classification().encode(example, tokenizer, data=DataSection(), max_length=9)


def test_the_classes_are_all_of_the_benchmark_in_its_order(shared_data):
    for name, part in TASKS.items():
        raw = name.removesuffix("_a").removesuffix("_b")
        data = DataSection(format=name, train=str(shared_data / "lexglue" / f"{raw}.jsonl.gz"))
        examples = list(formats.read(data.train, data))
        config = Classification().learn(examples, data)
        assert list(config["label2id"]) == list(part.classes)
        several = config["problem_type"] == "multi_label_classification"
        assert several == part.several
    assert formats.classes("squad") is formats.classes(None) is None
    assert default_layout(Classification(), [None, "eurlex"]) == "lexglue"


def test_the_text_of_an_opinion_is_parted_at_blank_lines(tmp_path):
    line = {"text": "a\nb\n\nc\n\n\n\nd", "issueArea": "2"}
    (tmp_path / "scotus.jsonl").write_text(json.dumps(line))
    (example,) = formats.read(str(tmp_path / "scotus.jsonl"), DataSection(format="scotus"))
    assert example.fields == {"text": ["a\nb", "c", "d"], "label": "2"}


@pytest.fixture(scope="module")
def run(tiny_longformer, tmp_path_factory):
    """Make the folder of a model of random weights that answers for a part of the benchmark."""

    def run(part):
        folder = tmp_path_factory.mktemp(part.name)
        torch.manual_seed(0)
        problem = "multi_label_classification" if part.several else "single_label_classification"
        changes = named_labels(part.classes) | {"problem_type": problem}
        model = load(tiny_longformer, Classification().head(), **changes)
        for weight in model.parameters():
            if weight.dim() == 2:
                torch.nn.init.normal_(weight, std=0.7)
        model.save_pretrained(folder)
        load_tokenizer(tiny_longformer, model.config).save_pretrained(folder)
        recipe = f"""
task: {{name: classification, max_paragraphs: 3, max_paragraph_words: 12}}
model: {{path: x}}
data: {{train: x.jsonl, format: {part.name}, max_length: 64, overflow: truncate}}
"""
        (folder / "recipe.yaml").write_text(recipe)
        return folder

    return run


def shortened(source, target):
    """The lines of a sample with the beginnings of their paragraphs alone."""
    with gzip.open(source, "rt", encoding="utf-8") as file:
        lines = list(map(json.loads, file))
    for line in lines:
        text = line["text"]
        line["text"] = [each[:90] for each in text[:4]] if isinstance(text, list) else text[:300]
    write(target, map(json.dumps, lines))
    return str(target)


@pytest.mark.parametrize("part", TASKS.values(), ids=list(TASKS))
def test_the_official_figures_are_those_of_the_model(run, part, shared_data, tmp_path):
    folder = run(part)
    source = shared_data / "lexglue" / f"{part.name}.hf_layout.jsonl.gz"
    source = shortened(source, tmp_path / "gold.jsonl")
    _, answers = answer(source, folder, tmp_path, raw_scores=True)
    task, data = Classification(), DataSection(format=part.name)
    config = load(folder, task.head()).config
    golds = [task.gold(example, data, config) for example in formats.read(source, data)]
    own, _ = score_all(task, answers, golds, config)
    expected = {"micro-f1": own["micro_f1"], "macro-f1": own["macro_f1"]}
    if part.none:  # a rule of the metric alone
        golds, labels = (
            with_none(np.array([[name in row for name in part.classes] for row in rows]))
            for rows in (golds, [each["label"] for each in answers])
        )
        expected = {
            f"{average}-f1": 100 * f1_score(golds, labels, average=average, zero_division=0)
            for average in ("micro", "macro")
        }
    for name, layout in Classification.answers.layouts.items():
        write_published(layout.write, tmp_path / "answers.jsonl", tmp_path / name)
        pred = str(tmp_path / name)
        result = benchmarks.evaluate(str(source), pred, format="lexglue", task=part.name)
        assert result.metrics == pytest.approx(expected), name
    table = (tmp_path / "lexglue-logits").read_text().splitlines()
    assert [row.split("\t")[0] for row in table] == [str(number) for number in range(len(answers))]
    assert {row.count("\t") for row in table} == {len(part.classes)}


def test_classes_of_another_model_are_no_part_of_the_benchmark():
    answers = [{"id": 7, "label": "a", "scores": {"b": 0.1, "a": 0.9}}]
    for layout in Classification.answers.layouts.values():
        with pytest.raises(DataError, match="7: the classes 'a', 'b'; the layout lexglue has"):
            list(layout.write(answers))
