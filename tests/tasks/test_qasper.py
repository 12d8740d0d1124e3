"""Questions on papers: inputs, labels of several annotators, answers and figures as published."""

import json

import numpy as np
import pytest
from papers import NOTHING, PARAGRAPHS, papers, question, said
from training_runs import train
from transformers import AutoTokenizer, PretrainedConfig

from ldt import benchmarks as evaluation
from ldt.data.tokenization import add_tokens
from ldt.errors import DataError
from ldt.inference.predict import predict
from ldt.recipe import recipe as recipes
from ldt.recipe.recipe import DataSection
from ldt.tasks import Qasper
from ldt.tasks.base import metric_of, score_all


@pytest.fixture(scope="module")
def tiny(tokenizer_folder):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    add_tokens(tokenizer, Qasper.inputs.markers)
    return tokenizer


TASK = Qasper()
CONFIG = PretrainedConfig(**TASK.learn([question()], DataSection()))


def encode(item, tokenizer, max_length=256, config=CONFIG, task=TASK, **data):
    section = DataSection(**data)
    return task.encode(item, tokenizer, data=section, max_length=max_length, config=config)


def quoted(feature):
    """Texts of the right spans of a feature."""
    places = zip(feature["start_positions"], feature["end_positions"], strict=True)
    offsets, first = feature["offsets"], feature["first"]
    return [
        feature["context"][offsets[a - first, 0] : offsets[b - first, 1]].strip() for a, b in places
    ]


def says(feature, kind, probs=(), span=None):
    """Outputs of a model that is sure of a kind; of paragraphs by number, of a span by its text."""
    start, end = np.full((2, len(feature["input_ids"]) + 2), -5, np.float32)
    if span:
        offsets, at = feature["offsets"], feature["context"].index(span)
        inside = (offsets[:, 1] > at) & (offsets[:, 0] < at + len(span))
        real = np.flatnonzero(inside & (offsets[:, 1] > offsets[:, 0])) + feature["first"]
        start[real[0]] = end[real[-1]] = 5
    logits = [dict(probs).get(number, -4.0) for number in feature["passages"].tolist()]
    return {
        "start_logits": start,
        "end_logits": end,
        "logits": np.array([5.0 * (name == kind) for name in CONFIG.id2label.values()]),
        "passage_logits": np.array([*logits, -9e9]),
    }


# encoding


def test_a_paper_is_title_abstract_sections_and_paragraphs_with_markers(tiny):
    (feature,) = encode(question(), tiny)
    assert feature["context"] == (
        "A title\n\nIt is short.\n\nOne\n\nThe party agrees.\n\n\n\nTwo\n\n"
        "It ends in May, not in June.\n\nMay is late."
    )
    assert [feature["context"][a:b] for a, b in feature["paragraphs"].tolist()] == PARAGRAPHS
    assert feature["passages"].tolist() == [0, 2, 3]  # a blank one has no marker
    marker = tiny.convert_tokens_to_ids("[PARAGRAPH]")
    places = np.flatnonzero(np.array(feature["input_ids"]) == marker).tolist()
    assert places == feature["passage_positions"]
    is_global = np.flatnonzero(feature["global_attention_mask"]).tolist()
    assert is_global == [*range(feature["first"] - 1), *places]
    bare = question(title="", abstract=None, sections=None)
    assert encode(bare, tiny)[0]["context"] == "\n\n".join(PARAGRAPHS)


def test_spans_are_those_of_the_evidence_else_of_the_whole_paper(tiny):
    (feature,) = encode(question(said("May")), tiny)
    assert quoted(feature) == ["May"]  # not the one of the last paragraph
    assert feature["passage_labels"] == [0, 1, 0]
    assert feature["labels"] == 0
    (feature,) = encode(question(said("May", paragraphs=())), tiny)
    assert quoted(feature) == ["May", "May"]
    assert feature["passage_labels"] == [0, 0, 0]


def test_all_annotators_are_right_together(tiny):
    answers = said("May"), said("party", paragraphs=(0,)), said("Yes", "boolean", (3,))
    (feature,) = encode(question(*answers), tiny)
    assert sorted(quoted(feature)) == ["May", "party"]
    assert feature["passage_labels"] == [1, 1, 1]
    assert feature["labels"] == 0  # a span, by two of three
    kinds = [
        encode(question(*answers), tiny)[0]["labels"]
        for answers in (
            [said("May"), said("No", "boolean"), said("No", "boolean")],
            [said("Yes", "boolean"), NOTHING],  # the first of equal ones
            [NOTHING],
            [said("Yes", "abstractive")],
        )
    ]
    assert kinds == [2, 1, 3, 0]


def test_a_free_answer_is_learnt_by_its_evidence_and_what_is_not_found_is_counted(tiny):
    (free,) = encode(question(said("in the fifth month", "abstractive")), tiny)
    assert (free["start_positions"], free["passage_labels"]) == ([-100], [0, 1, 0])
    (lost,) = encode(question(said("July"), said("August")), tiny)
    assert (lost["start_positions"], lost["labels"]) == ([-100], 0)
    (half,) = encode(question(said("July, May", spans=["July", "May"])), tiny)
    assert quoted(half) == ["May"]
    features = [free | {"document": 0}, lost | {"document": 1}, half | {"document": 2}]
    assert TASK.remarks(features, 4) == [
        "3 of 3 inputs have evidence",
        "extractive answers not found in their paper: 2",
        "questions on papers without paragraphs: 4, left out",
    ]
    (nothing,) = encode(question(NOTHING), tiny)
    assert (nothing["start_positions"], nothing["labels"]) == ([0], 3)


def test_chunks_learn_the_kind_where_the_evidence_is_and_cut_no_paragraph(tiny):
    whole = len(encode(question(), tiny)[0]["input_ids"])
    features = encode(question(), tiny, max_length=whole - 12)
    assert len(features) > 1
    for feature in features:
        has_evidence = 2 in feature["passages"]
        assert feature["labels"] == (0 if has_evidence else -100)
        assert feature["start_positions"] != [-100]
        assert (feature["start_positions"] == [0]) == (not has_evidence)
    assert sorted(sum((f["passages"].tolist() for f in features), [])) == [0, 2, 3]


def test_papers_without_paragraphs_are_not_learnt_and_unanswerable(tiny):
    for paragraphs in ([], [""]):
        item = question(NOTHING, paragraphs=paragraphs, sections=None)
        features = encode(item, tiny)
        assert bool(TASK.training_features(features)) == bool(
            paragraphs and features[0]["passages"].size
        )
        outputs = [says(feature, "span", span="short") for feature in features]
        answer = TASK.decode(outputs, CONFIG, item, features)
        assert (answer["answer"], answer["evidence"]) == ("Unanswerable", [])
    assert TASK.training_features(encode(question(), tiny))


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"paragraphs": "a"}, "field 'paragraphs' is"),
        ({"sections": ["One"]}, "field 'sections' is .* of each of 4 paragraphs"),
        ({"answers": []}, "field 'answers' is a list, empty, expected a list of one at least"),
        ({"answers": ["May"]}, "'May', expected an object with 'type'"),
        ({"answers": [said("May") | {"type": "x"}]}, "type 'x', expected one of 'extractive'"),
        (
            {"answers": [said("May") | {"paragraphs": [4]}]},
            "evidence: 4, expected numbers of paragraphs, .* are 4",
        ),
        ({"answers": [said("May") | {"paragraphs": [True]}]}, "evidence: true, expected"),
        ({"answers": [said("May") | {"spans": [1]}]}, "1, expected text"),
    ],
)
def test_a_question_that_cannot_be_read_is_told(tiny, fields, what):
    with pytest.raises(DataError, match=f"^dev.json: q: {what}"):
        encode(question(**fields), tiny)


# answers


def test_a_span_is_cut_from_the_paper_with_its_evidence(tiny):
    item = question()
    features = encode(item, tiny)
    outputs = [says(features[0], "span", {2: 2.0, 3: 0.0}, "not in June")]
    answer = TASK.decode(outputs, CONFIG, item, features)
    assert (answer["answer"], answer["type"]) == ("not in June", "span")
    assert features[0]["context"][answer["start"] : answer["end"]] == "not in June"
    assert (answer["evidence"], answer["paragraphs"]) == ([PARAGRAPHS[2]], [2])  # .5 is not above
    assert answer["paragraph_probs"][1] == 0
    assert sum(answer["scores"].values()) == pytest.approx(1)
    assert set(answer) <= {*TASK.answers.keys}
    assert json.loads(json.dumps(answer)) == answer
    places = TASK.places(answer, item, DataSection())
    best, _ = max(places, key=lambda place: place[1])
    assert features[0]["context"][best:].startswith("It ends in May")


def test_the_best_paragraph_is_evidence_unless_the_question_is_unanswerable(tiny):
    features = encode(question(), tiny)
    for kind, words in (("yes", "Yes"), ("no", "No")):
        outputs = [says(features[0], kind, {3: -1.0}, "May")]
        answer = TASK.decode(outputs, CONFIG, question(), features)
        assert (answer["answer"], answer["start"]) == (words, None)
        assert answer["evidence"] == ["May is late."]
    outputs = [says(features[0], "unanswerable", {3: 4.0}, "May")]
    answer = TASK.decode(outputs, CONFIG, question(), features)
    assert (answer["answer"], answer["evidence"], answer["paragraphs"]) == ("Unanswerable", [], [])


def test_a_paragraph_that_comes_twice_is_listed_once(tiny):
    item = question(paragraphs=["May.", "May."], sections=None, answers=[NOTHING])
    features = encode(item, tiny)
    outputs = [says(features[0], "yes", {0: 4.0, 1: 4.0})]
    answer = TASK.decode(outputs, CONFIG, item, features)
    assert (answer["evidence"], answer["paragraphs"]) == (["May."], [0, 1])


def test_the_figures_are_the_published_ones():
    golds = [
        TASK.gold(question(*answers), DataSection(), CONFIG)
        for answers in ([said("in May"), NOTHING], [said("Yes", "boolean", (0, 2))])
    ]
    answers = [
        {"answer": "May", "evidence": []},  # F1 2/3; the evidence of the second annotator
        {"answer": "Yes", "evidence": [PARAGRAPHS[0]]},
    ]
    metrics, rows = score_all(TASK, answers, golds, CONFIG)
    assert metrics == pytest.approx({"Answer F1": 250 / 3, "Evidence F1": 250 / 3})
    assert [(row["type"], row["questions"]) for row in rows] == [("extractive", 1), ("boolean", 1)]
    assert metric_of(TASK, CONFIG) in metrics
    found = TASK.baseline(golds, golds, CONFIG)
    assert found["Answer F1"] == ("always 'Unanswerable'", 50)
    assert found["Evidence F1"].value == 50


# the whole


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_longformer):
    """A folder with a model that was trained on four papers, and the metrics of its training."""
    folder = tmp_path_factory.mktemp("qasper")
    file = folder / "all.json"
    made = papers(4) | {"bare": papers(1)["p0"] | {"full_text": []}}
    for each in made["bare"]["qas"]:
        each["question_id"] += "-bare"
    file.write_text(json.dumps(made), encoding="utf-8")
    recipe = folder / "r.yaml"
    recipe.write_text(
        f"""
task: {{name: qasper}}
model: {{path: {tiny_longformer}}}
data: {{train: {file}, eval: {file}, format: qasper}}
training:
  output_dir: {folder}/run
  num_train_epochs: 24
  per_device_train_batch_size: 6
  gradient_accumulation_steps: 1
  learning_rate: 0.02
  lr_scheduler_type: constant
  eval_strategy: "no"
  save_strategy: "no"
""",
        encoding="utf-8",
    )
    return folder, train(recipes.load(recipe))


@pytest.mark.slow
def test_predictions_are_strict_published_lines_and_ldt_evaluate_says_what_training_did(run):
    folder, metrics = run
    file, out = folder / "all.json", folder / "predictions.jsonl"
    predict(str(file), model=str(folder / "run"), output=str(out), layout="qasper")
    made = json.loads(file.read_text("utf-8"))
    known = {
        question["question_id"]: [
            text for part in paper["full_text"] for text in part["paragraphs"]
        ]
        for paper in made.values()
        for question in paper["qas"]
    }
    lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [line["question_id"] for line in lines] == list(known)
    for line in lines:
        assert set(line) == {"question_id", "predicted_answer", "predicted_evidence"}
        assert type(line["predicted_answer"]) is str
        evidence = line["predicted_evidence"]
        assert len(set(evidence)) == len(evidence)
        assert set(evidence) <= set(known[line["question_id"]])
        assert bool(evidence) == (line["predicted_answer"] != "Unanswerable")
    assert [line["predicted_answer"] for line in lines[-3:]] == ["Unanswerable"] * 3
    result = evaluation.evaluate(str(file), str(out), format="qasper")
    trained = {name: metrics[f"eval_{name}"] for name in result.shown}
    assert trained == {name: pytest.approx(result.metrics[name]) for name in result.shown}
    assert trained["Answer F1"] > 40


def test_passages_name_the_likeliest_paragraph(run):
    folder, _ = run
    out = folder / "answers.jsonl"
    predict(
        str(folder / "all.json"),
        model=str(folder / "run"),
        output=str(out),
        passages=1,
        passages_unit="paragraph",
    )
    answers = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    for answer in answers[:-3]:
        best = int(np.argmax(answer["paragraph_probs"]))
        assert answer["passages"][0]["score"] == answer["paragraph_probs"][best]
        assert answer["passages"][0]["text"][:4] == ("The ", None, "Of p")[best]
