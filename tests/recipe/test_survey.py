"""What is seen in a data file: its layout, its fields, and the task that fits."""

import json

import pytest
from recipe_data import LINES

from ldt.data.options import DataSection
from ldt.errors import DataError, UserError
from ldt.recipe.survey import check_fields, guessed, survey

TEXT = "the parties agree that this agreement ends. " * 5


def lines(path, records):
    path.write_text("".join(json.dumps(each) + "\n" for each in records), "utf-8")
    return str(path)


UNSEEN = ("charlm", "qasper_generation")  # whose files are taken for those of mlm and qasper


@pytest.mark.parametrize("name", [name for name in LINES if name not in UNSEEN])
def test_the_task_of_a_file_is_seen_by_its_fields(name, tmp_path):
    make = LINES[name]
    found = survey(lines(tmp_path / "d.jsonl", [make(number) for number in range(12)]))
    assert found.task == name
    assert found.format is None
    check_fields(found, name)
    assert len(found.documents(name)) == 12
    assert min(map(len, found.documents(name))) > 20


QUESTION = {"question": "who?", "id": "q", "answers": [{"text": "the", "answer_start": 0}]}
LAYOUTS = {
    "squad": {"data": [{"paragraphs": [{"context": TEXT, "qas": [QUESTION]}]}]},
    "wikihop": [{"id": "a", "query": "who", "candidates": ["x"], "supports": [TEXT]}],
    "hotpotqa": [
        {"_id": "a", "question": "w?", "context": [["T", [TEXT]]], "supporting_facts": []}
    ],
    "qasper": {
        "1": {
            "full_text": [{"section_name": None, "paragraphs": [TEXT]}],
            "qas": [{"question_id": "q", "question": "who?"}],
        }
    },
}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_published_layout_is_seen_by_its_content(name, indent, tmp_path):
    path = tmp_path / "data.json"
    path.write_text(json.dumps(LAYOUTS[name], indent=indent), "utf-8")
    found = survey(str(path))
    assert (found.format, found.task) == (name, name)
    assert found.documents(name)[0].startswith("the parties") or name == "hotpotqa"
    with pytest.raises(UserError, match=f"its layout is that of {name}, not of classification"):
        check_fields(found, "classification")
    if name == "qasper":
        check_fields(found, "qasper_generation")


def test_a_layout_may_be_of_a_task_of_another_name(tmp_path):
    contract = {"id": 1, "text": TEXT, "spans": [[0, 9]]}
    labels = {"nda-1": {"short_description": "end", "hypothesis": "It ends."}}
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"documents": [contract], "labels": labels}, indent=1), "utf-8")
    found = survey(str(path))
    assert (found.format, found.task) == ("contractnli", "evidence_classification")
    check_fields(found, found.task)
    assert "It ends." in found.documents(found.task)[0]


def test_the_labels_of_an_export_say_its_task(tmp_path):
    path = tmp_path / "data.json"
    words = [
        {"type": "labels", "value": {"start": 0, "end": 3, "labels": ["A"]}},
        {"type": "choices", "from_name": "kind", "value": {"choices": []}},
    ]
    for result, task in zip(words, ("token_classification", "classification"), strict=True):
        tasks = [
            {"id": n, "data": {"text": TEXT + str(n)}, "annotations": [{"result": [result]}]}
            for n in range(4)
        ]
        if result["type"] == "choices":
            tasks = json.loads(json.dumps(tasks))
            for n, each in enumerate(tasks):
                each["annotations"][0]["result"][0]["value"]["choices"] = ["xy"[n % 2]]
        path.write_text(json.dumps(tasks), "utf-8")
        found = survey(str(path))
        assert (found.format, found.task) == ("label-studio", task)
        check_fields(found, task)


@pytest.mark.parametrize("name", ["nq/nq-made-up-dev-00.jsonl.gz", "tydiqa/tiny_dev.jsonl.gz"])
def test_lines_of_a_published_layout_are_seen_by_their_keys(name, shared_data):
    found = survey(str(shared_data / name))
    assert (found.format, found.task) == (name.partition("/")[0], "passage_qa")
    check_fields(found, found.task)
    assert len(found.documents(found.task)[0]) > 100


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


def test_conll_is_seen_by_its_tags(tmp_path):
    path = tmp_path / "d.txt"
    path.write_text("-DOCSTART- O\n\nIt O\nis O\nRome B-LOC\n\nYes O\n", "utf-8")
    assert survey(str(path)).format == "conll"
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


def needs(key):
    """Skips where the data section has no such key."""
    missing = key not in DataSection.model_fields
    return pytest.mark.skipif(missing, reason=f"data has no key {key}")


@needs("label_separator")
@pytest.mark.parametrize("mark", "|;")
def test_several_labels_in_a_cell_are_parted(mark, tmp_path):
    table = tmp_path / "a.tsv"
    cells = ["a", mark.join("ab"), mark.join("bc"), ""] * 3
    table.write_text("text\tlabel\n" + "".join(f"{TEXT}\t{cell}\n" for cell in cells))
    found = survey(str(table)).labels
    assert (found.data, found.counts) == ({"label_separator": mark}, {"a": 6, "b": 6, "c": 3})


@needs("encoding")
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
    assert found.documents("triviaqa") == [f"{TEXT.strip()} who?", "who?", "who?"]


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
