"""Rankings of documents: TREC's files, collections in BEIR's layout, exact search, BM25."""

import json
from pathlib import Path

import numpy as np
import pytest

from ldt import benchmarks, cli
from ldt.benchmarks import formats
from ldt.benchmarks.retrieval import (
    Collection,
    bm25,
    qrels_lines,
    read_qrels,
    read_run,
    run_lines,
    search,
)
from ldt.data.options import DataSection
from ldt.errors import DataError, UserError
from ldt.metrics.ranking import ranked

QRELS = {"q1": {"d1": 1, "d2": 0}, "q2": {"d3": 2, "d1": 1}, "q3": {"d9": 1}}
RUN = {"q1": {"d2": 0.5, "d1": 0.5, "d3": 0.25}, "q2": {"d1": 3.0, "d3": 1.5}, "q7": {"d1": 1.0}}


@pytest.fixture
def evaluated(capsys):
    """Run ``ldt evaluate`` with good files: (standard output, log)."""

    def evaluated(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main(["evaluate", *arguments])
        assert end.value.code == 0
        return capsys.readouterr()

    return evaluated


@pytest.fixture
def files(tmp_path):
    """Paths of files of these names and contents."""

    def files(**contents):
        paths = {name: tmp_path / name.replace("_", ".") for name in contents}
        for name, path in paths.items():
            path.write_text(contents[name])
        return [str(path) for path in paths.values()]

    return files


def collection(folder, documents, queries, qrels):
    """A collection in BEIR's layout."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, rows in (("corpus", documents), ("queries", queries)):
        lines = [json.dumps({"_id": id, **row}) + "\n" for id, row in rows.items()]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    rows = [f"{q}\t{d}\t{n}\n" for q, judged in qrels.items() for d, n in judged.items()]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    return str(folder)


def test_files_of_trec_are_read_as_they_were_written(files):
    qrels, run = files(a_qrels=qrels_lines(QRELS), a_run=run_lines(RUN, "tag"))
    assert (read_qrels(qrels), read_run(run)) == (QRELS, RUN)
    with open(run) as file:
        assert next(file) == "q1 Q0 d2 1 0.5 tag\n"  # of equal ones the last by id


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (read_qrels, "q 0 d 1\n\nq 0 d2\n", "a.txt:3: 3 columns, expected query 0 document score"),
        (read_qrels, "q 0 d 1\nq 0 d 0\n", "a.txt:2: document 'd' stands twice for this query"),
        (read_qrels, "q 0 d 1.5\n", "a.txt:1: found '1.5', expected a whole number"),
        (read_qrels, "query-id\tcorpus-id\tscore\nq\td\tx\n", "expected a whole number"),
        (read_run, "q Q0 d 1 nan t\n", "a.txt:1: found 'nan', expected a number"),
        (read_run, "q Q0 d 1 2.0 t u\n", "a.txt:1: 7 columns, expected query Q0 document rank"),
    ],
)
def test_a_line_of_another_layout_is_named(files, read, text, expected):
    (file,) = files(a_txt=text)
    with pytest.raises(DataError) as error:
        read(file)
    assert expected in str(error.value)


def test_an_id_with_white_space_is_not_written():
    with pytest.raises(DataError, match="'a b' has white space"):
        run_lines({"q": {"a b": 1.0}})


def test_a_run_is_scored_and_a_query_that_it_lacks_counts_0(files, evaluated):
    """By hand: q1 has its document second, q2 both in the wrong order, q3 is missing."""
    qrels, run = files(a_qrels=qrels_lines(QRELS), a_run=run_lines(RUN))
    result = benchmarks.evaluate(qrels, run, format="trec")
    second = 1 / np.log2(3)
    wanted = {"ndcg@10": second + (1 + 2 * second) / (2 + second), "mrr@10": 1.5, "map": 1.5}
    assert {name: result.metrics[name] * 3 / 100 for name in wanted} == pytest.approx(wanted)
    out, log = evaluated("--gold", qrels, "--pred", run, "--format", "trec")
    assert "trec: 3 queries, 2 predicted" in out
    assert "mrr@10 50.00" in out
    assert "1 query without a whole prediction; what lacks counts 0: 'q3'" in log


DOCUMENTS = {
    "d1": {"title": "Foxes", "text": "The red fox runs. " * 200},
    "d2": {"title": "", "text": "A blue whale swims in the sea."},
    "d3": {"title": "Owls", "text": "An owl sees at night."},
    "q3": {"title": "", "text": "whales"},
}
QUERIES = {
    "q1": {"text": "running foxes", "spans": [{"start": 3000, "end": 3010}]},
    "q2": {"text": "whales in seas"},
    "q3": {"text": "whales"},  # which is a document too
    "q4": {"text": "nobody judged it"},
}
JUDGED = {"q1": {"d1": 1, "d2": 0}, "q2": {"d2": 1}, "q3": {"d2": 1, "d404": 0}}


def test_a_collection_has_texts_with_titles_and_judged_queries(tmp_path):
    folder = collection(tmp_path / "set", DOCUMENTS, QUERIES, JUDGED)
    (tmp_path / "set" / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n")
    for name in (folder, f"{folder}/qrels/test.tsv"):
        read = Collection.read(name)
        assert read.documents["d3"] == "Owls An owl sees at night."
        assert list(read.queries) == ["q1", "q2", "q3"]
        assert read.qrels == JUDGED
        assert read.places == {"q1": 3000 / len(read.documents["d1"])}


def test_a_collection_of_the_hub_has_tables_and_other_names(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    tables = {
        "corpus": [{"doc_id": "d", "text": "one"}],
        "queries": [{"qid": "q", "text": "two"}],
        "qrels": [{"qid": "q", "doc_id": "d"}],
    }
    for name, rows in tables.items():
        (tmp_path / name).mkdir()
        table = pyarrow.Table.from_pylist(rows)
        parquet.write_table(table, tmp_path / name / "test-00000-of-00001.parquet")
    read = Collection.read(str(tmp_path))
    assert (read.documents, read.queries, read.qrels) == (
        {"d": "one"},
        {"q": "two"},
        {"q": {"d": 1}},
    )


def test_a_judged_query_without_a_text_is_named(tmp_path):
    folder = collection(tmp_path / "set", DOCUMENTS, {}, {"q1": {"d1": 1}})
    with pytest.raises(DataError, match="query 'q1' is judged, and has no text"):
        Collection.read(folder)


def test_a_collection_without_judgements_is_refused(tmp_path):
    folder = collection(tmp_path / "set", DOCUMENTS, QUERIES, {})
    with pytest.raises(DataError, match="set: no judgements in it"):
        benchmarks.evaluate(folder, folder, format="trec")


def test_a_run_on_a_collection_has_bm25_beside_it_lengths_and_places(tmp_path, evaluated):
    pytest.importorskip("bm25s")
    pytest.importorskip("Stemmer")
    folder = collection(tmp_path / "set", DOCUMENTS, QUERIES, JUDGED)
    rankings = bm25(Collection.read(folder))
    assert next(iter(rankings["q1"])) == "d1"
    assert "q3" not in rankings["q3"]  # a query does not find itself
    stop = bm25(Collection(dict.fromkeys(DOCUMENTS, "a fox"), {"q": "of the"}, {}))
    assert stop == {"q": dict.fromkeys(sorted(DOCUMENTS, reverse=True), 0.0)}  # it has no word
    run = tmp_path / "a.run"
    run.write_text(run_lines({query: {"d2": 1.0, "d1": 0.5} for query in JUDGED}))
    out, _ = evaluated("--gold", folder, "--pred", str(run), "--format", "trec")
    assert "mrr@10 83.33 50.00 to 100.00 (BM25: 100.00)" in out
    assert "words of the document: 500 to 999: 1 query, ndcg@10 63.09" in out
    assert "where the answer stands: last quarter: 1 query, ndcg@10 63.09" in out


@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize("products", [1, 1 << 26])
def test_search_finds_what_a_sort_of_all_similarities_does(monkeypatch, total, products):
    """Numbers are whole, so that many are equal, over blocks too."""
    monkeypatch.setattr("ldt.benchmarks.retrieval._PRODUCTS", products)
    generator = np.random.default_rng(0)

    def vectors(count):
        return generator.integers(-1, 2, (count, 3)).astype(np.float32)

    queries = {f"q{n}": vectors(1 + n % 3) for n in range(5)}
    documents = {f"d{n}": vectors(1 + n % 4) for n in range(30)}
    falling = sorted(documents, reverse=True)
    got = search(queries, ((id, documents[id]) for id in falling), depth=7, total=total)
    for query, asked in queries.items():
        best = {id: (asked @ each.T).max(1) for id, each in documents.items()}
        scores = {id: float(np.float32(x.sum() if total else x.mean())) for id, x in best.items()}
        assert got[query] == {id: scores[id] for id in ranked(scores)[:7]}


def test_judged_queries_and_triples_are_read_to_learn_from(tmp_path):
    judged = {"q1": {"d1": 1, "d2": 0}, "q2": {"d3": 2, "d1": 1}, "q3": {"d9": 1}}
    folder = collection(tmp_path / "set", DOCUMENTS, QUERIES, judged)
    with pytest.raises(UserError, match="judgements called train"):
        list(formats.read(folder, DataSection(format="beir")))
    test = f"{folder}/qrels/test.tsv"
    Path(test).rename(f"{folder}/qrels/train.tsv")
    texts = Collection.read(f"{folder}/qrels/train.tsv").documents
    first, second = formats.read(folder, DataSection(format="beir"))
    assert (first.id, first.fields["query"]) == ("q1", Collection.read(folder).queries["q1"])
    assert (first.fields["pos"], first.fields["neg"]) == ([texts["d1"]], [texts["d2"]])
    assert (second.fields["pos"], second.fields["neg"]) == ([texts["d3"], texts["d1"]], [])
    file = tmp_path / "triples.tsv"
    file.write_text("how far\ta mile\tno\nwho\tme and\tyou\n")
    triples = [*formats.read(str(file), DataSection(format="triples"))]
    assert triples[1].fields == {"query": "who", "pos": ["me and"], "neg": ["you"]}
    assert (triples[1].id, triples[1].where) == (2, f"{file}:2")
    file.write_text("how far\ta mile\n")
    with pytest.raises(DataError, match="triples.tsv:1: 2 columns, expected query positive"):
        list(formats.read(str(file), DataSection(format="triples")))
