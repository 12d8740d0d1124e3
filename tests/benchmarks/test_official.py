"""The script that measures published benchmarks in small: its data, TF-IDF, hits and tables."""

import gzip
import json

import pytest

CLAUSES = ["Alpha keeps all secrets.", "Beta may copy drafts.", "Copies of drafts are burnt."]


@pytest.fixture
def official(script):
    return script("official")


def contract(id, choices, lead=""):
    """A contract of three spans, two hypotheses with these choices; evidence is the second span."""
    text, spans = lead, []
    for clause in CLAUSES:
        spans.append([len(text), len(text) + len(clause)])
        text += f"{clause} "
    notes = {
        key: {"choice": choice, "spans": [] if choice == "NotMentioned" else [1]}
        for key, choice in zip(("nda-1", "nda-2"), choices, strict=True)
    }
    return {"id": id, "text": text, "spans": spans, "annotation_sets": [{"annotations": notes}]}


def contracts(file, *documents):
    hypotheses = {"nda-1": "Drafts may be copied: copy drafts.", "nda-2": "Secrets are kept."}
    labels = {key: {"hypothesis": said} for key, said in hypotheses.items()}
    file.write_text(json.dumps({"documents": list(documents), "labels": labels}), "utf-8")
    return file


def test_words_are_weighed_as_scikit_learn_weighs_them(official):
    text = pytest.importorskip("sklearn.feature_extraction.text")
    learned, asked = (
        CLAUSES * 2 + ["It's a No-Go: 3 x 22, naïve."],
        ["drafts of Beta, beta", "go 22 times"],
    )
    peer = text.TfidfVectorizer()
    known = peer.fit_transform(learned)
    words = official.Words(learned)
    for question in asked:
        expected = (known @ peer.transform([question]).T).toarray()[:, 0]
        assert words.cosines(question, learned) == pytest.approx(expected)


def test_a_sample_has_the_shortest_documents_and_all_else_of_its_file(official, tmp_path):
    source = tmp_path / "dev.json.gz"
    documents = [{"id": n, "text": "x" * n} for n in (30, 10, 20)]
    source.write_bytes(gzip.compress(json.dumps({"documents": documents, "labels": 7}).encode()))
    found = json.loads(official.sample(source, tmp_path / "some.json", 2).read_text())
    assert found == {"documents": [documents[1], documents[2]], "labels": 7}
    source.write_bytes(gzip.compress(json.dumps({str(d["id"]): d for d in documents}).encode()))
    found = json.loads(official.sample(source, tmp_path / "some.json", 1).read_text())
    assert list(found) == ["10"]
    lines = tmp_path / "dev-00.jsonl.gz"
    lines.write_bytes(gzip.compress(b'{"a": 100}\n{"a": -9223372036854775807}\n{"a": 1}\n'))
    found = official.sample(lines, tmp_path / "some.jsonl", 2).read_text()
    assert found == '{"a": 1}\n{"a": 100}\n'


def test_words_answer_in_the_published_layout_without_a_model(official, tmp_path):
    train = contracts(
        tmp_path / "train.json",
        *(
            contract(n, (("Entailment" if n else "Contradiction"), "NotMentioned"))
            for n in range(3)
        ),
    )
    gold = contracts(tmp_path / "dev.json", contract(7, ("Entailment", "Entailment"), "Well. "))
    (found,) = official.by_words(official.claims(train), official.claims(gold))
    assert found["id"] == 7
    first, second = (found["annotation_sets"][0]["annotations"][k] for k in ("nda-1", "nda-2"))
    assert first["class_probs"] == pytest.approx(
        {"NotMentioned": 0, "Entailment": 2 / 3, "Contradiction": 1 / 3}
    )
    assert second["class_probs"]["NotMentioned"] == 1
    assert first["span_probs"].index(max(first["span_probs"])) == 1
    assert second["span_probs"].index(max(second["span_probs"])) == 0
    pred = tmp_path / "pred.json"
    pred.write_text(json.dumps([found]))
    figures = official.figures(tmp_path, "contractnli", gold, pred)
    # nda-1: right, evidence first of 3; nda-2: wrong, evidence no higher than the third.
    assert figures["class.accuracy"] == 50
    assert 50 < figures["span.map"] < 75


def paper(file, number):
    paragraphs = ["Beta copies drafts.", "Alpha keeps secrets.", ""]
    answer = {"unanswerable": False, "yes_no": None, "free_form_answer": ""}
    answers = [
        {"answer": answer | {"extractive_spans": ["drafts"], "evidence": [text]}}
        for text in (paragraphs[0], "FLOAT SELECTED: Table 1")
    ]
    asked = {"question": "What copies Beta?", "question_id": f"q{number}", "answers": answers}
    section = {"section_name": None, "paragraphs": paragraphs}
    value = {"title": "", "abstract": "", "full_text": [section], "qas": [asked]}
    file.write_text(json.dumps({str(number): value}), "utf-8")
    return file


def test_hits_are_counted_of_spans_of_paragraphs_and_behind_the_hypothesis(
    official, tmp_path, monkeypatch
):
    gold = contracts(tmp_path / "dev.json", contract(7, ("Entailment", "NotMentioned")))
    files = {"contractnli": gold, "qasper": paper(tmp_path / "paper.json", 3)}
    (asked, _) = official.claims(gold)
    shift = len(asked.fields["hypothesis"]) + 2
    assert official.joined(asked)[shift:] == asked.fields["text"]
    start, end = asked.fields["spans"][1]
    named = [{"start": 0, "end": shift}, {"start": start + shift, "end": end + shift}]
    made = {
        "contractnli": {"id": asked.id, "span_probs": [0.9, 0.8, 0.1]},
        "qasper": {"id": "q3", "paragraph_probs": [0.3, 0.2, 0.1]},
        "claims": {"id": asked.id, "passages": named},
    }
    for name, line in made.items():
        (tmp_path / name).write_text(json.dumps(line) + "\n")
    monkeypatch.setattr(official, "samples", lambda _, name, args: (files[name], files[name]))
    monkeypatch.setattr(official, "reader", lambda _, name, *args: name)
    monkeypatch.setattr(official, "answers", lambda _, name, *args: tmp_path / name)
    monkeypatch.setattr(official, "classified", lambda *args: tmp_path / "claims")
    found = official.hits(tmp_path, None, 0)
    assert found["ContractNLI, evidence head"] == {"hit@1": 0, "hit@3": 100}
    assert found["ContractNLI, classification, --passages"] == {"hit@1": 0, "hit@3": 100}
    assert found["ContractNLI, TF-IDF"] == {"hit@1": 100, "hit@3": 100}
    assert found["ContractNLI, by chance"] == pytest.approx({"hit@1": 100 / 3, "hit@3": 100})
    assert found["QASPER, evidence head"] == {"hit@1": 100, "hit@3": 100}
    assert found["QASPER, TF-IDF"] == {"hit@1": 100, "hit@3": 100}
    assert found["QASPER, by chance"] == pytest.approx({"hit@1": 100 / 3, "hit@3": 100})


def test_words_alone_read_all_documents_once(official, tmp_path, monkeypatch, capsys):
    data, papers = tmp_path / "contractnli", tmp_path / "qasper"
    data.mkdir()
    papers.mkdir()
    for name in ("train", "dev"):
        text = paper(tmp_path / "paper.json", 3).read_bytes()
        (papers / f"evidence_only.{name}.json.gz").write_bytes(gzip.compress(text))
    for name, count in (("train_truncated.json.gz", 3), ("dev.json.gz", 2)):
        documents = [contract(n, ("Entailment", "NotMentioned")) for n in range(count)]
        text = contracts(tmp_path / "all.json", *documents).read_bytes()
        (data / name).write_bytes(gzip.compress(text))
    monkeypatch.setenv("LDT_TEST_DATA", str(tmp_path))
    found = tmp_path / "official.json"
    asked = ["words", "--documents", "1", "--json", str(found)]
    official.main([str(tmp_path / "made"), *asked])
    (written,) = json.loads(found.read_text())["words"]["seeds"]
    assert written["ContractNLI, TF-IDF"]["class.accuracy"] == 100
    assert written["ContractNLI, TF-IDF"]["hit@1"] == 100
    assert written["ContractNLI, by chance"]["hit@1"] == pytest.approx(100 / 3)
    assert written["QASPER, TF-IDF"] == {"hit@1": 100, "hit@3": 100}
    gold = json.loads((tmp_path / "made" / "contractnli.eval-all.json").read_text())
    assert len(gold["documents"]) == 2
    assert "no steps, all documents" in capsys.readouterr().out


def test_an_experiment_keeps_the_others_and_the_table_has_the_spread_of_seeds(
    official, tmp_path, monkeypatch, capsys
):
    made = [{"512 tokens": {"aupr": x, "prec_at_80_recall": 0.0}} for x in (1.0, 4.0)]
    monkeypatch.setitem(official.EXPERIMENTS, "cuad", lambda folder, args, seed: made[seed])
    monkeypatch.setenv("LDT_TEST_DATA", str(tmp_path))
    found = tmp_path / "official.json"
    before = {"nq": {"size": {"steps": 3, "documents": 2}, "seeds": [{"whole page": {}}]}}
    for row in before["nq"]["seeds"][0].values():
        row |= dict.fromkeys(official.FIGURES["nq"], 7.0)
    found.write_text(json.dumps(before))
    official.main([str(tmp_path / "made"), "cuad", "--json", str(found), "--steps", "5"])
    written = json.loads(found.read_text())
    assert written["nq"] == before["nq"]
    assert written["cuad"]["seeds"] == made
    assert written["cuad"]["size"]["steps"] == 5
    shown = capsys.readouterr().out
    assert "2.5 (1.0 to 4.0)" in shown
    assert "7.0 (7.0 to 7.0)" in shown


@pytest.mark.parametrize("data", [None, "x"])
def test_what_is_asked_wrongly_is_told(official, data, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("LDT_TEST_DATA", raising=False)
    if data:
        monkeypatch.setenv("LDT_TEST_DATA", data)
    with pytest.raises(SystemExit):
        official.main([str(tmp_path), "cuat" if data else "cuad"])
    expected = "no experiment cuat, there are cuad" if data else "LDT_TEST_DATA is not set"
    assert expected in capsys.readouterr().err
