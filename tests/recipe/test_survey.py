"""What is seen in a data file: its layout, its fields, and the task that fits."""

import io
import json
from pathlib import Path

import pytest
from recipe_data import LINES

from ldt.errors import DataError, UserError
from ldt.recipe.survey import check_fields, guessed, survey

PUBLISHED = Path(__file__).parents[1] / "helpers" / "snapshot_data" / "published"
TEXT = "the parties agree that this agreement ends. " * 5


def lines(path, records):
    path.write_text("".join(json.dumps(each) + "\n" for each in records), "utf-8")
    return str(path)


# Whose files are taken for those of mlm, qasper and embedding.
UNSEEN = ("charlm", "qasper_generation", "reranking")


@pytest.mark.parametrize("name", [name for name in LINES if name not in UNSEEN])
def test_the_task_of_a_file_is_seen_by_its_fields(name, tmp_path):
    make = LINES[name]
    found = survey(lines(tmp_path / "d.jsonl", [make(number) for number in range(12)]))
    assert found.task == name
    assert found.format is None
    check_fields(found, name)
    assert len(found.documents(name)) == 12
    assert min(map(len, found.documents(name))) > 20


LAYOUTS = {
    "squad.json": ("squad", "squad"),
    "wikihop.json": ("wikihop", "wikihop"),
    "hotpotqa.json": ("hotpotqa", "hotpotqa"),
    "triviaqa.json": ("triviaqa", "triviaqa"),
    "qasper.json": ("qasper", "qasper"),
    "contractnli.json": ("contractnli", "evidence_classification"),
    "nq.jsonl": ("nq", "passage_qa"),
    "tydiqa.jsonl": ("tydiqa", "passage_qa"),
    "summarization.jsonl": ("summarization", "summarization"),
    "conll.txt": ("conll", "token_classification"),
    "coreference.conll": ("coreference", "coreference"),
    "../kinds/studio.json": ("label-studio", "token_classification"),
    "../kinds/doccano.jsonl": ("doccano", "token_classification"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_published_layout_is_seen_by_its_content(name, tmp_path):
    survey_of = survey(str(PUBLISHED / name))
    assert (survey_of.format, survey_of.task) == LAYOUTS[name]
    check_fields(survey_of, survey_of.task)
    assert len(survey_of.documents(survey_of.task)[0]) > 10
    other = "squad" if survey_of.task != "squad" else "wikihop"
    with pytest.raises(UserError, match=f"{survey_of.task}, not of {other}$|^.*: no field '"):
        check_fields(survey_of, other)
    if name == "qasper.json":
        check_fields(survey_of, "qasper_generation")
        path = tmp_path / "indented.json"
        path.write_text(json.dumps(json.loads((PUBLISHED / name).read_text()), indent=1))
        assert survey(str(path)).format == "qasper"


ONCE = ("squad.json", "nq.jsonl", "conll.txt", "../kinds/doccano.jsonl", "../kinds/table.parquet")


@pytest.mark.parametrize("name", ONCE)
def test_a_file_is_opened_once_whatever_it_holds(name, monkeypatch):
    opened, file = [], io.FileIO
    monkeypatch.setattr(io, "FileIO", lambda *how: opened.append(how) or file(*how))
    survey(str(PUBLISHED / name))
    assert opened == [(str(PUBLISHED / name),)]


def test_the_choices_of_an_export_are_classes(tmp_path):
    path = tmp_path / "data.json"
    result = [{"type": "choices", "from_name": "kind", "value": {"choices": ["x"]}}]
    tasks = [
        {"id": n, "data": {"text": TEXT + str(n)}, "annotations": [{"result": result}]}
        for n in range(4)
    ]
    path.write_text(json.dumps(tasks).replace('["x"]', '["y"]', 2), "utf-8")
    found = survey(str(path))
    assert (found.format, found.task) == ("label-studio", "classification")
    check_fields(found, "classification")


def test_summaries_are_seen_under_their_published_names_but_for_labels(tmp_path):
    rows = [{"article": TEXT + str(n), "abstract": f"a {n}", "kind": "xy"[n % 2]} for n in range(9)]
    found = survey(lines(tmp_path / "a.jsonl", rows))
    assert (found.format, found.task) == ("summarization", "summarization")
    check_fields(found, found.task)
    plain = [{"text": row["article"], "summary": row["abstract"]} for row in rows]
    assert survey(lines(tmp_path / "b.jsonl", plain)).format is None
    labelled = [row | {"label": "xy"[n % 2]} for n, row in enumerate(plain)]
    assert survey(lines(tmp_path / "c.jsonl", labelled)).task == "classification"
    labelled = [row | {"label": "xy"[n % 2]} for n, row in enumerate(rows)]
    assert survey(lines(tmp_path / "d.jsonl", labelled)).task == "classification"


def test_lines_of_words_without_tags_are_text(tmp_path):
    path = tmp_path / "d.txt"
    path.write_text("It is\nmy Rome\n", "utf-8")
    assert survey(str(path)).task == "mlm"


def test_text_is_the_longest_field_and_labels_are_few_or_named_so(tmp_path):
    rows = [
        {"key": f"k{n}", "when": "2020-01-02"[: 9 + n % 2], "note": f"n {n}", "body": TEXT + str(n)}
        for n in range(12)
    ]
    kinds = [
        {"split": ("train", "dev")[n % 2]} | row | {"kind": "abc"[n % 3]}
        for n, row in enumerate(rows)
    ]
    found = survey(lines(tmp_path / "a.jsonl", kinds))
    assert (found.task, found.text, found.id) == ("classification", "body", "key")
    assert (found.labels.path, found.labels.counts) == ("kind", {"a": 4, "b": 4, "c": 4})
    named = [row | {"Label": f"l{n % 9}"} for n, row in enumerate(kinds)]
    assert survey(lines(tmp_path / "b.jsonl", named)).labels.path == "Label"
    assert survey(lines(tmp_path / "c.jsonl", rows)).task == "mlm"


def test_labels_may_be_several_fields_lists_or_numbers(tmp_path):
    table = tmp_path / "a.csv"
    rows = "".join(f"{TEXT},{n % 2},{n % 3 // 2},x\n" for n in range(12))
    table.write_text("text,cap,audit,price\n" + rows)
    flags = survey(str(table)).labels
    assert (flags.path, flags.counts) == (["cap", "audit"], {"cap": 6, "audit": 4})
    lists = [{"text": TEXT, "clauses": ["a", "b"][: n % 3]} for n in range(12)]
    assert survey(lines(tmp_path / "b.jsonl", lists)).labels.counts == {"a": 8, "b": 4}
    table.write_text("text,label\n" + "".join(f"{TEXT},{n}.5\n" for n in range(4)))
    numbers = survey(str(table)).labels
    assert (numbers.task, numbers.words()) == ({"problem": "regression"}, "numbers")
    table.write_text("text,label\n" + "".join(f"{TEXT},{n % 2}\n" for n in range(4)))
    whole = survey(str(table)).labels
    assert (whole.task, whole.counts) == ({}, {"0": 2, "1": 2})
    pointed = [{"text": TEXT, "label": float(n % 2)} for n in range(4)]
    codes = survey(lines(tmp_path / "c.jsonl", pointed)).labels
    assert (codes.task, codes.counts) == ({"problem": "single_label"}, {"0": 2, "1": 2})


@pytest.mark.parametrize("mark", "|;")
def test_several_labels_in_a_cell_are_parted(mark, tmp_path):
    table = tmp_path / "a.tsv"
    cells = ["a", mark.join("ab"), mark.join("bc"), ""] * 3
    table.write_text("text\tlabel\n" + "".join(f"{TEXT}\t{cell}\n" for cell in cells))
    found = survey(str(table)).labels
    assert (found.data, found.counts) == ({"label_separator": mark}, {"a": 6, "b": 6, "c": 3})


def test_another_encoding_is_tried(tmp_path):
    table = tmp_path / "a.csv"
    table.write_text(f"text,label\nfür {TEXT},a\n{TEXT},b\n", "cp1252")
    found = survey(str(table))
    assert found.keys == {"encoding": "cp1252"}
    assert found.documents("classification")[0].startswith("für ")


def test_labels_that_cannot_be_learned_from_are_told(tmp_path):
    table = tmp_path / "a.csv"
    table.write_text("text,label\n" + f"{TEXT},a\n" * 4)
    found = survey(str(table))
    assert found.task == "classification"
    assert not [line for line in found.lines("classification") if line.startswith("label")]
    with pytest.raises(DataError, match="no label that can be learned: .*: nothing to learn, all"):
        check_fields(found, "classification")


def test_documents_in_files_of_their_own_are_read(tmp_path):
    (tmp_path / "page.txt").write_text(TEXT)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "page.txt").write_text(TEXT)
    rows = [
        {"question": "who?", "context_file": name, "answers": ["the parties"]}
        for name in ("page.txt", "../page.txt", "missing.txt")
    ]
    found = survey(lines(tmp_path / "in" / "q.jsonl", rows))
    assert found.task == "triviaqa"
    assert found.documents("triviaqa") == [f"{TEXT} who?", "", ""]


def test_a_file_to_evaluate_on_is_the_one_beside_train(tmp_path):
    rows = [{"text": TEXT, "label": "ab"[n % 2]} for n in range(4)]
    train = lines(tmp_path / "my.train.jsonl", rows)
    assert survey(train).eval is None
    lines(tmp_path / "my.test.jsonl", rows)
    assert survey(train).eval is None
    dev = lines(tmp_path / "my.dev.jsonl", rows)
    assert survey(train).eval == dev


def test_a_folder_of_texts_is_for_pretraining(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").write_text("short")
    found = survey(str(tmp_path))
    assert (found.task, list(found.texts)) == ("mlm", [TEXT, "short"])
    with pytest.raises(UserError, match="no field 'label', which classification reads; it has pl"):
        check_fields(found, "classification")


def test_a_task_without_its_fields_is_refused_with_those_that_there_are(tmp_path):
    found = survey(lines(tmp_path / "a.jsonl", [{"question": "who?", "answers": ["x"]}] * 3))
    assert found.task == "mlm"
    with pytest.raises(UserError, match="no field 'context', which squad reads; it has 'question'"):
        check_fields(found, "squad")
    with pytest.raises(UserError, match="no field 'choices', which multiple_choice"):
        check_fields(found, "multiple_choice")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="no records in it"):
        survey(str(tmp_path / "empty.jsonl"))


def test_tokens_are_guessed_by_words_or_letters_where_there_are_no_spaces():
    assert guessed("one two three four five") == 7
    assert guessed("東京都") == 3 + 2
