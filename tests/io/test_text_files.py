import gzip
import io
import logging

import pytest

from ldt.benchmarks.formats import read
from ldt.data.options import DataSection
from ldt.errors import DataError, UserError
from ldt.io.records import Example, text

LINES = b'{"text": "one"}\n{"text": "two"}\n'


def documents(source, *, document="text", **data):
    return list(read(str(source), DataSection(**data), document=document))


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "contracts"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "1.txt").write_bytes(b"\xef\xbb\xbfOne\r\n\r\ntwo")
    (folder / "a.TXT").write_text("[EXECUTION COPY] é", "utf-8")
    (folder / "c.txt.gz").write_bytes(gzip.compress(b"packed"))
    (folder / "empty.txt").touch()
    (folder / ".hidden.txt").write_text("no")
    return folder


def test_the_text_files_of_a_folder_are_documents_in_the_order_of_their_names(folder, caplog):
    found = documents(folder)
    assert [(item.id, item.fields["text"]) for item in found] == [
        ("a.TXT", "[EXECUTION COPY] é"),
        ("b/1.txt", "One\r\n\r\ntwo"),
        ("c.txt.gz", "packed"),
        ("empty.txt", ""),
    ]
    assert found[1].where == str(folder / "b" / "1.txt")
    assert caplog.records == []


def test_what_is_not_read_of_a_folder_is_said(folder, caplog):
    for name in ("a.pdf", "b.pdf", "c.docx"):
        (folder / name).touch()
    with caplog.at_level(logging.WARNING, "ldt"):
        assert len(documents(folder)) == 4
    (record,) = caplog.records
    assert record.getMessage() == f"{folder}: 4 text files read, not read: 2 .pdf, 1 .docx"


def test_a_folder_without_text_files_says_what_it_has(tmp_path):
    with pytest.raises(UserError, match="no .txt file in this folder; others there: none$"):
        documents(tmp_path)
    (tmp_path / "a.pdf").touch()
    with pytest.raises(UserError, match="folder; others there: 1 .pdf$"):
        documents(tmp_path)


@pytest.mark.parametrize(
    ("data", "name"), [({}, "context"), ({"text": "body.text"}, "body.text"), ({"text": "t"}, "t")]
)
def test_the_text_is_in_the_field_that_the_task_reads(tmp_path, data, name):
    path = tmp_path / "one.txt"
    path.write_text("The whole file,\nin two lines")
    (found,) = documents(path, document="context", **data)
    assert found == Example({name: "The whole file,\nin two lines"}, "one.txt", str(path))
    assert found.folder == str(tmp_path)


@pytest.mark.parametrize(
    "content",
    [LINES, b"\xef\xbb\xbf" + LINES, b'[{"text": "one"}, {"text": "two"}]', b"[\n{}, {}]"],
)
def test_json_in_a_text_file_is_read_as_such(tmp_path, content):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    assert [item.id for item in documents(path)] == [1, 2]
    assert len(documents(path, document=None)) == 2


@pytest.mark.parametrize("beginning", ["[EXECUTION COPY]", "[1] x", "{draft}", "", "<html>"])
def test_text_that_begins_a_little_like_json_is_text(tmp_path, beginning):
    path = tmp_path / "a.txt"
    path.write_text(beginning)
    (found,) = documents(path)
    assert found.fields == {"text": beginning}


def test_a_format_that_is_named_decides(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("text\tlabel\nx\ta\n")
    assert documents(path, format="tsv")[0].fields == {"text": "x", "label": "a"}


def test_the_format_text_reads_anything_as_one_document(tmp_path, monkeypatch):
    path = tmp_path / "a.md"
    path.write_bytes(LINES)
    assert documents(path, format="text")[0].fields == {"text": LINES.decode()}
    stdin = type("Stdin", (), {"buffer": io.BytesIO(b"One\ntwo"), "isatty": lambda self: False})
    monkeypatch.setattr("sys.stdin", stdin())
    assert documents("-", format="text") == [Example({"text": "One\ntwo"}, "stdin", "stdin")]


def test_text_has_no_right_answers_to_learn_from(folder):
    with pytest.raises(
        DataError, match="contracts: a folder, where one file of JSON lines, CSV or"
    ):
        documents(folder, document=None)
    with pytest.raises(DataError, match="1.txt: plain text, where one file of JSON lines, CSV or"):
        documents(folder / "b" / "1.txt", document=None)


def test_a_file_that_cannot_be_read_is_rejected_alone(folder):
    (folder / "a.TXT").write_bytes(b"x\n\xe9")
    (folder / "empty.txt").write_bytes(b"\xff\xfeu\0")
    what = r"a.TXT:2: not UTF-8: byte 0xe9 at byte offset 2 of the file; data.encoding=cp1252"
    with pytest.raises(DataError, match=what):
        documents(folder)
    rejected = []
    found = read(
        str(folder),
        DataSection(),
        document="text",
        on_error=lambda what, raw: rejected.append(str(what)),
    )
    assert [item.id for item in found] == ["b/1.txt", "c.txt.gz"]
    assert len(rejected) == 2
    assert "looks like UTF-16" in rejected[1]
    assert documents(folder / "a.TXT", encoding="latin-1")[0].fields == {"text": "x\né"}


def test_a_text_over_the_limit_is_rejected(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    with pytest.raises(DataError, match="a text of more than 5 bytes"):
        list(read(str(path), DataSection(), document="text", max_line_bytes=5))
    assert len(list(read(str(path), DataSection(), document="text", max_line_bytes=8))) == 1


# a table whose cells name text files; texts that are joined


@pytest.fixture
def table(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_bytes(b"\xef\xbb\xbfOne\r\ntwo \xc3\xa9")
    (tmp_path / "texts" / "b.txt").write_bytes("caf\u00e9".encode("cp1252"))
    (tmp_path / "t.csv").write_bytes("Datei;Titel\ntexts/a.txt;Ü\ntexts/b.txt;\n".encode("cp1252"))
    return tmp_path / "t.csv"


def test_a_cell_becomes_the_text_of_the_file_that_it_names(table):
    data = {"text_files": "Datei", "encoding": "cp1252"}
    assert DataSection(**data).text == "Datei"
    found = documents(table, **data)
    assert [item.fields["Datei"] for item in found] == ["One\r\ntwo é", "café"]
    joined = DataSection(text=["Titel", "Datei"], **data)
    texts = [text(item, joined.text) for item in documents(table, text=joined.text, **data)]
    assert texts == ["Ü\n\nOne\r\ntwo é", "café"]  # a blank part has no line of its own
    away = table.parent / "labels"
    away.mkdir()
    lines = away / "t.jsonl"
    lines.write_text('{"Datei": "a.txt"}')
    data["evidence"] = str(table.parent / "texts")
    assert documents(lines, **data)[0].fields["Datei"] == "One\r\ntwo é"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("texts/c.txt", ":2: field 'Datei' is 'texts/c.txt': no such file in "),
        ("texts", ":2: field 'Datei' is 'texts': no such file in "),
        ("", ":2: field 'Datei' is '': no such file in "),
        ("../t.txt", ":2: '../t.txt': a page outside of "),
        ("texts/b.txt", ":2: field 'Datei': {folder}/texts/b.txt:1: not UTF-8"),
    ],
)
def test_a_file_that_is_not_there_is_one_line_and_one_record(table, name, what):
    source = table.with_name("u.csv")
    source.write_text(f"Datei,n\n{name},1\ntexts/a.txt,2\n")
    with pytest.raises(DataError) as caught:
        documents(source, text_files="Datei")
    assert str(caught.value).startswith(f"{source}{what.format(folder=table.parent)}")
    errors = []
    data = DataSection(text_files="Datei")
    found = list(read(str(source), data, on_error=lambda error, raw: errors.append(str(error))))
    assert ([item.fields["n"] for item in found], len(errors)) == (["2"], 1)


def test_a_stream_has_no_folder_and_other_layouts_have_their_texts(table, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(b'{"Datei": "a.txt"}'))
    monkeypatch.setattr("sys.stdin", stream)
    with pytest.raises(DataError, match=r"stdin:1: no folder to look for 'a.txt' in; data.evid"):
        documents("-", text_files="Datei")
    with pytest.raises(UserError, match="data.text_files: files of data.format=squad hold the"):
        documents(table, text_files="Datei", format="squad")


def test_joined_texts_are_named_in_what_is_wrong_with_them():
    example = Example({"a": "x", "b": None, "c": 1, "d": {"e": " y"}}, 1, "t:1")
    assert text(example, DataSection(text=["a", "b", "d.e"]).text) == "x\n\n y"
    assert text(Example({"a + b": "whole"}, 1, "t:1"), "a + b") == "whole"
    with pytest.raises(DataError, match="t:1: field 'c' is a number, expected text"):
        text(example, "a + c")
    with pytest.raises(DataError, match="t:1: no field 'body'; it has"):
        text(example, "a + body")
    with pytest.raises(ValueError, match="' . ' in a name parts the names of fields, got 'a . b'"):
        DataSection(text=["a + b", "c"])
