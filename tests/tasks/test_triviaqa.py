import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from span_pins import crc, said
from training_runs import train
from transformers import AutoTokenizer

from ldt.benchmarks import evaluate
from ldt.benchmarks import triviaqa as layout
from ldt.errors import DataError
from ldt.inference.predict import predict
from ldt.io.records import Example
from ldt.recipe.recipe import DataSection, load
from ldt.tasks import TriviaQA
from ldt.tasks.base import score_all
from ldt.training.labelled import DocumentEncoder, encode_all

ANY = SimpleNamespace()  # a config, which the task does not look at


def example(context="The party of York.", answers=("york",), id="d", **fields):
    fields = {"question": "who?", "context": context, "answers": list(answers)} | fields
    return Example(fields, id, f"f:{id}")


def encode(tiny, example, config=ANY, max_length=64, data=None, **fields):
    data = data or DataSection(stride=4)
    return TriviaQA(**fields).encode(example, tiny, data=data, max_length=max_length, config=config)


@pytest.mark.parametrize(
    ("domain", "id", "name", "start", "windows", "first", "starts", "ends", "text"),
    [
        (
            "wikipedia",
            "tc_9--David_Soul.txt",
            "roberta-base",
            [0, 6834, 343, 473, 871, 16455, 283, 31, 116, 2, 871, 16455, 36, 5400],
            [(1788025579, 1048607065), (77581622, 3831675680), (4205275062, 3630312993)],
            10,
            [79, 79, 224],
            [79, 81, 224],
            ["Chicago", "Chicago, Illinois", "Chicago"],
        ),
        (
            "web",
            "tc_1--46/46_46.txt",
            "bert-base-uncased",
            [101, 2029, 2137, 1011, 2141, 11881, 2180, 1996, 10501, 3396, 2005, 3906, 1999, 4479],
            [(1656273628, 2910509933)],
            16,
            [28, 36, 53],
            [29, 37, 54],
            ["Sinclair Lewis"] * 3,
        ),
    ],
)
def test_the_encoding_of_real_items_is_pinned(
    shared_data, domain, id, name, start, windows, first, starts, ends, text
):
    """Ids, offsets, global positions and gold spans of both domains."""
    file = str(shared_data / f"triviaqa/qa/{domain}-train.json")
    (item,) = (item for item in layout.read(file, DataSection()) if item.id == id)
    tokenizer = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / name)
    features = encode(tokenizer, item, max_length=1024, data=DataSection(stride=128))
    found = [(crc(feature["input_ids"]), crc(feature["offsets"])) for feature in features]
    assert found == windows
    one, *others = features
    assert one["input_ids"][: len(start)] == start
    assert one["first"] == first
    ones = [place for place, marked in enumerate(one["global_attention_mask"]) if marked]
    assert ones == list(range(first - 1))  # <s> and the question, the separator not
    assert (one["start_positions"], one["end_positions"]) == (starts, ends)
    assert said(one) == text
    assert not any(feature["start_positions"] for feature in others)
    if name == "bert-base-uncased":  # it numbers the parts of a pair
        parts = one["token_type_ids"]
        assert parts == [0] * first + [1] * (len(parts) - first)
    context = Path(item.fields["context_file"]).read_text("utf-8")
    for feature in features:
        for a, b in feature["offsets"][::50]:
            assert context[a:b].strip() == context[a:b]


def test_mentions_are_right_answers_up_to_a_number(tiny):
    item = example("York. york? yorkshire, the YORK!", ["york", "YORK"])
    (feature,) = encode(tiny, item)
    assert said(feature) == ["York", "york", "YORK"]
    assert feature["mentions"] == 3
    assert said(encode(tiny, item, max_spans=2)[0]) == ["York", "york"]
    assert said(encode(tiny, item, loss="first")[0]) == ["York"]
    assert encode(tiny, item, max_spans=2)[0]["mentions"] == 3


def test_a_mention_is_right_in_each_window_that_has_it_whole(tiny):
    text = "the party of the first part and " * 3 + "York " + "and the other party agree " * 4
    features = encode(tiny, example(text), max_length=32)
    having = [feature for feature in features if feature["start_positions"]]
    assert 1 <= len(having) < len(features)
    assert {word for feature in having for word in said(feature)} == {"York"}
    assert all(feature["end_positions"] == [] for feature in features if feature not in having)


def test_a_context_file_is_read_raw_when_it_is_needed(tiny, tmp_path):
    text = "\ufeffParty\r\nof\rYork 🎉\n"
    path = tmp_path / "e.txt"
    path.write_bytes(text.encode() + b"\xff York")
    item = example(None, context_file=path)
    (feature,) = encode(tiny, item)
    assert feature["context"] == path  # not its text
    assert said(feature) == ["York", "York"]
    ends = feature["first"] + np.flatnonzero(feature["offsets"][:, 0] >= 9)[:1]
    logits = np.zeros(len(feature["input_ids"]))
    logits[ends] = 5
    outputs = [{"start_logits": logits, "end_logits": logits}]
    found = TriviaQA().decode(outputs, ANY, item, [feature])
    whole = path.read_bytes().decode(errors="replace").removeprefix("\ufeff")
    assert found["answer"] == whole[found["start"] : found["end"]]
    inside = DataSection(evidence=str(tmp_path))
    assert encode(tiny, example(None, context_file="e.txt"), data=inside)[0]["context"] == path


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"context_file": Path("gone.txt")}, "f:d: gone.txt: No such file or directory; data.evi"),
        ({"context_file": "page.txt"}, "f:d: context_file 'page.txt' is not read; data.evidence"),
        ({"context_file": 3}, "f:d: context_file 3 is not read; data.evidence"),
        ({"context_file": None}, "f:d: no field 'context'"),
        ({"context": "York", "answers": []}, "f:d: 'answers' is [], expected a list of the answer"),
        ({"context": "York", "answers": None}, "f:d: 'answers' is None, expected a list of the an"),
        ({"context": "York", "answers": [3]}, "f:d: 'answers' is [3], expected a list of the answ"),
    ],
)
def test_what_an_example_lacks_is_told(tiny, fields, message):
    item = Example({"question": "who?", "answers": ["york"]} | fields, "d", "f:d")
    with pytest.raises(DataError) as caught:
        encode(tiny, item)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("name", ["../secret.txt", "/etc/passwd", "link.txt"])
def test_no_file_outside_of_the_evidence_or_the_questions_folder_is_read(
    tiny, tmp_path, name, named
):
    (tmp_path / "secret.txt").write_text("York")
    folder = tmp_path / "evidence"
    folder.mkdir()
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "page.txt").write_text("York")
    data = DataSection(evidence=str(folder) if named else None)
    item = replace(example(None, context_file=name), folder=str(folder))
    with pytest.raises(DataError, match="f:d: .*: a page outside of .*; data.evidence names"):
        encode(tiny, item, data=data)
    item.fields["context_file"] = "page.txt"
    assert encode(tiny, item, data=data)[0]["context"] == folder / "page.txt"


# training sets


def trained_on(tiny, *items, **fields):
    task, data = TriviaQA(**fields), DataSection(stride=4)
    features = encode_all(items, DocumentEncoder(task, tiny, data, 32, ANY), trained=True)
    return task.remarks(features, len(items) - len(set(features.documents.tolist())))


def test_documents_without_an_answer_are_left_out_kept_or_an_error(tiny):
    items = [example(id="a"), example("Nothing here.", id="b"), example("York, York", id="c")]
    found = "answers: 3 mentions in 2 documents"
    rest = "documents without an answer in what is read: 1, "
    assert trained_on(tiny, *items) == [found, rest + "left out (task.without_answer)"]
    kept = trained_on(tiny, *items, without_answer="keep", loss="first")
    assert kept == [
        "answers: 3 mentions in 3 documents",
        rest + "kept, with a loss of 0",
    ]
    with pytest.raises(DataError, match="^f:b: no answer in what is read of the document"):
        trained_on(tiny, *items, without_answer="error")


# answers


def answered(text, score, question=None):
    return {"answer": text, "score": score} | ({"question_id": question} if question else {})


def test_the_best_document_of_a_question_answers():
    items = [
        example(id="q1--a", question_id="q1", verified=True),
        example(id="q1--b", question_id="q1", verified=True),
        example(id="q2--a", question_id="q2", verified=False, answers=["foo bar"]),
    ]
    task, data = TriviaQA(), DataSection()
    golds = [task.gold(item, data, ANY) for item in items]
    answers = [answered("London", 2.0), answered("York", 3.0), answered("a Foo", 1.0)]
    metrics, rows = score_all(task, answers, golds, ANY)
    assert metrics == {
        "exact_match": 50,
        "f1": pytest.approx(100 * (1 + 2 / 3) / 2),
        "verified_exact_match": 100,
        "verified_f1": 100,
    }
    assert rows == []
    answers[1]["score"] = 1.0  # London wins
    assert score_all(task, answers, golds, ANY)[0]["verified_f1"] == 0
    answers[0]["score"] = None  # a document without a word
    assert score_all(task, answers, golds, ANY)[0]["verified_f1"] == 100


# the whole


NAMES = "York Bath Hull Deal Ely Wells Ripon Truro Derby Leeds Poole Luton Dover Stoke Exeter Lynn"


def questions(folder, domain):
    """16 questions in TriviaQA's layout, each with a page that has its answer among other towns."""
    names = NAMES.split()
    places = {"Wikipedia": "EntityPages", "Web": "SearchResults"}
    data = []
    for number, name in enumerate(names):
        file = f"{number} é/{name}.txt"
        path = folder / "evidence" / domain.lower() / file
        path.parent.mkdir(parents=True, exist_ok=True)
        others = [names[(number + step) % 16] for step in (3, 5, 11)]
        words = [*others[:2], name, others[2]]
        path.write_text("".join(f"“{word}”\r\nand the " for word in words), newline="")
        data.append(
            {
                "QuestionId": f"q{number}",
                "Question": f"the {chr(97 + number)} of {chr(97 + number)} party?",
                "Answer": {"NormalizedAliases": [name.lower()], "Value": name},
                places[domain]: [{"Filename": file}],
            }
        )
    whole = {"Data": data, "Domain": domain, "VerifiedEval": False, "Version": 1.0}
    file = folder / "qa" / "dev.json"
    file.parent.mkdir()
    file.write_text(json.dumps(whole))
    return file


@pytest.mark.parametrize("domain", ["Wikipedia", "Web"])
def test_documents_in_windows_train_together_and_are_answered_as_they_are_scored(
    domain, tiny_longformer, tmp_path
):
    """One step over 16 documents of several windows each; the best window answers in both."""
    file, output = questions(tmp_path, domain), tmp_path / "pred.json"
    (tmp_path / "r.yaml").write_text(f"""
task: {{name: triviaqa, without_answer: keep, max_answer: 4}}
model: {{path: {tiny_longformer}}}
data: {{train: {file}, eval: {file}, format: triviaqa, max_length: 40, stride: 8}}
training:
  output_dir: {tmp_path}/run
  max_steps: 1
  learning_rate: 0.01
  per_device_train_batch_size: 4
  gradient_accumulation_steps: 1
  eval_strategy: "no"
  save_strategy: "no"
""")
    metrics = train(load(tmp_path / "r.yaml", command="finetune"))
    results = json.loads((tmp_path / "run/metrics.json").read_text())
    assert results["data"]["eval"]["inputs"] > 30
    assert (
        predict(
            str(file), model=str(tmp_path / "run"), data={"format": "triviaqa"}, output=str(output)
        )
        == 0
    )
    assert all(json.loads(output.read_text()).values())
    assert ("q0" in json.loads(output.read_text())) == (domain == "Wikipedia")
    data = DataSection(evidence=str(tmp_path / "evidence"))
    result = evaluate(str(file), str(output), format="triviaqa", data=data)
    assert result.metrics["f1"] == pytest.approx(metrics["eval_f1"])
