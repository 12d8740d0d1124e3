import json
import logging
import sys

import numpy as np
import pytest
from typed import typed

from ldt import benchmarks
from ldt.benchmarks import summarization as summaries
from ldt.errors import DataError, UserError
from ldt.metrics import result as results

GOLD = [
    {"id": "a", "text": "The court met in Paris. It rose.", "summary": "The court met."},
    {"id": "b", "article": "Nobody came " * 200, "abstract": "Nobody came.\nNobody spoke."},
    {"id": "c", "document": "One ||||| Two three |||||", "summary": "Two three"},
]
PRED = {"a": "The court met.", "b": "Nobody spoke.\nNobody came.", "c": "Four"}
FIGURES = (
    "numbers_in_source names_in_source novel_1grams novel_2grams novel_3grams novel_4grams "
    "longest_copied_run repeated_4grams summary_words reference_words empty"
).split()


@pytest.fixture
def score(tmp_path, monkeypatch):
    """Score summaries, a text or lines, by gold records."""
    monkeypatch.chdir(tmp_path)

    def score(gold, pred, **options):
        if isinstance(pred, dict):
            pred = [{"id": id, "summary": summary} for id, summary in pred.items()]
        for name, value in (("gold.jsonl", gold), ("pred", pred)):
            if not isinstance(value, str):
                value = "".join(json.dumps(record) + "\n" for record in value)
            (tmp_path / name).write_text(value, encoding="utf-8")
        return benchmarks.evaluate("gold.jsonl", "pred", format="summarization", **options)

    return score


def test_figures_by_hand(score):
    result = score(GOLD, PRED)
    # a is right word by word, c not at all. b has the two lines the other way round: all 4 words,
    # of the bigrams nobody came, came nobody, nobody spoke two, "nobody came" or "nobody spoke" in
    # order, both lines.
    expected = {
        "rouge1": 100 * (1 + 1 + 0) / 3,
        "rouge2": 100 * (1 + 2 / 3 + 0) / 3,
        "rougeL": 100 * (1 + 1 / 2 + 0) / 3,
        "rougeLsum": 100 * (1 + 1 + 0) / 3,
        # The name inside of a sentence: none. New: spoke, four, of 8 words; of 5 bigrams "nobody
        # spoke" and "spoke nobody"; of 3 runs of three all but "the court met" and of one of 4.
        "novel_1grams": 100 * 2 / 8,
        "novel_2grams": 100 * 2 / 5,
        "novel_3grams": 100 * 2 / 3,
        "novel_4grams": 100,
        "longest_copied_run": (3 + 2 + 0) / 3,
        "repeated_4grams": 0,
        "summary_words": (3 + 4 + 1) / 3,
        "reference_words": (3 + 4 + 2) / 3,
        "empty": 0,
    }
    assert result.metrics == pytest.approx(expected)
    assert result.items[1].words == 400
    assert result.items[2].unit == "One\n\nTwo three"
    assert result.notes["rouge1"] == "F1, Porter stemmer of NLTK"
    split = "lines of a text that has line breaks, else sentences by ldt's rule"
    assert result.notes["rougeLsum"] == f"F1, Porter stemmer of NLTK; {split}"
    # Of the references' 9 words "spoke" is new.
    assert result.notes["novel_1grams"] == "references 11.11"
    assert result.notes["longest_copied_run"] == "words; references 2.67"
    # The first 3 words of the documents: 100; "nobody came nobody", 3 of 3 and 3 of 4; and 2 of 3
    # and 2 of 2.
    lead = 100 * (1 + 6 / 7 + 4 / 5) / 3
    assert result.baselines["rouge1"] == ("first 3 words", pytest.approx(lead))
    assert result.warnings == ["no better than first 3 words: rouge1 88.57"]


@pytest.mark.parametrize(
    ("target", "prediction", "right"),
    [  # words of the target in the order of a line, or of a sentence where there are no lines
        ("The cat sat\nThe dog ran away", "The dog ran\nThe cat sat down", 6 / 7),
        ("Three four. One two.", "One two three four.", 1),
        ("One two three four.", "Three four. One two.", 1),
        ("One. Two\nthree", "Two. One\nthree", 2 / 3),
    ],
)
def test_rougelsum_compares_lines_or_sentences(score, target, prediction, right):
    result = score([{"id": "a", "text": "x", "summary": target}], {"a": prediction})
    assert result.metrics["rougeLsum"] == pytest.approx(100 * right)
    assert result.metrics["rougeL"] < result.metrics["rouge1"]


def test_without_rouge_score_a_line_says_what_to_install(score, monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    summaries.scorer.cache_clear()
    with pytest.raises(UserError) as error:
        score(GOLD, PRED)
    assert str(error.value) == (
        "ROUGE of summaries needs rouge-score: pip install 'ldt-toolkit[summaries]'"
    )


def test_rouge_score_leaves_the_log_alone(monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [])
    summaries.scorer.cache_clear()
    assert summaries.rouge("a", "a")["rouge1"] == 1
    assert logging.root.handlers == []


def test_without_the_stemmer_forms_of_a_word_differ(score):
    gold = [{"text": "elected", "summary": "elections"}] * 2
    result = score(gold, "electing\nelecting")
    assert result.metrics["rouge1"] == result.baselines["rouge1"].value == 100
    result = score(gold, "electing\nelecting", no_stemmer=True)
    assert result.metrics["rouge1"] == result.baselines["rouge1"].value == 0
    assert result.notes["rouge2"] == "F1, no stemmer"


def test_a_resample_is_of_documents_and_scored_anew(score):
    gold = [
        {"id": 1, "text": "a 1", "summary": "x"},
        {"id": 2, "text": "a 1", "summary": "y"},  # another question on the same document
        {"id": 3, "text": "b", "summary": "z"},
    ]
    result = score(gold, {"1": "x 1 2", "2": "y 1", "3": "q"})
    # Both summaries of a are drawn together: 2 of 3 numbers, always; F1 of 2/4 and 2/3, or 0.
    assert result.intervals["numbers_in_source"] == pytest.approx((200 / 3, 200 / 3))
    assert result.intervals["rouge1"] == pytest.approx((0, 100 * (1 / 2 + 2 / 3) / 2))
    assert result.intervals["summary_words"] == pytest.approx((1, 5 / 2))
    # The same by hand, of the two documents that a resample has, drawn with the same seed.
    drawn = np.random.default_rng(results.SEED).integers(2, size=(results.RESAMPLES, 2))
    words = [(5 * (2 - row.sum()) + row.sum()) / (2 * (2 - row.sum()) + row.sum()) for row in drawn]
    assert result.intervals["summary_words"] == pytest.approx(np.quantile(words, [0.025, 0.975]))


def test_groups_are_by_length_of_the_source(score):
    groups = results.by_length(score(GOLD, PRED).items, summaries.metrics)
    assert [(group.label, group.questions) for group in groups] == [
        ("0 to 249", 2),
        ("250 to 499", 1),
    ]
    assert [group.metrics["rouge1"] for group in groups] == pytest.approx([50, 100])
    assert "numbers_in_source" not in groups[0].metrics


def test_text_has_a_summary_a_line_in_the_order_of_the_gold_file(score):
    lines = "The court met.\nNobody spoke.<n>Nobody came.\n\n"
    result = score(GOLD, lines)
    assert result.metrics["rougeLsum"] == pytest.approx(100 * 2 / 3)
    assert result.metrics["empty"] == pytest.approx(100 / 3)
    assert score(GOLD, lines.replace("\n", "\r\n")).metrics == result.metrics


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pred.csv", 'id,summary\nc,Four\na,The court met.\nb,"Nobody spoke.\nNobody came."\n'),
        ("pred", json.dumps([{"id": id, "summary": summary} for id, summary in PRED.items()])),
    ],
)
def test_predictions_are_read_from_tables_and_arrays_too(score, tmp_path, name, text):
    expected = score(GOLD, PRED).metrics
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert benchmarks.evaluate("gold.jsonl", name, format="summarization").metrics == expected


def test_a_document_without_a_summary_counts_as_an_empty_one(score):
    result = score(GOLD, {"a": " The court met.\n", "zz": "x", "c": ""})
    assert result.metrics["rouge1"] == pytest.approx(100 / 3)
    assert result.metrics["empty"] == pytest.approx(200 / 3)
    assert (result.missing, result.extra) == (["b"], ["zz"])
    assert [line.split(":")[1] for line in result.warnings[:2]] == [
        " 1 document without a whole prediction; what lacks counts 0",
        " 1 document predicted but not in the gold file, left out",
    ]


def test_the_baseline_is_the_first_words_of_the_document(score):
    gold = [{"text": "One two\nthree four.", "summary": "one two three"}] * 2
    result = score(gold, "one\none two three four")
    assert result.baselines["rouge1"] == ("first 3 words", 100)
    assert result.baselines["rougeLsum"] == ("first 3 words", 100)
    assert set(result.baselines) == set(summaries.ROUGE)
    assert result.warnings == ["no better than first 3 words: rouge1 100.00"]


def test_letters_that_rouge_drops_are_warned_of(score):
    gold = [
        {"id": "ru", "text": "Москва", "summary": "Москва 2019"},
        {"id": "de", "text": "für", "summary": "Grüße"},
    ]
    result = score(gold, {"ru": "Moskva", "de": "Grüße"})
    assert result.warnings[0] == (
        "pred: 1 document of which most letters of the summary or the reference do not count: "
        "ROUGE knows a to z and 0 to 9 alone, so that its figures say little: 'ru'"
    )


def test_a_score_is_that_of_the_evaluation(score):
    one = summaries.score(
        {"text": ["One", "Two three"], "summary": "Two three"}, {"summary": "Four"}
    )
    assert one == score(GOLD, PRED).items[2].scores


@pytest.mark.parametrize(
    ("gold", "pred", "message"),
    [
        (GOLD, "one\ntwo\n", "pred: 2 lines of text; the gold file has 3 documents, each of"),
        (GOLD, [{"id": "a", "text": "x"}], "pred:1: no field 'summary', expected text"),
        (GOLD, [{"id": "a", "summary": None}], "pred:1: 'summary' is null, expected text"),
        (GOLD, [{"id": "a", "summary": ""}] * 2, "pred: the id 'a' stands twice"),
        ([{"text": "x", "abstrct": "y"}], "x", "gold.jsonl:1: no field 'summary'; it has"),
        ([{"body": "x", "abstract": "y"}], "x", "gold.jsonl:1: no field 'text'"),
        ([], "", "gold.jsonl: no documents in it"),
        (GOLD[:1] * 2, "x\ny", "gold.jsonl: the id 'a' stands twice"),
    ],
)
def test_a_file_that_cannot_be_used(score, gold, pred, message):
    with pytest.raises(DataError) as error:
        score(gold, pred)
    assert str(error.value).startswith(message)


def test_text_that_is_no_utf8_is_refused(score, tmp_path):
    score(GOLD, PRED)
    (tmp_path / "pred.txt").write_bytes(b"one\nf\xfcr\n")
    with pytest.raises(DataError, match="pred.txt:2: .*UTF-8"):
        benchmarks.evaluate("gold.jsonl", "pred.txt", format="summarization")


def test_the_option_is_of_summaries_alone(score):
    with pytest.raises(UserError, match="--no-stemmer is an option of --format summarization"):
        benchmarks.evaluate("gold", "pred", format="squad", no_stemmer=True)


def test_all_figures_are_printed_with_their_groups(score, capsys):
    score([{**GOLD[0], "summary": "Paris in 2019"}, GOLD[1]], {"a": "In Paris 7 came", "b": ""})
    command = "evaluate --format summarization --gold gold.jsonl --pred pred --no-stemmer"
    _, out, err = typed(capsys, *command.split())
    lines = out.splitlines()
    assert lines[0] == "summarization: 2 documents, 2 predicted; figures from 0 to 100"
    assert [line.split()[0] for line in lines[1:16]] == [*summaries.ROUGE, *FIGURES]
    assert lines[1].endswith("(F1, no stemmer)")
    assert lines[17].startswith("words of the document: 0 to 249: 1 document, rouge1 ")
    assert ", summary_words " in lines[17]
    assert err == "warning: no better than first 4 words: rouge1 51.79\n"
