"""Each key of ``data:`` that says how a file is read, in each format: it acts or is refused."""

import json

import pytest

from ldt.benchmarks.formats import FORMATS, LINES, read
from ldt.data.labels import LabelReader
from ldt.data.options import DataSection
from ldt.errors import DataError, RecipeError
from ldt.inference.options import PredictOptions
from ldt.recipe.recipe import of_keys, reading

TEXT = "Müller was here"
QA = {"id": 7, "question": TEXT, "answers": []}
SQUAD = {"data": [{"title": "t", "paragraphs": [{"context": TEXT, "qas": [QA]}]}]}
NLI = {
    "documents": [{"id": 1, "text": TEXT, "spans": [[0, 6]]}],
    "labels": {"k": {"hypothesis": TEXT}},
}
PAPER = {
    "title": TEXT,
    "abstract": "",
    "full_text": [],
    "qas": [{"question_id": 7, "question": TEXT}],
}
STUDIO = {"id": 1, "data": {"text": TEXT, "nr": 5}, "annotations": [{"result": []}]}
TOKENS = [{"token": "Müller", "html_token": False, "start_byte": 0, "end_byte": 7}]
NQ = {
    "example_id": 7,
    "question_text": TEXT,
    "document_text": TEXT,
    "long_answer_candidates": [],
}
TYDI = {
    "example_id": 7,
    "language": "english",
    "question_text": TEXT,
    "document_plaintext": TEXT,
    "passage_answer_candidates": [],
}
LINE = {"text": TEXT, "nr": 5, "summary": TEXT, "label": "2"}
FACTS = {"text": TEXT, "violated_articles": ["2"], "allegedly_violated_articles": ["2"]}
CONTENT = {
    "jsonl": LINE,
    "csv": f"text,nr\n{TEXT},5\n",
    "tsv": f"text\tnr\n{TEXT}\t5\n",
    "text": TEXT,
    "summarization": LINE,
    "doccano": LINE,
    "conll": "Müller B-PER\nwas O\n",
    "coreference": "#begin document (a)\nMüller (1)\nwas -\n#end document\n",
    "gap": f"gap-1\t{TEXT}\twas\t7\tMüller\t0\tTRUE\there\t11\tFALSE\t\n",
    "nq": NQ,
    "tydiqa": TYDI,
    "ecthr_a": FACTS,
    "ecthr_b": FACTS,
    "scotus": {"text": TEXT, "issueArea": "2"},
    "eurlex": {"text": TEXT, "labels": ["100163"]},
    "hotpotqa": [{"_id": 7, "question": TEXT, "context": []}],
    "squad": SQUAD,
    "cuad": SQUAD,
    "triviaqa": {
        "Domain": "Web",
        "Data": [{"QuestionId": 7, "Question": TEXT, "SearchResults": [{"Filename": "a.txt"}]}],
    },
    "wikihop": [{"id": 7, "query": TEXT, "candidates": [], "supports": []}],
    "contractnli": NLI,
    "qasper": {"p": PAPER},
    "label-studio": [STUDIO],
    "triples": f"{TEXT}\t{TEXT}\tanother\n",
    "beir": "query-id\tcorpus-id\tscore\n7\t5\t1\n",
}
TASKS = {  # that learn from a format; lines go by classification
    **dict.fromkeys(("conll",), "token_classification"),
    **{name: name for name in ("hotpotqa", "squad", "triviaqa", "wikihop", "qasper")},
    **{"cuad": "squad", "contractnli": "evidence_classification", "summarization": "summarization"},
    **dict.fromkeys(("nq", "tydiqa"), "passage_qa"),
    **dict.fromkeys(("triples", "beir"), "embedding"),
}
KEYS = {
    "encoding": "latin-1",
    "id": "nr",
    "text": "nix",
    "domain": "web",
    "evidence": "folder",
    "text_files": "nr",
    "label": "nix",
    "label_separator": "|",
}


def written(folder, format, encoding="utf-8"):
    """A file of a format."""
    file = folder / f"file.{format if format in LINES else 'txt' if format == 'text' else 'json'}"
    if format == "parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"text": [TEXT], "nr": [5]}), file)
        return str(file)
    content = CONTENT[format]
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False) + "\n"
    file.write_bytes(text.encode(encoding))
    return str(file)


def recipe(format, key, value):
    """The recipe of a format with a key of its data section, or why it is refused."""
    task = {"name": TASKS.get(format, "classification")}
    keys = [f"data.format={format}", f"data.{key}={value}"]
    keys += ["data.overflow=truncate"] if format == "summarization" else []
    try:
        return of_keys(task, keys, "recipe"), ""
    except RecipeError as error:
        return None, str(error)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("key", KEYS)
def test_each_reading_key_acts_or_is_refused(tmp_path, format, key):
    source = written(tmp_path, format, "latin-1" if key == "encoding" else "utf-8")
    folder = str(tmp_path / "evidence")
    (tmp_path / "evidence" / "web").mkdir(parents=True)
    asked, refused = recipe(format, key, folder if key == "evidence" else KEYS[key])
    if refused:  # with why, and what would do
        assert f"data.{key}=" in refused
        assert ": not read, " in refused
        assert refused.endswith("; leave it out")
        return
    task, data = asked.task, asked.data
    if format == "triviaqa":
        data = data.model_copy(update={"evidence": folder})
    document = "text" if format == "text" else None
    if key == "text_files":  # the cell names no file
        with pytest.raises(DataError, match="field 'nr' is"):
            list(read(source, data))
        return
    if key in ("text", "label"):  # looked up in each example; that there is none is told
        look = task.parts if key == "text" else task.answer_key
        with pytest.raises(DataError, match="no field 'nix'"):
            look(*read(source, data, document=document), data)
        return
    (found,) = read(source, data, document=document)
    if key == "encoding":
        assert "Müller" in json.dumps(found.fields, ensure_ascii=False, default=str)
    elif key == "id":
        assert int(found.id) == 5
    elif key == "label_separator":
        found.fields["label"] = "a|b"
        assert LabelReader(data.label, data.label_separator).raw(found) == ["a", "b"]
    else:
        assert format == "triviaqa"


@pytest.mark.parametrize("format", ["squad", "cuad", "hotpotqa", "wikihop", "qasper", "triviaqa"])
def test_ids_that_are_numbers_are_read_as_text(tmp_path, format):
    (tmp_path / "web").mkdir()
    data = DataSection(format=format, evidence=str(tmp_path))
    (found,) = read(written(tmp_path, format), data)
    assert isinstance(found.id, str)
    assert found.id.startswith("7")


def test_a_field_that_no_record_has_is_told(tmp_path):
    data = DataSection(format="jsonl", fields={"question": "nix"})
    with pytest.raises(DataError, match=r"data.fields.question: no record has a field 'nix'"):
        list(read(written(tmp_path, "jsonl"), data))


@pytest.mark.parametrize(
    ("keys", "read"),
    [
        (["data.text=body", "data.id=007"], {"text": "body", "id": "007"}),
        (["data.text=[title, body]"], {"text": "title + body"}),
        (["data.fields.question=query"], {"fields": {"question": "query"}}),
        ([], {}),
        (["data.txet=body"], "data.txet=body: not read here, did you mean 'data.text'?"),
        (["encoding=cp1252"], "encoding=cp1252: not read here, did you mean 'data.encoding'?"),
        (["data.train=a.jsonl"], "data.train=a.jsonl: not read here, expected one of data.format,"),
        (["data.encoding=x"], "data.encoding=x: no such encoding of text, got 'x'"),
        (["data.format=wikihop", "data.id=x"], "data.id=x: not read, wikihop says which ids are"),
    ],
)
def test_keys_say_without_a_recipe_what_is_read(keys, read):
    if isinstance(read, dict):
        assert reading(keys).model_dump(exclude_unset=True) == read
        return
    with pytest.raises(RecipeError) as refused:
        reading(keys)
    assert str(refused.value).startswith(read)
    assert "\n" not in str(refused.value)


def test_a_field_of_names_of_files_replaces_the_text_field_of_the_training():
    trained = of_keys({"name": "classification"}, ["data.text=body"], "recipe")
    data = PredictOptions.of({"data": {"text_files": "file"}}).applied(trained).data
    assert (data.text, data.text_files) == ("file", "file")
    data = PredictOptions.of({"data": {"text_files": "file", "text": "x"}}).applied(trained).data
    assert data.text == "x"
