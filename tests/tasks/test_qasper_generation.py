"""Answers on papers that are written: inputs as the authors lay them out, answers, a whole run."""

import json
from functools import wraps
from pathlib import Path

import numpy as np
import pytest
from papers import NOTHING, papers, question, said
from training_runs import train

from ldt.benchmarks import evaluate
from ldt.data.tokenization import tokenize
from ldt.errors import DataError, RecipeError
from ldt.inference.predict import predict
from ldt.model import LdtConfig, LdtSeq2SeqConfig
from ldt.model.seq2seq.layers import LedEncoder
from ldt.recipe import recipe as recipes
from ldt.recipe.recipe import DataSection
from ldt.tasks import QasperGeneration

TASK = QasperGeneration()
CONFIG = LdtSeq2SeqConfig(max_decoder_position_embeddings=24)
SEP = 2
PARAGRAPHS = ["It is red.\nIt is", " \n", "It ends in May. ", "It is red.\nIt is"]
SECTIONS = ["One", "One", "Two", None]


def names(answer, type="extractive", paragraphs=(2,), **more):
    """The answer of an annotator, with paragraphs of this paper as evidence."""
    evidence = {"evidence": [PARAGRAPHS[number] for number in paragraphs]}
    return said(answer, type, paragraphs, **more) | evidence


def asked(*answers, **fields):
    return question(*answers, **{"paragraphs": PARAGRAPHS, "sections": SECTIONS} | fields)


def encode(item, tokenizer, max_length=256, config=CONFIG, task=TASK, **data):
    section = DataSection(**{"overflow": "truncate"} | data)
    return task.encode(item, tokenizer, data=section, max_length=max_length, config=config)


def laid_out(tokenizer, *pieces):
    """Ids of the question and of pieces with a separator before each, and places of these."""
    ids, places = [0, *tokenize(tokenizer, "When?")], []
    for piece in pieces:
        places.append(len(ids))
        ids += [SEP, *tokenize(tokenizer, piece)]
    return ids, places


# encoding


def test_a_separator_stands_before_each_heading_and_paragraph_and_is_global(tiny):
    (feature,) = encode(asked(names("May")), tiny)
    pieces = ["One", "It is red. It is", "Two", "It ends in May.", "It is red. It is"]
    ids, places = laid_out(tiny, *pieces)
    assert feature["input_ids"] == ids
    assert feature["passage_positions"] == places
    assert feature["passages"].tolist() == [-1, 0, -1, 2, 3]
    marks = np.flatnonzero(feature["global_attention_mask"]).tolist()
    assert marks == [*range(places[0]), *places]
    assert (feature["tokens"], feature["flags"]) == (len(ids), {})
    assert feature["chunks"] == 1  # also where several answers are learnt
    assert TASK.parts(asked(), DataSection()) == ("\n".join(pieces), "When?")


def test_every_paragraph_with_a_text_of_the_evidence_is_right(tiny):
    answer = said("red", paragraphs=()) | {"evidence": ["is red.\n", "", " ", "FLOAT SELECTED: x"]}
    (feature,) = encode(asked(answer), tiny)
    assert feature["passage_labels"] == [0, 1, 0, 0, 1]
    assert feature["labels"].tolist() == [0, *tokenize(tiny, "red"), SEP]
    (feature,) = encode(asked(NOTHING), tiny)
    assert feature["passage_labels"] == [0] * 5
    assert feature["labels"].tolist() == [0, *tokenize(tiny, "Unanswerable"), SEP]
    spans = names("red, May", paragraphs=(0,), spans=["red", "May"])
    assert encode(asked(spans), tiny)[0]["labels"].tolist() == [0, *tokenize(tiny, "red, May"), SEP]


def test_annotators_are_so_many_inputs_and_evaluation_has_the_first(tiny):
    answers = names("May"), names("Yes", "boolean", (0,)), NOTHING
    features = encode(asked(*answers), tiny)
    assert len(features) == 1
    found = TASK.training_features(features)
    assert [tiny.decode(each["labels"][1:-1]) for each in found] == ["May", "Yes", "Unanswerable"]
    evidence = [each["passage_labels"] for each in found]
    assert evidence == [[0, 0, 0, 1, 0], [0, 1, 0, 0, 1], [0] * 5]
    assert all(each["input_ids"] == features[0]["input_ids"] for each in found)
    lines = TASK.remarks(found, 2)
    sizes = [len(each["labels"]) for each in found]
    assert lines == [
        f"answers: {round(np.percentile(sizes, 50))} tokens in the median, "
        f"{round(np.percentile(sizes, 95))} at the 95th percentile, {max(sizes)} in the longest; "
        "0 of 3 cut",
        "2 of 3 inputs have evidence",
        "questions on papers without paragraphs: 2, left out",
    ]


@pytest.mark.parametrize("left", [0, 1, 2, 5])
def test_a_long_paper_is_read_from_its_beginning(tiny, left):
    ids, places = laid_out(tiny, "One", "It is red. It is", "Two", "It ends in May.", "It is red.")
    room = places[3] + left
    (feature,) = encode(asked(names("May")), tiny, max_length=room)
    assert feature["input_ids"] == ids[:room]
    assert feature["passage_positions"] == places[: 3 + (left > 0)]
    assert feature["passage_labels"] == [0, 0, 0, 1][: 3 + (left > 0)]
    assert feature["flags"] == {"truncated": True, "unread_tokens": feature["tokens"] - room}
    with pytest.raises(DataError, match="document 'q' has .* tokens, .* fit; data.over"):
        encode(asked(), tiny, max_length=room, overflow="error")


def test_a_question_is_cut_and_must_leave_room(tiny):
    (feature,) = encode(asked(question="When? "), tiny)  # its spaces are read, as by the authors
    assert feature["passage_positions"][0] == 1 + len(tokenize(tiny, "When? "))
    words = "When does it end, at last?"
    whole = tokenize(tiny, words)
    task = QasperGeneration(max_question=3)
    (feature,) = encode(asked(question=words), tiny, task=task)
    assert feature["input_ids"][:5] == [0, *whole[:3], SEP]
    assert feature["flags"] == {"question_cut": True}
    with pytest.raises(DataError, match="leave 0 tokens for the text; .*max_question"):
        encode(asked(question=words), tiny, max_length=8)


def test_papers_without_paragraphs_are_not_learnt_and_unanswerable(tiny):
    for paragraphs in ([], ["\n"]):
        item = asked(NOTHING, paragraphs=paragraphs, sections=None)
        features = encode(item, tiny)
        assert features[0]["input_ids"] == [0, *tokenize(tiny, "When?"), SEP]
        assert not TASK.training_features(features)
        answer = TASK.decode([written(tiny, "May", [])], CONFIG, item, features)
        assert (answer["answer"], answer["evidence"]) == ("Unanswerable", [])
        assert answer["empty"]
    assert TASK.training_features(encode(asked(), tiny))


def test_what_cannot_be_read_or_written_is_told(tiny):
    with pytest.raises(DataError, match="field 'sections' is .* of each of 4 paragraphs"):
        encode(asked(sections=["One"]), tiny)
    with pytest.raises(RecipeError, match="a ldt model has no decoder that writes answers"):
        encode(asked(), tiny, config=LdtConfig())


# answers


def written(tokenizer, text, logits, end=True):
    """What a model says: a text, and logits of the passages, padded."""
    ids = [SEP, 0, *tokenize(tokenizer, text), *[SEP] * end]
    return {
        "sequences": np.array([*ids, 1, -100]),
        "passage_logits": np.array([*logits, -9e9, -100], np.float32),
    }


def test_the_answer_is_the_text_and_evidence_all_paragraphs_above_one_half(tiny):
    item = asked(paragraphs=[*PARAGRAPHS, " "], sections=[*SECTIONS, None])
    features = encode(item, tiny)
    output = written(tiny, " May, June ", [9.0, 0.1, 9.0, 0.0, 2.0])
    answer = TASK.decode([output], CONFIG, item, features)
    assert answer["answer"] == "May, June"
    assert answer["answer_tokens"] == len(tokenize(tiny, " May, June "))
    # As in the file, each once, and no heading; the third stands at one half.
    assert (answer["paragraphs"], answer["evidence"]) == ([0, 3], [PARAGRAPHS[0]])
    assert answer["paragraph_probs"] == pytest.approx([0.52498, 0, 0.5, 0.88080, 0], abs=1e-5)
    assert set(answer) <= {*TASK.answers.keys}
    assert json.loads(json.dumps(answer)) == answer
    cut = TASK.decode([written(tiny, "May", [0] * 5, end=False)], CONFIG, item, features)
    assert cut["unfinished"]


def test_without_a_loss_of_passages_no_evidence_is_named(tiny):
    item, config = asked(), LdtSeq2SeqConfig(evidence_weights={"passages": 0.0})
    answer = TASK.decode([written(tiny, "May", [9.0] * 5)], config, item, encode(item, tiny))
    assert (answer["evidence"], answer["paragraph_probs"]) == ([], [0.0] * 4)
    assert QasperGeneration(weights={"passages": 0}).learn([item], DataSection()) == {
        "evidence_weights": {"passages": 0}
    }


def test_the_likeliest_tokens_are_written_unless_beams_are_asked_for():
    found = QasperGeneration(generation={"max_length": 20}).generation.settings(9)
    assert (found["num_beams"], found["no_repeat_ngram_size"]) == (1, 0)
    assert "length_penalty" not in found
    assert QasperGeneration(generation={"num_beams": 2}).generation.settings(9)["num_beams"] == 2


# the whole


RECIPE = """
task: {{name: qasper_generation, generation: {{max_length: 16}}}}
model: {{path: {led}}}
data: {{train: all.json, eval: all.json, format: qasper, max_length: 64, overflow: truncate}}
training:
  output_dir: run
  num_train_epochs: 30
  per_device_train_batch_size: 4
  gradient_accumulation_steps: 1
  learning_rate: 0.02
  lr_scheduler_type: constant
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_led):
    """A folder with a model that was trained on four papers, and the metrics of its training."""
    folder = tmp_path_factory.mktemp("written")
    made = papers(4) | {"bare": papers(1)["p0"] | {"full_text": []}}
    for each in made["bare"]["qas"]:
        each["question_id"] += "-bare"
    (folder / "all.json").write_text(json.dumps(made), encoding="utf-8")
    (folder / "r.yaml").write_text(RECIPE.format(led=tiny_led), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        quiet = ("training.eval_strategy=no", "training.save_strategy=no")
        return folder, train(recipes.load("r.yaml", quiet, command="finetune"))


@pytest.mark.slow
def test_predictions_are_published_lines_and_ldt_evaluate_says_what_training_did(run, monkeypatch):
    folder, metrics = run
    monkeypatch.chdir(folder)
    predict("all.json", model="run", output="predictions.jsonl", layout="qasper")
    lines = [json.loads(line) for line in Path("predictions.jsonl").read_text().splitlines()]
    assert all(
        list(line) == ["question_id", "predicted_answer", "predicted_evidence"] for line in lines
    )
    assert [line["predicted_answer"] for line in lines[-3:]] == ["Unanswerable"] * 3
    result = evaluate("all.json", "predictions.jsonl", format="qasper")
    trained = {name: metrics[f"eval_{name}"] for name in result.shown}
    assert trained == {name: pytest.approx(result.metrics[name]) for name in result.shown}
    # Better than what needs no reading: Unanswerable, of 6 of the 15 right, and no evidence.
    assert trained["Answer F1"] > 60
    assert trained["Evidence F1"] > 60
    assert "max_length" in json.loads(Path("run/generation_config.json").read_text())


def test_lines_of_ones_own_are_answered_and_read_once(run, monkeypatch):
    monkeypatch.chdir(run[0])
    calls, forward = [], LedEncoder.forward

    @wraps(forward)
    def counted(self, *args, **kwargs):
        calls.append(1)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(LedEncoder, "forward", counted)
    item = {"question": "AAAAA AAAAA", "paragraphs": ["The BBBBB.", "", "Of party."]}
    Path("new.jsonl").write_text(json.dumps({"id": "x"} | item) + "\n")
    predict("new.jsonl", model="run", output="answers.jsonl")
    (answer,) = map(json.loads, Path("answers.jsonl").read_text().splitlines())
    assert answer["answer"] == "BBBBB"
    assert answer["evidence"] == ["The BBBBB."]
    assert len(answer["paragraph_probs"]) == 3
    assert len(calls) == 1
