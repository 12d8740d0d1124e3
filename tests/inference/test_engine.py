"""A model that is called in Python, beside the lines of ``ldt predict``."""

import json
import pickle
import re
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import psutil
import pytest
from classified import answer, lines_of, write

import ldt
from ldt.errors import DataError, ModelError, UserError
from ldt.inference import stream
from ldt.inference.options import meanings


@pytest.fixture
def model(fine_tuned):
    return ldt.load(str(fine_tuned))


RECORDS = [json.loads(line) for line in lines_of(30)]
TEXT = RECORDS[7]["body"]["text"]


@pytest.mark.parametrize(
    "options",
    [{}, {"batch_tokens": 100}, {"raw_scores": True}, {"passages": 2}, {"chunks": True}],
)
def test_records_have_the_answers_of_ldt_predict(options, fine_tuned, tmp_path, monkeypatch):
    monkeypatch.setenv("LDT_ONEDNN", "0")  # one library, whichever the clock would choose
    source = write(tmp_path / "docs.jsonl", lines_of(30))
    _, expected = answer(source, fine_tuned, tmp_path, **options)
    assert ldt.load(str(fine_tuned), **options)(RECORDS) == expected


def test_a_text_or_a_record_has_one_answer_and_a_list_a_list(model):
    (expected,) = model([RECORDS[7]])
    assert model(RECORDS[7]) == expected
    assert model(TEXT) == expected | {"id": 1}
    assert model([TEXT]) == [expected | {"id": 1}]
    assert [each["id"] for each in model(iter([TEXT, RECORDS[7], TEXT]))] == [1, "doc-7", 3]
    assert model([]) == []


def test_texts_of_several_fields_are_one(fine_tuned, tmp_path):
    head, tail = TEXT[:40], TEXT[40:]
    record = {"title": head, "note": " ", "body": tail, "id": "x"}
    path = "title + note + body"
    joined = ldt.load(str(fine_tuned), data={"text": path, "id": "id"})
    (expected,) = ldt.load(str(fine_tuned))([f"{head}\n\n{tail}"])
    assert joined(record) == expected | {"id": "x"}
    assert joined([f"{head}\n\n{tail}"]) == [expected]
    source = write(tmp_path / "docs.jsonl", [json.dumps(record)])
    assert answer(source, fine_tuned, tmp_path, data={"text": path, "id": "id"}) == (
        0,
        [joined(record)],
    )


@pytest.mark.parametrize(
    ("document", "what"),
    [
        (3, "document 2: a number, expected a text or a record"),
        (None, "document 2: null, expected a text or a record"),
        ({"name": 2}, "document 2: no field"),
        ({"body": {"text": ""}}, "document 2: no field 'name'; it has 'body'"),
        ({"name": [2], "body": {"text": ""}}, "document 2: field 'name' is a list, expected te"),
        (RECORDS[0], "document 2: id 'doc-0' came before"),
    ],
)
def test_a_document_that_cannot_be_used_is_named_or_has_an_error_for_an_answer(
    document, what, fine_tuned
):
    documents = [RECORDS[0], document, RECORDS[2], document, RECORDS[4]]
    with pytest.raises(DataError) as error:
        ldt.load(str(fine_tuned))(documents)
    assert str(error.value).startswith(what)
    found = ldt.load(str(fine_tuned), on_error="answer")(documents)
    assert [list(each) == ["id", "error"] for each in found] == [False, True, False, True, False]
    assert found[1]["error"] == str(error.value)
    assert [each["id"] for each in found[::2]] == ["doc-0", "doc-2", "doc-4"]


def test_a_table_has_a_row_of_text_for_each_of_its_own(model):
    texts = [record["body"]["text"] for record in RECORDS[5:9]]
    ids = np.array([5, 6, 7, 8])
    found = ldt.load(str(model.folder), data={"text": "text"}).columns(
        {"name": ids, "text": np.array(texts)}
    )
    assert found["id"] == ["5", "6", "7", "8"]
    expected = model(RECORDS[5:9])
    assert list(map(json.loads, found["answer"])) == [
        each | {"id": number} for each, number in zip(expected, range(5, 9), strict=True)
    ]


def test_documents_may_come_from_a_generator_that_asks(model):
    (first,) = model([TEXT])
    assert model(text for text in [TEXT] if model(TEXT)) == [first]


def test_torch_is_not_imported_before_the_first_question_nor_weights_pickled_after(model):
    code = (
        "import sys, pickle, ldt; model = ldt.load(sys.argv[1]); pickle.dumps(model); "
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(model.folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
    expected = model(TEXT)
    data = pickle.dumps(model)
    assert len(data) < 1000
    assert pickle.loads(data)(TEXT) == expected


def test_it_is_loaded_once_whoever_asks_first(model, monkeypatch):
    from ldt.inference import engine

    made, predictor = [], engine.ModelMaker.predictor
    monkeypatch.setattr(
        engine.ModelMaker, "predictor", lambda *args: made.append(1) or predictor(*args)
    )
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(model(RECORDS[:4]))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [model(RECORDS[:4])] * 4
    assert len(made) == 1


def test_answers_come_one_by_one_while_documents_do(model, monkeypatch):
    monkeypatch.setattr(stream, "LOOKAHEAD_DOCUMENTS", 4)
    taken = []
    answers = model.answer(taken.append(n) or record for n, record in enumerate(RECORDS))
    assert next(answers)["id"] == "doc-0"
    assert len(taken) == 4
    answers.close()
    assert [each["id"] for each in model(RECORDS[:4])] == [f"doc-{n}" for n in range(4)]


@pytest.mark.slow
def test_processes_answer_as_this_one_does_and_end(fine_tuned, monkeypatch):
    monkeypatch.setenv("LDT_ONEDNN", "0")  # one library, whichever the clock would choose
    documents = [RECORDS[0], 3, *RECORDS[1:]]
    options = {"batch_tokens": 64, "on_error": "answer", "device": "cpu"}
    expected = ldt.load(str(fine_tuned), **options)(documents)
    before = set(psutil.Process().children())
    with ldt.load(str(fine_tuned), workers=2, **options) as model:
        assert model(documents) == expected
        answers = model.answer(documents)
        assert next(answers) == expected[0]
        answers.close()  # with answers on their way, so that processes are started anew
        assert model(documents) == expected
        assert len(set(psutil.Process().children()) - before) == 2
    assert set(psutil.Process().children()) <= before


def test_a_document_that_cannot_be_used_is_left_out_where_it_is_skipped(fine_tuned):
    model = ldt.load(str(fine_tuned), on_error="skip")
    assert [each["id"] for each in model([RECORDS[0], 3, RECORDS[2]])] == ["doc-0", "doc-2"]


def test_the_docstring_has_every_option(fine_tuned):
    text = " ".join(ldt.load.__doc__.split())
    for name, meaning in meanings().items():
        key = name.removeprefix("data.")
        shown = name if key == name else f'data={{"{key}": …}}'
        assert f"{shown}: {meaning}" in text


def test_the_page_of_python_says_how(fine_tuned, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text("utf-8")
    part = page.partition("## spaCy")[0]
    calls, table = re.findall(r"^```python\n(.*?)^```", part, re.S | re.M)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "contracts").symlink_to(fine_tuned)
    monkeypatch.setattr(ldt, "load", partial(ldt.load, data={"text": "text", "id": "id"}))
    rows = datasets.Dataset.from_dict({"id": ["a", "b"], "text": [TEXT, "the party"]})
    names = {"rows": rows}
    exec(calls + table.replace("rows.map", "mapped = rows.map"), names)
    expected = names["model"](list(rows))
    assert list(map(json.loads, names["mapped"]["answer"])) == expected
    assert names["mapped"].column_names == ["id", "answer"]


def test_what_cannot_be_asked_is_told(fine_tuned):
    with pytest.raises(ModelError, match="nowhere: no such folder"):
        ldt.load("nowhere")
    for options, line in (
        ({"n_best": 3}, "n_best: classification has one answer"),
        ({"label_sets": 2}, "label_sets: expected less than 1, got 2"),
        ({"on_error": "go"}, "on_error: expected 'stop', 'skip' or 'answer', got 'go'"),
        ({"bach_tokens": 3}, "bach_tokens: no such option, did you mean 'batch_tokens'"),
        ({"text": "body"}, "text: no such option, did you mean 'data.text'"),
        ({"data": {"txt": "body"}}, "data.txt: no such option, did you mean 'data.text'"),
        ({"data": {"encoding": "utf-99"}}, "data.encoding: no such encoding of text, got 'utf-99'"),
        ({"passages_of": ["cap"]}, "passages_of: passages=K asks for passages"),
    ):
        with pytest.raises(UserError) as error:
            ldt.load(str(fine_tuned), **options)
        assert str(error.value).startswith(line)
