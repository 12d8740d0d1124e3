"""Answers for label tools, and back."""

import json
import os
import xml.etree.ElementTree as ET

import pytest
from typed import typed

from ldt import cli
from ldt.benchmarks.formats import read
from ldt.data.options import DataSection

# Emoji, joined ones, CR LF, a mark, a letter above U+FFFF, what XML and JSON escape.
TEXT = '😀 Acme\r\nInc. & <b> sells 👨‍👩‍👧\u200d👦 toys\u2028to Cafe\u0301 𝐀 "Ltd".\n'
PLAIN = "Bob met Ann."


def span(text, words, label, **more):
    start = text.index(words)
    place = {"start": start, "end": start + len(words), "text": words}
    return place | {"label": label, "score": 0.5} | more


ENTITIES = [
    span(TEXT, "Acme\r\nInc.", "ORG"),
    span(TEXT, "👨‍👩‍👧\u200d👦", "FAM", score=0.25),
    span(TEXT, "Cafe\u0301", "ORG"),
    span(TEXT, "𝐀", "ORG"),
]
DOCUMENTS = [{"id": "a", "text": TEXT}, {"id": 7, "text": PLAIN}, {"id": "no answer", "text": "x"}]
TOKENS = [{"id": "a", "entities": ENTITIES, "chunks": 1}, {"id": 7, "entities": []}]
SCORES = {"cap": 0.75, "audit": 0.25}
SINGLE = [{"id": "a", "label": "cap", "scores": SCORES}, {"id": 7, "label": None, "scores": SCORES}]
MULTI = [
    {"id": "a", "label": ["cap", "audit"], "scores": SCORES},
    {"id": 7, "label": [], "scores": SCORES},
]
PASSAGES = [
    SINGLE[0] | {"passages": [span(TEXT, "sells 👨", "cap"), span(TEXT, "sells", "cap")]},
    {"id": 7, "label": "audit", "scores": SCORES, "passages": []},
]
QUESTIONS = [
    {"id": "a", "answer": "Cafe\u0301", "score": 3.5, **span(TEXT, "Cafe\u0301", None)},
    {"id": 7, "answer": "", "score": -1.0, "start": 0, "end": 3},
]
for _answer in QUESTIONS:
    _answer.pop("label", None), _answer.pop("text", None)


@pytest.fixture
def export(tmp_path, monkeypatch, capsys):
    """Runs `ldt labels export` in an empty folder with documents: (exit code, messages)."""
    monkeypatch.chdir(tmp_path)
    write("docs.jsonl", DOCUMENTS)

    def run(answers, tool, *options, documents="docs.jsonl", output="out.json"):
        write("answers.jsonl", answers)
        given = ["--documents", documents] if documents else []
        command = ["labels", "export", "answers.jsonl", "--to", tool, "--output", output]
        code, _, err = typed(capsys, *command, *given, *options)
        return code, err

    return run


def write(file, records):
    text = "".join(json.dumps(record) + "\n" for record in records)
    with open(file, "w", encoding="utf-8") as stream:
        stream.write(text)


def lines(file="out.json"):
    with open(file, encoding="utf-8", newline="\n") as stream:
        return [json.loads(line) for line in stream]


def value(file="out.json"):
    with open(file, encoding="utf-8") as stream:
        return json.load(stream)


def accept():
    """Turn Label Studio's tasks into its export, as if every prediction were submitted as it is."""
    tasks = [
        {
            "id": number,
            "data": task["data"],
            "annotations": [{"id": number, "result": task["predictions"][0]["result"]}],
        }
        for number, task in enumerate(value(), 1)
    ]
    with open("export.json", "w", encoding="utf-8") as stream:
        json.dump(tasks, stream)  # all but ASCII escaped, emoji as their two halves
    return list(read("export.json", DataSection.model_validate({"format": "label-studio"})))


def of_doccano():
    return list(read("out.json", DataSection.model_validate({"format": "doccano"})))


@pytest.mark.parametrize("folder", [".", "texts"])
def test_texts_of_a_table_are_in_the_files_that_it_names(export, tmp_path, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    for name, words in (("a.txt", TEXT), ("b.txt", PLAIN)):
        (tmp_path / folder / name).write_text(words, encoding="utf-8", newline="")
    (tmp_path / "docs.csv").write_text("id,file\na,a.txt\n7,b.txt\n")
    options = ["data.text_files=file", *([f"data.evidence={folder}"] if folder != "." else [])]
    assert export(TOKENS, "label-studio", *options, documents="docs.csv")[0] == 0
    assert [task["data"]["text"] for task in value()] == [TEXT, PLAIN]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["data.evidence=."], "data.evidence=.: not read, records name no files"),
        (["data.format=squad", "data.id=no"], "data.id=no: not read, squad says which ids"),
        (["data.text_files=no"], "docs.jsonl:1: no field 'no'"),
    ],
)
def test_keys_that_nothing_is_read_by_are_refused(export, keys, message):
    code, said = export(TOKENS, "doccano", *keys)
    assert code in (2, 3, 4)
    assert message in said
    assert not os.path.exists("out.json")


@pytest.mark.parametrize(("tool", "back"), [("label-studio", accept), ("doccano", of_doccano)])
def test_what_is_accepted_unchanged_comes_back_as_it_was(export, tool, back):
    assert export(TOKENS, tool)[0] == 0
    wanted = [{key: each[key] for key in ("start", "end", "label", "text")} for each in ENTITIES]
    assert [each.fields["entities"] for each in back()] == [wanted, []]
    assert [each.fields["text"] for each in back()] == [TEXT, PLAIN]
    assert [each.id for each in back()] == ["a", 7]

    for answers, labels in ((SINGLE, ["cap", None]), (MULTI, [["cap", "audit"], []])):
        assert export(answers, tool, "--overwrite")[0] == 0
        assert [each.fields["label"] for each in back()] == labels

    assert export(PASSAGES, tool, "--overwrite")[0] == 0
    first, second = back()
    assert [each.fields["label"] for each in (first, second)] == ["cap", "audit"]
    assert [each["text"] for each in first.fields["entities"]] == ["sells", "sells 👨"]

    write("docs.jsonl", [each | {"question": "Who?"} for each in DOCUMENTS])
    assert export(QUESTIONS, tool, "--overwrite")[0] == 0
    answer = {"text": "Cafe\u0301", "answer_start": TEXT.index("Cafe")}
    assert [each.fields["answers"] for each in back()] == [[answer], []]
    assert back()[0].fields["question"] == "Who?"


def test_clusters_are_relations_of_label_studio_and_back(export):
    places = [(0, 1), (2, 6), (8, 12), (13, 14), (15, 18), (19, 24)]
    parts = [[places[0], places[2], places[5]], [places[1]], [places[3], places[4]]]
    mentions = [
        [{"start": a, "end": b, "text": TEXT[a:b], "score": 0.5} for a, b in part] for part in parts
    ]
    answers = [{"id": "a", "clusters": mentions}, {"id": 7, "clusters": []}]
    assert export(answers, "label-studio")[0] == 0
    results = value()[0]["predictions"][0]["result"]
    relations = [each for each in results if each["type"] == "relation"]
    ends = [(each["from_id"], each["to_id"]) for each in relations]
    assert ends == [("span-3", "span-1"), ("span-6", "span-3"), ("span-5", "span-4")]
    first, second = accept()
    assert first.fields["clusters"] == [[[a, b] for a, b in part] for part in parts]
    assert second.fields["clusters"] == []
    words = {"id": 3, "sentences": [["Ann", "left"], ["She"]], "clusters": [[[0, 0]]]}
    write("words.jsonl", [words])
    answer = {"id": 3, "clusters": [[{"start": 0, "end": 3}, {"start": 9, "end": 12}]]}
    assert export([answer], "label-studio", "--overwrite", documents="words.jsonl")[0] == 0
    assert accept()[0].fields["text"] == "Ann left\nShe"


def test_label_studio_gets_tasks_and_its_interface(export):
    code, said = export(PASSAGES, "label-studio", "--labels", 'cap,"a" & <b>')
    assert (code, said) == (0, "out.json: written\nout.xml: written\n")
    task = value()[0]
    assert task["data"] == {"id": "a", "text": TEXT}
    (prediction,) = task["predictions"]
    assert prediction["score"] == 0.75
    *spans, choice = prediction["result"]
    start = TEXT.index("sells")  # its editor counts code points
    assert [each["value"]["start"] for each in spans] == [start, start]
    assert [each["value"]["end"] for each in spans] == [start + 5, start + 7]
    assert len({each["id"] for each in prediction["result"]}) == 3

    view = ET.parse("out.xml").getroot()
    names = {each.get("name"): each for each in view if each.get("name")}
    text = names.pop("text")
    assert (text.tag, text.get("value")) == ("Text", "$text")
    assert [each.get("value") for each in names["spans"]] == ["cap", '"a" & <b>']
    assert [each.get("value") for each in names["label"]] == ["cap", "audit"]
    assert names["label"].get("choice") == "single"
    for result in prediction["result"]:  # each control takes what the predictions have
        control = names[result["from_name"]]
        assert control.tag.lower() == result["type"]
        assert control.get("toName") == result["to_name"] == "text"
        offered = {each.get("value") for each in control}
        assert set(result["value"][result["type"]]) <= offered

    assert export(MULTI, "label-studio", "--overwrite")[0] == 0
    assert ET.parse("out.xml").find("Choices").get("choice") == "multiple"


def test_an_interface_shows_questions_and_a_score_is_the_lowest_probability(export):
    write("docs.jsonl", [DOCUMENTS[0] | {"question": "Who?"}, DOCUMENTS[1]])
    assert export(QUESTIONS, "label-studio")[0] == 0
    assert ET.parse("out.xml").find("Header").get("value") == "$question"
    assert [each["data"]["question"] for each in value()] == ["Who?", ""]
    assert "score" not in value()[0]["predictions"][0]  # a logit is no probability
    assert export(TOKENS, "label-studio", "--overwrite")[0] == 0
    assert value()[0]["predictions"][0]["score"] == 0.25


def quoted(text, start, end):
    """What stands between two units of UTF-16."""
    return text.encode("utf-16-le")[2 * start : 2 * end].decode("utf-16-le")


def test_doccano_gets_the_places_of_a_browser(export):
    assert export(TOKENS, "doccano")[0] == 0
    first, second = lines()
    assert [quoted(TEXT, *place) for *place, _ in first["label"]] == [e["text"] for e in ENTITIES]
    assert second == {"id": 7, "text": PLAIN, "label": []}


def test_evidence_is_a_span_beside_its_class(export):
    found = [{**span(TEXT, "sells", "x"), "span": 2}]
    del found[0]["label"]
    answers = [{"id": "a", "label": "cap", "scores": SCORES, "evidence": found}]
    answers[0]["hypothesis"] = "They sell."
    assert export(answers, "label-studio")[0] == 0
    results = value()[0]["predictions"][0]["result"]
    assert results[0]["value"]["labels"] == ["evidence"]
    assert value()[0]["data"]["hypothesis"] == "They sell."


def test_a_text_that_was_kept_needs_no_documents(export):
    answers = [TOKENS[0] | {"text": TEXT}, TOKENS[1] | {"text": PLAIN}]
    assert export(answers, "doccano", documents=None)[0] == 0
    assert [each["text"] for each in lines()] == [TEXT, PLAIN]
    body = [TOKENS[0] | {"body": TEXT}]
    assert export(body, "doccano", "data.text=body", "--overwrite", documents=None)[0] == 0


WRONG = {"start": 2, "end": 6, "label": "X", "text": "Bcme"}


@pytest.mark.parametrize(
    ("answers", "options", "code", "message"),
    [
        (TOKENS, {"documents": None}, 4, "answers.jsonl:1: no field 'text'; --documents FILE nam"),
        ([{"id": "z", "entities": []}], {}, 4, "no document 'z' in docs.jsonl; --documents names"),
        ([], {}, 4, "answers.jsonl: no answers in it"),
        ([{"id": "a", "summary": "s"}], {}, 4, "answers.jsonl:1: no classes and no places in a"),
        ([{"id": "a", "label": 2.5, "scores": {}}], {}, 4, "'label' is 2.5; a number has no class"),
        (
            [{"id": "a", "entities": [], "tags": []}],
            {},
            4,
            "answers.jsonl:1: no classes and no places in a",
        ),
        (
            [{"id": 7, "entities": [{"start": 3, "end": 90, "label": "X"}]}],
            {},
            4,
            "X from 3 to 90: no words there; the text has 12 characters (docs.jsonl:2)",
        ),
        ([{"id": "a", "entities": [WRONG]}], {}, 4, "X from 2 to 6 is 'Bcme', where the text has"),
        ([{"id": "a", "entities": [{"start": 1}]}], {}, 4, "expected an object with start, end"),
        (TOKENS, {"labels": "FAM"}, 2, "--labels: an answer has 'ORG', it has 'FAM'"),
        (TOKENS, {"keys": ["data.format=sqad"]}, 3, "data.format=sqad: expected one of jsonl"),
        (TOKENS, {"keys": ["text=body"]}, 3, "text=body: not read here, did you mean 'data.text'?"),
        (TOKENS, {"output": "answers.jsonl"}, 2, "answers.jsonl exists already; --overwrite"),
        (TOKENS, {"output": "out.xml"}, 2, "--output out.xml: .xml is for label-studio's other"),
    ],
)
def test_what_cannot_be_exported_is_named_in_a_line(export, answers, options, code, message):
    named = {key: options.pop(key) for key in ("documents", "output") if key in options}
    more = options.pop("keys", [])
    more += [word for key, text in options.items() for word in (f"--{key}", text)]
    found, said = export(answers, "label-studio", *more, **named)
    assert found == code
    assert message in said
    assert said.count("\n") == 1


def test_answers_are_not_overwritten_by_their_export(export):
    code, said = export(TOKENS, "doccano", "--overwrite", output="answers.jsonl")
    assert (code, "a file that is read" in said) == (2, True)
    assert lines("answers.jsonl")[1] == TOKENS[1]


def test_documents_may_be_of_another_encoding_and_answers_a_table(export):
    with open("docs.csv", "w", encoding="cp1252") as stream:
        stream.write("id,text\na,Café sells.\n")
    with open("answers.csv", "w", encoding="utf-8") as stream:
        stream.write('id,label,scores.cap,windows\na,"[""cap""]",0.75,1\n')
    command = ["labels", "export", "answers.csv", "--to", "doccano", "--documents", "docs.csv"]
    for encoding, code in (("utf-8", 4), ("cp", 3), ("cp1252", 0)):
        with pytest.raises(SystemExit) as ended:
            cli.main([*command, "--output", "out.json", f"data.encoding={encoding}"])
        assert ended.value.code == code
    assert lines()[0] == {"id": "a", "text": "Café sells.", "label": ["cap"]}
