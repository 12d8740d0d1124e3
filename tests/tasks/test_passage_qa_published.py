"""Answers to Natural Questions and TyDi QA from the files to the published layouts and back."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from passage_answers import CONFIG, encode, outputs_of
from passages_made import nq, simplified, tydi, write
from training_runs import train
from transformers import AutoTokenizer

from ldt import benchmarks as evaluation
from ldt.benchmarks.formats import read
from ldt.data.tokenization import add_tokens
from ldt.errors import DataError
from ldt.inference.predict import predict
from ldt.recipe import recipe as recipes
from ldt.recipe.recipe import DataSection
from ldt.tasks import PassageQA
from ldt.tasks.base import score_all


@pytest.fixture(scope="module")
def real(shared_data):
    tokenizer = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / "roberta-base")
    add_tokens(tokenizer, PassageQA.inputs.markers)
    return tokenizer


# from bytes to bytes

PAGE = [
    "<P>",
    "Ünter",
    "🎉",
    "don't",
    "</P>",
    "<Ul>",
    "<Li>",
    "naïve\u180ecafé",
    "🎉🎉",
    "</Li>",
    "</Ul>",
]
BOXES = [(0, 5), (5, 11), (6, 10)]
TEXT = "\r\nÄiti 🎉 on\r\n\r\nภาษาไทย é\u0301 🎉🎉 end."


def bytes_of(words):
    start = len(TEXT[: TEXT.index(words)].encode())
    return start, start + len(words.encode())


def page_file(folder):
    one, two = (1, (2, 3)), (2, (7, 9))
    answers = [
        [(0, (2, 3))] * 5,
        [two, two, (), (), ()],
        ["YES", "YES", (), (), ()],
        [(), one, (), (), ()],
    ]
    lines = [nq(-(2**62) - n, PAGE, BOXES, each) for n, each in enumerate(answers)]
    return lines, write(folder / "nq.jsonl", *lines)


def article_file(folder):
    boxes = [bytes_of("Äiti 🎉 on"), bytes_of("ภาษาไทย é\u0301 🎉🎉 end.")]
    one, two = (0, bytes_of("🎉"), "NONE"), (1, bytes_of("é\u0301"), "NONE")
    null = (None, None, "NONE")
    answers = [[one] * 3, [two, two, null], [(0, None, "NO")] * 3, [null, null, one]]
    names = ["finnish", "thai", "thai", "english"]
    lines = [
        tydi(n - 2**62, TEXT, boxes, each, language)
        for n, (each, language) in enumerate(zip(answers, names, strict=True))
    ]
    return lines, write(folder / "tydiqa.jsonl", *lines)


FILES = {"nq": page_file, "tydiqa": article_file}


def strictly_valid(text, lines, format):
    """Check a file of predictions by the published description alone."""
    ids = [line["example_id"] for line in lines]
    if format == "nq":
        value = json.loads(text)
        assert value.keys() == {"predictions"}
        found = value["predictions"]
        keys = {"example_id", "long_answer", "long_answer_score", "short_answers"}
        keys |= {"short_answers_score", "yes_no_answer"}
        scores = "long_answer_score", "short_answers_score"
    else:
        found = [json.loads(line) for line in text.splitlines()]
        keys = {"example_id", "language", "passage_answer_index", "passage_answer_score"}
        keys |= {"minimal_answer", "minimal_answer_score", "yes_no_answer"}
        scores = "passage_answer_score", "minimal_answer_score"
    assert [each["example_id"] for each in found] == ids
    for each, line in zip(found, lines, strict=True):
        assert each.keys() == keys
        assert type(each["example_id"]) is int
        assert all(type(each[name]) is float and np.isfinite(each[name]) for name in scores)
        assert each["yes_no_answer"] in ("YES", "NO", "NONE")
        if format == "nq":
            page, spans = line.get("document_html"), [each["long_answer"], *each["short_answers"]]
            names = ("start_byte", "end_byte"), ("start_token", "end_token")
        else:
            assert each["language"] == line["language"]
            assert -1 <= each["passage_answer_index"] < len(line["passage_answer_candidates"])
            page, spans = line["document_plaintext"], [each["minimal_answer"]]
            names = (("start_byte_offset", "end_byte_offset"),)
        for place in spans:
            assert place.keys() == {name for pair in names for name in pair}
            for start, end in names:
                assert type(place[start]) is type(place[end]) is int
                assert 0 <= place[start] < place[end] or place[start] == place[end] == -1
                if page is not None and "byte" in start and place[start] >= 0:
                    page.encode()[place[start] : place[end]].decode()  # whole characters
        if each["yes_no_answer"] != "NONE":
            assert all(spans[-1][start] == -1 for start, _ in names) or len(spans) == 1
    return found


def right_answers(source, format, tokenizer):
    """What a model answers that is sure of the first annotation of each question."""
    task, data = PassageQA(), DataSection(format=format)
    answers, golds = [], []
    for example in read(source, data):
        features = encode(example, tokenizer, max_length=200, format=format)
        right = example.fields["annotations"][0]
        kind = right["yes_no"] or ("span" if right["spans"] else "none")
        chars = right["spans"][0] if right["spans"] else None
        outputs = outputs_of(features, {right["passage"]: 5}, kind, chars, cls=-4 if chars else 4)
        answers.append({"id": example.id} | task.decode(outputs, CONFIG, example, features))
        golds.append(task.gold(example, data, CONFIG))
    return json.loads(json.dumps(answers)), golds


@pytest.mark.parametrize("format", ["nq", "simplified", "tydiqa"])
def test_answers_have_the_bytes_and_tokens_of_the_file_and_training_scores_as_published(
    real, tmp_path, format
):
    name = "nq" if format == "simplified" else format
    lines, source = FILES[name](tmp_path)
    if format == "simplified":
        lines = list(map(simplified, lines))
        source = write(tmp_path / "s.jsonl", *lines)
    answers, golds = right_answers(source, name, real)
    value = PassageQA.answers.layouts[name].write(answers)
    rows = [value] if isinstance(value, dict) else list(value)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    found = strictly_valid(text, lines, name)
    if name == "nq":
        assert found[0]["short_answers"][0]["start_token"] == 2
        html = lines[0].get("document_html")
        if html:
            place = found[1]["short_answers"][0]
            cut = html.encode()[place["start_byte"] : place["end_byte"]].decode()
            assert cut == "naïve\u180ecafé 🎉🎉"
    else:
        place = found[1]["minimal_answer"]
        cut = TEXT.encode()[place["start_byte_offset"] : place["end_byte_offset"]].decode()
        assert cut == "é\u0301"
    (tmp_path / "pred.json").write_text(text)
    published = evaluation.evaluate(source, str(tmp_path / "pred.json"), format=name).metrics
    own, rows = score_all(PassageQA(), answers, golds, CONFIG)
    keys = ("long-best-threshold-", "short-best-threshold-")
    keys = keys if name == "nq" else ("avg_passage_", "avg_minimal_")
    for part, key in zip(("passage", "span"), keys, strict=True):
        for figure in ("f1", "precision", "recall"):
            assert own[f"{part}_{figure}"] == published[key + figure]
        assert own[f"{part}_f1"] == 100
    assert own["f1"] == 100
    assert [row["language"] for row in rows] == (
        ["english", "finnish", "thai"] if name == "tydiqa" else []
    )


def test_training_scores_as_published_where_answers_are_wrong(real, tmp_path):
    for name in FILES:
        _, source = FILES[name](tmp_path)
        answers, golds = right_answers(source, name, real)
        for answer, score in zip(answers, (2.0, 1.0, 4.0, 3.0), strict=True):
            answer |= {"passage_score": score, "span_score": score, "id": answer["id"]}
        answers[1] |= {"offsets": answers[0]["offsets"], "best_passage": 0}
        value = PassageQA.answers.layouts[name].write(answers)
        rows = [value] if isinstance(value, dict) else list(value)
        (tmp_path / "pred.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if name == "tydiqa":
            rows[1]["language"] = "thai"
            (tmp_path / "pred.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        published = evaluation.evaluate(source, str(tmp_path / "pred.json"), format=name).metrics
        own, _ = score_all(PassageQA(), answers, golds, CONFIG)
        keys = ("long-best-threshold-f1", "short-best-threshold-f1")
        keys = keys if name == "nq" else ("avg_passage_f1", "avg_minimal_f1")
        for part, key in zip(("passage_f1", "span_f1"), keys, strict=True):
            assert 0 < own[part] == published[key] < 100


# the whole

RECIPE = """
task: {{name: passage_qa}}
model: {{path: {model}}}
data: {{train: train.jsonl.gz, eval: train.jsonl.gz, format: {format}, stride: 4, max_length: 40}}
training:
  num_train_epochs: {epochs}
  per_device_train_batch_size: 4
  gradient_accumulation_steps: 1
  learning_rate: 0.01
  lr_scheduler_type: constant
  eval_strategy: "no"
  save_strategy: "no"
"""


def made_up(number):
    """A page of three paragraphs; the word behind ZZ is the answer, of half of the questions."""
    words = ["the", "party", "of", "first", "other"]
    place, answer = number % 3, number % 2
    tokens, boxes = [], []
    for paragraph in range(3):
        start = len(tokens)
        mark = "ZZ" if paragraph == place and answer else "agree"
        tokens += ["<P>", words[number % 5], mark, words[(number + paragraph) % 5], "</P>"]
        boxes.append((start, len(tokens)))
    right = (place, (5 * place + 3, 5 * place + 4)) if answer else ()
    return nq(number - 2**61, tokens, boxes, [right] * 2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_longformer):
    """A folder with a run that has learnt made-up pages, their file and lines, and its metrics."""
    folder = tmp_path_factory.mktemp("nq")
    lines = [made_up(number) for number in range(12)]
    with gzip.open(folder / "train.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "r.yaml").write_text(RECIPE.format(model=tiny_longformer, format="nq", epochs=30))
        found = train(recipes.load("r.yaml", command="finetune"))
    return folder, lines, found


@pytest.mark.slow
def test_twelve_pages_are_learnt_and_predicted_in_the_published_layout(trained, monkeypatch):
    folder, lines, metrics = trained
    monkeypatch.chdir(folder)
    assert metrics["eval_f1"] > 80
    options = {"layout": "nq", "output": "answers.out"}
    assert predict("train.jsonl.gz", **options) == 0
    strictly_valid((folder / "answers.out").read_text(), lines, "nq")
    result = evaluation.evaluate("train.jsonl.gz", "answers.out", format="nq").metrics
    assert metrics["eval_passage_f1"] == pytest.approx(result["long-best-threshold-f1"])
    assert metrics["eval_span_f1"] == pytest.approx(result["short-best-threshold-f1"])
    assert predict("train.jsonl.gz", output="answers.jsonl") == 0
    answers = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    given = [answer["passage"] is not None for answer in answers]
    assert sum(given[1::2]) > sum(given[::2])  # by the thresholds that are stored
    config = json.loads(next(folder.glob("runs/*/config.json")).read_text())
    assert config["answer_thresholds"].keys() == {"passage", "span"}


def model_of(trained):
    """The folder of the trained model."""
    return str(next(trained[0].glob("runs/*")))


def test_an_id_that_comes_twice_is_one_line_everywhere(
    trained, tiny_longformer, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "x.jsonl", made_up(1), made_up(1))
    recipe = RECIPE.format(model=tiny_longformer, format="nq", epochs=1)
    Path("r.yaml").write_text(recipe.replace("train.jsonl.gz", "x.jsonl"))
    with pytest.raises(DataError, match=r"^x.jsonl:2: id -\d+ stands at x.jsonl:1 too$"):
        train(recipes.load("r.yaml", command="finetune"))
    with pytest.raises(DataError, match="^x.jsonl: the id .* stands twice; each question once$"):
        evaluation.evaluate("x.jsonl", "none.json", format="nq")
    options = {"model": model_of(trained), "data": {"format": "nq"}, "layout": "nq"}
    with pytest.raises(DataError, match=r"^x.jsonl:2: id -\d+ came before$"):
        predict("x.jsonl", **options, output="a.json")
    assert not Path("a.json").exists()


def test_documents_without_candidates_have_no_passage_in_lower_precision_too(trained, tmp_path):
    lines = [tydi(1, TEXT, [], (), "thai"), tydi(2, " ", [], (), "thai")]
    source, output = write(tmp_path / "x.jsonl", *lines), tmp_path / "a.json"
    options = {"model": model_of(trained), "data": {"format": "tydiqa"}, "precision": "bf16"}
    assert predict(source, **options, layout="tydiqa", output=str(output)) == 0
    found = strictly_valid(output.read_text(), lines, "tydiqa")
    assert [each["passage_answer_index"] for each in found] == [-1, -1]
    assert found[1]["minimal_answer"] == {"start_byte_offset": -1, "end_byte_offset": -1}
