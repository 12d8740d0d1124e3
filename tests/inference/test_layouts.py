"""Answers in published layouts: which one a file gets, by its name or by --output-format."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ldt import benchmarks
from ldt.benchmarks.squad import N_BEST
from ldt.errors import DataError, UserError
from ldt.inference.answer_file import layout_of, published_layout, write_published
from ldt.inference.predict import predict
from ldt.model import load, load_tokenizer
from ldt.tasks import Classification, Coreference, Squad
from ldt.tasks.base import PublishedLayout

QUESTIONS = {
    "data": [
        {
            "title": "York",
            "paragraphs": [
                {
                    "context": "In York, not in Bath.",
                    "qas": [
                        {
                            "id": f"York__{number}",
                            "question": f"the {number}?",
                            "answers": [{"text": "York", "answer_start": 3}],
                        }
                        for number in range(3)
                    ],
                }
            ],
        }
    ]
}


@pytest.fixture(scope="module")
def run(tiny_longformer, tmp_path_factory):
    """A run folder with a span model of random weights, and a file of questions."""
    folder = tmp_path_factory.mktemp("run")
    model = load(tiny_longformer, Squad().head(), no_answer_threshold=0.5, decisions={})
    model.save_pretrained(folder)
    load_tokenizer(tiny_longformer, model.config).save_pretrained(folder)
    recipe = "task: {name: squad}\nmodel: {path: x}\ndata: {train: x.json, format: squad}\n"
    (folder / "recipe.yaml").write_text(recipe)
    (folder / "dev.json").write_text(json.dumps(QUESTIONS))
    return folder


class Two(Squad):
    answers = replace(
        Squad.answers, layouts={"nq": PublishedLayout(list), "tydiqa": PublishedLayout(iter)}
    )


def test_a_json_file_has_the_layout_of_the_documents_else_of_the_training_else_the_first():
    def named(*formats, task=Two, output="a.json"):
        return published_layout(None, output, task(), formats)

    assert named("tydiqa", "nq") == "tydiqa"
    assert named(None, "tydiqa") == named("jsonl", "tydiqa") == "tydiqa"
    assert named(None, None) == named("jsonl", "squad") == "nq"
    assert named(None, "tydiqa", output="a.JSON") == "tydiqa"
    assert named("tydiqa", output="a.jsonl") is named("tydiqa", output=None) is None
    with pytest.raises(UserError, match="answers of classification are JSON lines; name the"):
        named(None, "jsonl", task=Classification)


def test_a_layout_that_is_named_is_taken_whatever_the_ending_and_must_be_known():
    assert published_layout("nq", "a.out", Two(), ("tydiqa",)) == "nq"
    with pytest.raises(UserError, match="-format x: none of squad; .*: 'nq', 'tydiqa'$"):
        published_layout("x", "a.json", Two(), ())
    for output in (None, "-", "/dev/null"):
        with pytest.raises(UserError, match="-format nq: made of all .* --output FILE"):
            published_layout("nq", output, Two(), ())


def test_text_may_be_a_table_by_its_name_and_json_may_not(tmp_path):
    for ending in ("csv", "TSV", "parquet"):
        with pytest.raises(UserError, match=f"a.{ending}: --output-format makes no such table"):
            layout_of(tmp_path / f"a.{ending}", PublishedLayout(dict))
    with pytest.raises(UserError, match="a.parquet: --output-format makes no such table"):
        layout_of(tmp_path / "a.parquet", PublishedLayout(lambda answers: ""))
    lines = tmp_path / "lines"
    lines.write_text('{"id": 1}\n{"id": 2}\n')

    def table(answers):
        return "".join(f"{answer['id']}\tä\n" for answer in answers)

    layout_of(tmp_path / "a.csv", PublishedLayout(table))(lines, tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text("utf-8") == "1\tä\n2\tä\n"
    for writer, written in ((list, '[{"id": 1}, {"id": 2}]\n'), (iter, lines.read_text())):
        write_published(writer, lines, tmp_path / writer.__name__)
        assert (tmp_path / writer.__name__).read_text() == written


def test_the_named_layout_is_written_and_read_back_by_evaluate(run, tmp_path):
    source, output = str(run / "dev.json"), tmp_path / "answers.txt"
    assert predict(source, model=str(run), output=str(output), layout="squad") == 0
    by_ending = tmp_path / "answers.json"
    assert predict(source, model=str(run), output=str(by_ending)) == 0
    assert output.read_bytes() == by_ending.read_bytes()
    assert list(json.loads(output.read_text())) == ["York__0", "York__1", "York__2"]
    assert benchmarks.evaluate(source, str(output), format="squad").metrics["f1"] >= 0


def test_the_n_best_of_cuad_are_twenty_with_no_answer_and_read_by_its_metric(run, tmp_path):
    source, output = str(run / "dev.json"), tmp_path / "nbest.json"
    options = {"model": str(run), "output": str(output), "data": {"format": "cuad"}}
    assert predict(source, **options, layout="cuad-nbest", n_best=2) == 0
    written = json.loads(output.read_text())
    assert list(written) == ["York__0", "York__1", "York__2"]
    for entries in written.values():  # as the code of transformers writes them
        assert len(entries) == N_BEST
        texts = [entry["text"] for entry in entries]
        assert len(set(texts)) == N_BEST
        assert "" in texts
        keys = {"text", "probability", "start_logit", "end_logit"}
        assert {key for entry in entries for key in entry} == keys
        sums = np.array([entry["start_logit"] + entry["end_logit"] for entry in entries])
        assert (np.diff(sums) <= 0).all()
        shares = np.exp(sums) / np.exp(sums).sum()
        assert [entry["probability"] for entry in entries] == pytest.approx(shares)
    result = benchmarks.evaluate(source, str(output), format="cuad")
    assert 0 <= result.metrics["aupr"] <= 100


def test_clusters_for_given_words_have_the_layouts_of_words(tiny_longformer, tmp_path):
    run, gold = tmp_path / "run", tmp_path / "gold.conll"
    head = {"ffnn_size": 8, "max_span_length": 5, "singletons": True}
    model = load(tiny_longformer, Coreference().head(), coref_head=head)
    model.save_pretrained(run)
    load_tokenizer(tiny_longformer, model.config).save_pretrained(run)
    recipe = "task: {name: coreference}\nmodel: {path: x}\ndata: {train: x, format: coreference}\n"
    (run / "recipe.yaml").write_text(recipe)
    words = ["(a); part 1", "a - (1", "party - 1)", "", "ends - (1)", "#end document"]
    flat = ["#begin document b", "0 the _", "1 party (2)", "#end document", ""]
    gold.write_text("\n".join([f"#begin document {words[0]}", *words[1:], *flat]))
    results = []
    for layout in (None, "coreference", "s2e"):
        output = tmp_path / f"answers-{layout}"
        assert predict(str(gold), model=str(run), output=str(output), layout=layout) == 0
        results.append(benchmarks.evaluate(str(gold), str(output), format="coreference"))
        assert not results[-1].missing
        assert results[-1].metrics == results[0].metrics
    assert results[0].metrics["mention_precision"] > 0
    raw, written = tmp_path / "raw.jsonl", str(tmp_path / "raw.conll")
    raw.write_text('{"id": 1, "text": "a party ends"}\n')
    with pytest.raises(DataError, match="answer 1: no sentences or tokens; answers for given wor"):
        predict(str(raw), model=str(run), output=written, layout="s2e")
