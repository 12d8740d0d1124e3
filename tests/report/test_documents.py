"""Documents of a report: what a person reads of each, its scores, and its marks."""

import json
from pathlib import Path

import pytest
from passages_made import nq, right_answers, tydi, write

from ldt.benchmarks import nq as nq_layout
from ldt.benchmarks import tydiqa as tydiqa_layout
from ldt.benchmarks.formats import read
from ldt.data.options import DataSection
from ldt.errors import DataError, UserError
from ldt.inference.answer_file import layout_of
from ldt.metrics.numbers import metric_text
from ldt.report.documents import gather
from ldt.report.model import ANSWER, GOLD, PASSAGE, Document, Mark

TEXT = "One 😀 cap.\r\nThe fee is é́20 😀 per day.\r\n"  # a combining mark, CR LF, astral letters


def place(words, text=TEXT, start=0):
    start = text.index(words, start)
    return {"start": start, "end": start + len(words)}


def mark(words, kind, label, score=None, text=TEXT):
    return Mark(*place(words, text).values(), kind, label, score)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write gold (lines or a value) and answers, which get windows; gather them."""
    monkeypatch.chdir(tmp_path)

    def files(gold, answers, **options):
        if isinstance(gold, list) and options.pop("lines", True):
            write(tmp_path / "gold", *gold)
        elif gold is not None:
            (tmp_path / "gold").write_text(gold if isinstance(gold, str) else json.dumps(gold))
        write(tmp_path / "pred", *({"chunks": 1} | answer for answer in answers))
        options.setdefault("gold", None if gold is None else "gold")
        return gather("pred", **options)

    return files


def scored(label, a, **more):
    return {"label": label, "scores": {"a": a, "b": 1 - a}} | more


def test_classes_have_what_a_reader_wants_to_know(files):
    gold = [{"id": n, "text": TEXT, "label": "aab"[n]} for n in range(3)]
    passage = place("fee") | {"text": "fee", "score": 7.5}
    answers = [
        scored("a", 0.75, id=0, passages=[passage]),
        scored("b", 0.25, id=2, truncated=True, unread_tokens=1200),
        scored(None, 0.6, id=1, abstained=True, why="confidence 0.6"),
    ]
    result, documents = files(gold, answers, format="classification")
    assert result.metrics["accuracy"] == pytest.approx(200 / 3)
    assert [each.id for each in documents] == ["0", "1", "2"]
    assert documents[0] == Document(
        "0",
        "gold:1",
        text=TEXT,
        gold="a",
        answer="a",
        right=True,
        scores={"accuracy": 1.0},
        confidence=0.75,
        words=10,
        marks=[mark("fee", PASSAGE, "passage")],
        doubt=None,
        notes=[],
    )
    assert (documents[1].verdict, documents[1].confidence) == ("no answer", 0.6)
    assert documents[1].notes == ["no answer was given: confidence 0.6"]
    assert documents[2].notes == ["not read to its end, 1,200 tokens left out"]


def test_several_classes_none_and_numbers(files):
    gold = [{"text": "x", "label": ["a", "b"]}, {"text": "y", "label": []}]
    answers = [
        {"id": 1, "label": ["b", "a"], "scores": {"a": 0.75, "b": 0.875, "c": 0.375}},
        {"id": 2, "label": ["a"], "scores": {"a": 0.5, "b": 0.25, "c": 0.25}},
    ]
    _, (first, second) = files(gold, answers, format="classification")
    assert (first.gold, first.answer) == ("a, b", "b, a")
    assert (first.right, first.confidence) == (True, 0.625)
    assert (second.gold, second.answer, second.right) == ("no class", "a", False)
    assert second.scores == {"exact_match": 0, "f1": 0}  # and of a part of the labels a part
    gold = [{"text": "x", "label": 0.5}, {"text": "y", "label": 2.25}]
    answers = [{"id": n, "label": 1.5, "scores": {"label": 1.5}} for n in (1, 2)]
    _, (first, second) = files(gold, answers, format="regression")
    assert (second.gold, second.answer, second.right, second.scores) == ("2.25", "1.5", None, {})
    assert second.confidence is None


def test_without_gold_documents_are_in_the_order_of_the_answers_with_the_texts_there_are(files):
    answers = [scored("a", 0.75, id="p"), scored("b", 0.5, id="q", text=TEXT)]
    result, documents = files(None, answers)
    assert result is None
    assert [(each.id, each.text, each.right) for each in documents] == [
        ("p", None, None),
        ("q", TEXT, None),
    ]
    write(Path("texts"), {"id": "q", "text": "of q"}, {"id": "p", "text": "of p"})
    _, documents = files(None, answers[:1], documents="texts")
    assert (documents[0].text, documents[0].where) == ("of p", "texts:2")
    with pytest.raises(DataError, match=r"pred:1: no document 'z' in texts; data.id names"):
        files(None, [scored("a", 0.75, id="z")], documents="texts")


def test_entities_are_marked_in_texts_and_in_words(files):
    fee, cap = place("fee"), place("cap")
    gold = [{"id": 1, "text": TEXT, "entities": [fee | {"label": "F"}, cap | {"label": "C"}]}]
    found = fee | {"label": "F", "text": "fee", "score": 0.75}
    _, (document,) = files(gold, [{"id": 1, "entities": [found]}], format="token_classification")
    assert document.marks == [
        mark("cap", GOLD, "C"),
        mark("fee", ANSWER, "F", 0.75),
        mark("fee", GOLD, "F"),
    ]
    assert (document.gold, document.answer) == ("C: cap; F: fee", "F: fee")
    assert document.scores == {"precision": 1, "recall": 0.5, "f1": pytest.approx(2 / 3)}
    assert (document.right, document.confidence) == (False, 0.75)

    gold = [{"tokens": [["Ann", "😀", "met"], ["Bob"]], "tags": [["B-P", "I-P", "O"], ["B-P"]]}]
    answer = {"id": 1, "tags": [["B-P", "I-P", "O"], ["O"]]}
    answer["entities"] = [{"start": 0, "end": 2, "label": "P", "text": "Ann 😀", "score": 0.5}]
    _, (document,) = files(gold, [answer], format="token_classification")
    assert document.text == "Ann 😀 met\nBob"
    assert document.marks == [
        mark("Ann 😀", ANSWER, "P", 0.5, document.text),
        mark("Ann 😀", GOLD, "P", text=document.text),
        mark("Bob", GOLD, "P", text=document.text),
    ]


def squad(*answers):
    qas = [
        {"id": str(n), "question": f"{n}?", "answers": listed} for n, listed in enumerate(answers)
    ]
    return {"data": [{"title": "t", "paragraphs": [{"context": TEXT, "qas": qas}]}]}


def test_spans_are_marked_and_an_empty_answer_is_called_so(files):
    gold = squad([{"text": "fee", "answer_start": place("fee")["start"]}], [])
    span = place("The fee") | {"answer": "The fee", "score": 3.5, "no_answer": 0.25}
    answers = [span | {"id": "0"}, span | {"id": "1", "answer": "", "no_answer": 0.75}]
    result, (first, second) = files(gold, answers, format="squad2")
    assert result.metrics["exact"] == 100  # articles do not count
    assert first.asks == {"question": "0?"}
    assert (first.gold, first.answer, first.right) == ("fee", "The fee", True)
    assert first.marks == [mark("The fee", ANSWER, "answer"), mark("fee", GOLD, "answer")]
    assert (first.confidence, second.confidence) == (0.75, 0.75)
    assert (second.gold, second.answer, second.right) == ("no answer", "no answer", True)
    assert second.marks == []
    assert first.scores == {item.id: item.scores for item in result.items}["0"]


def test_lines_of_a_training_are_scored_by_the_rules_of_their_task(files):
    gold = [{"id": 7, "question": "?", "context": TEXT, "answers": ["fee"]}]
    Path("recipe.yaml").write_text(
        "task: {name: squad}\nmodel: {path: x}\ndata: {train: x.jsonl}\n"
    )
    answer = place("fee is") | {"id": 7, "answer": "fee is", "score": 1.5}
    result, (document,) = files(gold, [answer], recipe="recipe.yaml")
    assert result.metrics == pytest.approx({"exact_match": 0, "f1": 200 / 3})
    assert document.scores["f1"] == pytest.approx(2 / 3)
    assert document.marks == [mark("fee", GOLD, "answer"), mark("fee is", ANSWER, "answer")]
    result, _ = files(gold, [answer, answer | {"id": "z"}], recipe="recipe.yaml")
    line = "pred: 1 question predicted but not in the gold file, left out: 'z'"
    assert line in result.warnings
    with pytest.raises(DataError, match="pred: no id of it is in gold: 'z'; there '7'"):
        files(gold, [answer | {"id": "z"}], recipe="recipe.yaml")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"end": 400}, "pred:1: answer from 0 to 400: no words there; the text has"),
        ({"answer": "cap"}, "pred:1: answer from 0 to 3 is 'cap', where the text has 'One'"),
    ],
)
def test_a_mark_that_does_not_fit_is_an_error(files, change, line):
    answer = {"id": "0", "answer": "One", "start": 0, "end": 3} | change
    with pytest.raises(DataError) as error:
        files(squad([{"text": "cap", "answer_start": 6}]), [answer], format="squad")
    assert line in str(error.value)


def test_pages_of_their_own_are_read_and_every_mention_of_a_name_is_marked(files, tmp_path):
    (tmp_path / "evidence" / "wikipedia").mkdir(parents=True)
    with open(tmp_path / "evidence" / "wikipedia" / "a.txt", "w", newline="") as file:
        file.write(TEXT + TEXT)
    question = {
        "QuestionId": "q",
        "Question": "What?",
        "Answer": {"NormalizedAliases": ["cap"]},
        "EntityPages": [{"Filename": "a.txt"}],
    }
    answer = place("fee") | {"id": "q--a.txt", "question_id": "q", "answer": "fee", "score": 1.5}
    gold = {"Domain": "Wikipedia", "Data": [question]}
    result, (document,) = files(gold, [answer], format="triviaqa")
    assert result.metrics["exact_match"] == 0
    assert (document.text, document.right, document.gold) == (TEXT + TEXT, False, "cap")
    starts = [each.start for each in document.marks if each.kind == GOLD]
    assert starts == [TEXT.index("cap"), len(TEXT) + TEXT.index("cap")]


def test_candidates_and_choices_stand_beside_the_text(files):
    supports = ["One 😀.", "Two."]
    gold = [{"id": "w", "query": "of x", "candidates": ["p", "q"], "supports": supports}]
    gold[0]["answer"] = "q"
    two = place("Two.", "\n".join(supports)) | {"text": "Two."}
    answer = {"id": "w", "answer": "q", "score": 0.75, "passages": [two]}
    _, (document,) = files(gold, [answer], format="wikihop", lines=False)
    assert document.asks == {"query": "of x", "candidates": "p\nq"}
    assert document.text == "One 😀.\nTwo."
    assert (document.gold, document.right, document.confidence) == ("q", True, 0.75)
    assert document.marks == [mark("Two.", PASSAGE, "passage", text=document.text)]

    gold = [{"question": "Who?", "choices": ["x", "y"], "context": TEXT, "label": 1}]
    for answer in ({"answer": "y"}, {"choice": 1, "answer": "y", "scores": [0.25, 0.75]}):
        _, (document,) = files(gold, [answer | {"id": 1}], format="multiple_choice")
        assert (document.gold, document.answer, document.right) == ("y", "y", True)
        assert document.asks == {"question": "Who?", "choices": "x\ny"}
    assert document.confidence == 0.75


def test_facts_are_sentences_under_their_titles(files):
    context = [["T 😀", ["One.", " Two is far."]], ["U", ["Three."]]]
    gold = [{"_id": "h", "question": "?", "context": context, "answer": "far"}]
    gold[0]["supporting_facts"] = [["T 😀", 1], ["gone", 5]]
    answer = {"id": "h", "answer": "far", "type": "span", "score": 0.5, "title": "T 😀"}
    answer |= {"sentence": 1, "supporting_facts": [["U", 0]]} | place("far", " Two is far.")
    _, (document,) = files(gold, [answer], format="hotpotqa", lines=False)
    text = document.text
    assert text == "T 😀\nOne. Two is far.\n\nU\nThree.\n\n"
    assert document.marks == [
        mark("Two is far.", GOLD, "evidence", text=text),
        mark("far", ANSWER, "answer", text=text),
        mark("Three.", ANSWER, "evidence", text=text),
    ]
    assert (document.right, document.scores["sp_f1"], document.confidence) == (True, 0, 0.5)
    with pytest.raises(DataError, match="pred:1: no such sentence"):
        files(gold, [answer | {"sentence": 2}], format="hotpotqa", lines=False)


def test_evidence_and_its_hypothesis(files):
    spans = [[*place(words).values()] for words in ("One 😀 cap.", "The fee is é́20 😀 per day.")]
    annotations = {"x": {"choice": "Entailment", "spans": [1]}}
    gold = {
        "documents": [
            {"id": 5, "text": TEXT, "spans": spans}
            | {"annotation_sets": [{"annotations": annotations}]}
        ],
        "labels": {"x": {"hypothesis": "It is.", "short_description": "x"}},
    }
    scores = {"NotMentioned": 0.125, "Entailment": 0.25, "Contradiction": 0.625}
    one = place("One 😀 cap.") | {"span": 0, "text": "One 😀 cap.", "score": 0.75}
    answer = {"id": "5/x", "document": 5, "key": "x", "label": "Contradiction", "scores": scores}
    answer |= {"span_probs": [0.75, 0.25], "evidence": [one]}
    result, (document,) = files(gold, [answer], format="contractnli")
    assert result.metrics["class.accuracy"] == 0
    assert document.asks == {"hypothesis": "It is."}
    assert (document.gold, document.answer, document.right) == (
        "Entailment",
        "Contradiction",
        False,
    )
    assert document.confidence == 0.625
    assert document.marks == [
        mark("One 😀 cap.", ANSWER, "evidence", 0.75),
        mark("The fee is é́20 😀 per day.", GOLD, "evidence"),
    ]


def test_papers_have_paragraphs_as_evidence(files):
    said = {"unanswerable": False, "extractive_spans": ["two 😀"], "yes_no": None}
    said |= {"free_form_answer": "", "evidence": ["It is two 😀."]}
    paper = {
        "title": "T",
        "abstract": "A",
        "full_text": [{"section_name": "S", "paragraphs": ["It is one.", "It is two 😀."]}],
        "qas": [{"question": "What?", "question_id": "q", "answers": [{"answer": said}]}],
    }
    answer = {"id": "q", "answer": "two 😀", "type": "span", "evidence": ["It is one."]}
    answer |= {"paragraphs": [0], "paragraph_probs": [0.75, 0.25], "score": 2.5}
    result, documents = files({"p": paper}, [answer], format="qasper")
    (document,) = documents
    text = document.text
    assert document.marks == [
        mark("It is one.", ANSWER, "evidence", text=text),
        mark("It is two 😀.", GOLD, "evidence", text=text),
        mark("two 😀", GOLD, "answer", text=text),
    ]
    assert (document.gold, document.right, document.asks) == ("two 😀", True, {"question": "What?"})
    assert document.scores == {"Answer F1": 1.0, "Evidence F1": 0.0}
    assert result.metrics["Answer F1"] == 100


def test_summaries_have_rouge(files):
    gold = [{"id": "s", "text": TEXT, "summary": "The fee is 20."}]
    answer = {"id": "s", "summary": "The fee.", "summary_tokens": 3, "unfinished": True}
    result, (document,) = files(gold, [answer], format="summarization")
    assert (document.gold, document.answer, document.right) == ("The fee is 20.", "The fee.", None)
    assert document.scores.keys() == {"rouge1", "rouge2", "rougeL", "rougeLsum"}
    assert 100 * document.scores["rouge1"] == result.metrics["rouge1"]
    assert document.notes == ["the summary has no end"]


def test_clusters_are_marked_by_their_first_mention(files):
    text = "Ann saw Bo. She left."
    spans = [[[0, 3], [12, 15]], [[8, 10]]]
    clusters = [[{"start": a, "end": b, "text": text[a:b]} for a, b in each] for each in spans]
    gold = [{"id": "a", "text": text, "clusters": spans}]
    result, (document,) = files(gold, [{"id": "a", "clusters": clusters}], format="coreference")
    assert document.scores == {"conll_f1": pytest.approx(result.metrics["conll_f1"] / 100)}
    assert metric_text("conll_f1", result.metrics["conll_f1"]) == "100.00"
    assert [mark.start for mark in document.marks if mark.kind == ANSWER] == [0, 8, 12]


@pytest.mark.parametrize("format", ["nq", "tydiqa"])
def test_pages_have_passages_and_spans(format, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if format == "nq":
        tokens = "<P> a 😀 b </P> <P> c d e </P>".split()
        questions = [[(1, (6, 8))] * 5, [(1, (6, 8)), *[()] * 4]]
        lines = [nq(n, tokens, [(0, 5), (5, 10)], each) for n, each in enumerate(questions)]
    else:
        each = [(1, (22, 26), "NONE")] * 3, [(1, (22, 26), "NONE"), *[(None, None, "NONE")] * 2]
        lines = [tydi(n, "é😀 x\r\n" * 4, [(0, 20), (20, 40)], some) for n, some in enumerate(each)]
    gold = write(tmp_path / "gold", *lines)
    layout = nq_layout if format == "nq" else tydiqa_layout
    answers = right_answers(gold, format, layout)
    fields = next(read(gold, DataSection(format=format))).fields
    context, (start, end) = fields["context"], fields["annotations"][0]["spans"][0]
    found = [
        {"passage": 1, "best_passage": 1, "answer": context[start:end], "start": start, "end": end},
        {"passage": None, "best_passage": 0, "answer": "", "start": None, "end": None},
    ]
    best = [
        {"chunks": 1} | {f"best_{side}": each[side] for side in ("start", "end")} for each in found
    ]
    answers = [a | f | b for a, f, b in zip(answers, found, best, strict=True)]
    write(tmp_path / "pred", *answers)
    result, (first, second) = gather("pred", gold="gold", format=format)
    assert result.title == format
    assert first.text == context
    assert first.asks == {"question": "what is it"}
    assert (first.gold, first.answer) == (context[start:end], context[start:end])
    assert first.scores == {"passage": 1, "answer": 1}
    assert second.scores == {"passage": 1, "answer": 1}
    assert (first.right, second.right, second.answer) == (True, True, "no answer")
    assert second.gold == f"no answer: too few annotators have one ({context[start:end]})"
    assert {(each.kind, each.label) for each in first.marks} == {
        (kind, label) for kind in (GOLD, ANSWER) for label in ("answer", "evidence")
    }
    assert {(m.start, m.end) for m in first.marks if m.label == "answer"} == {(start, end)}
    assert second.marks == []
    answers[0] |= {"passage": None, "answer": ""}  # below the thresholds, though the best are right
    write(tmp_path / "pred", *answers)
    assert gather("pred", gold="gold", format=format)[1][0].scores == {"passage": 0, "answer": 0}


def test_the_doubtful_label_is_the_one_that_was_planted(files):
    right = ["a", "b"] * 20
    gold = [{"text": "x", "label": label} for label in right]
    gold[7]["label"] = "a"
    answers = [
        scored(label, (0.75 if label == "a" else 0.25) + n / 400, id=n + 1)
        for n, label in enumerate(right)
    ]
    _, documents = files(gold, answers, format="classification")
    assert [n for n, each in enumerate(documents) if each.doubt is not None] == [7]
    a = 0.25 + 7 / 400
    assert documents[7].doubt == pytest.approx((1 + (1 - a) - a) / 2)
    gold[3]["label"] = "c"  # of which the model knows nothing
    assert files(gold, answers, format="classification")[1][3].doubt is None
    logits = [answer | {"scores": {"a": 3.0, "b": -3.0}} for answer in answers]
    assert {each.doubt for each in files(gold, logits, format="classification")[1]} == {None}


def test_what_cannot_be_read_is_said(files):
    with pytest.raises(UserError, match="--gold: --format or --recipe says how it is read"):
        files([{"label": "a"}], [scored("a", 0.5, id=1)])
    with pytest.raises(UserError, match="--format lexglue: no report of it"):
        files([{"label": "a"}], [scored("a", 0.5, id=1)], format="lexglue")
    with pytest.raises(DataError, match="pred:1: no answer of a known task among"):
        files(None, [{"id": 1, "x": 1}])
    with pytest.raises(DataError, match="pred:2: the id '1' stands twice|pred: the id '1' stands"):
        files(None, [scored("a", 0.5, id=1)] * 2)
    with pytest.raises(UserError, match="a report reads its files twice; save standard input"):
        gather("-")


@pytest.mark.parametrize("name", ["pred.csv", "pred.tsv", "pred.parquet"])
def test_a_table_of_answers_is_read_as_its_lines(files, tmp_path, name):
    gold = [{"id": n, "text": TEXT, "label": "aab"[n]} for n in range(2)]
    passages = [place("fee") | {"text": "fee", "score": 7.5}]
    silent = scored(None, 0.6, id="1", abstained=True, why="confidence 0.6")
    answers = [scored("a", 0.75, id="0", passages=passages, truncated=True), silent]
    lines = files(gold, answers, format="classification")
    layout_of(Path(name), None)(tmp_path / "pred", tmp_path / name)
    table = gather(name, gold="gold", format="classification")
    assert (table[0].metrics, table[1]) == (lines[0].metrics, lines[1])
