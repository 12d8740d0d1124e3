"""Documents with clusters as CoNLL-2012 in its dialects, their round trips, and their scores."""

import json

import pytest

from ldt import benchmarks
from ldt.benchmarks import coreference
from ldt.data import clusters
from ldt.data.clusters import Document
from ldt.data.options import DEFAULTS
from ldt.errors import DataError
from ldt.io.records import Example

ONTONOTES = """\
#begin document (bc/x/00/x_0001); part 001
bc/x/00/x_0001 1 0 Ann NNP (TOP(S* - - - Ann#1 (PERSON) (ARG0*) (1)
bc/x/00/x_0001 1 1 saw VBD * see 01 1 Ann#1 * (V*) -
bc/x/00/x_0001 1 2 her PRP * - - - Ann#1 * * (2|(1
bc/x/00/x_0001 1 3 dog NN *)) - - - Ann#1 * * 1)|2)

bc/x/00/x_0001 1 0 😀 UH * - - - Bob * -
bc/x/00/x_0001 1 1 She PRP * - - - - * (1)

#end document
"""
LITBANK = """\
#begin document (7_book); part 0
7_book\t0\t0\tAnn\t_\t_\t_\t_\t_\t_\t_\t_\t(1)
7_book\t0\t1\tleft\t_\t_\t_\t_\t_\t_\t_\t_\t

7_book\t0\t0\tShe\t_\t_\t_\t_\t_\t_\t_\t_\t(1)

#end document
"""
GUM = """\
# begin document GUM_x
0\tAnn\t(person-1)
1\tsaw\t_
2\ther\t(animal-2(person-1)
3\tdog\tanimal-2)
# end document
# begin document GUM_y
0\tIt\t(1)
1\t's\t_
2\tit\t(1)(2)
# end document
"""
SEMEVAL = "#begin document (t);\nt 0 0 Ann (0\nt 0 1 Lee 0)|(0\nt 0 2 Poe 0)\n#end document"


def examples(text, tmp_path, name="x.conll"):
    file = tmp_path / name
    file.write_bytes(text.encode())
    return [*coreference.read(str(file), DEFAULTS)]


@pytest.mark.parametrize(
    ("text", "ids", "fields"),
    [
        (
            ONTONOTES,
            ["bc/x/00/x_0001_1"],
            {
                "sentences": [["Ann", "saw", "her", "dog"], ["😀", "She"]],
                "speakers": [["Ann#1"] * 4, ["Bob", ""]],
                "clusters": [[[0, 0], [2, 3], [5, 5]], [[2, 3]]],
            },
        ),
        (LITBANK, ["7_book_0"], {"sentences": [["Ann", "left"], ["She"]]}),
        (GUM, ["GUM_x", "GUM_y"], {"clusters": [[[0, 0], [2, 2]], [[2, 3]]]}),
        (GUM.replace("document GUM_x", "document "), ["x", "GUM_y"], {}),
        (SEMEVAL, ["t"], {"tokens": ["Ann", "Lee", "Poe"], "clusters": [[[0, 1], [1, 2]]]}),
        ("# begin document t\na (1\nb (1\nc 1)\nd 1)\n", ["t"], {"clusters": [[[0, 3], [1, 2]]]}),
        ("# begin document t\n\nAnn (1)\nShe (1)\n", ["t"], {"tokens": ["Ann", "She"]}),
        ("# begin document t\n# end document\n", ["t"], {"tokens": [], "clusters": []}),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_each_dialect_is_read(text, ids, fields, end, tmp_path):
    read = examples(text.replace("\n", end), tmp_path)
    assert [example.id for example in read] == ids
    assert {name: read[0].fields[name] for name in fields} == fields
    assert ("speakers" in read[0].fields) is ("speakers" in fields)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("(1)(2)", "3)", "x:10: 3) closes a mention of 3, which none before opens"),
        ("animal-2)", "_", "x:4: (animal-2 opens a mention that is not closed in the document"),
        ("(1)(2)", "(1)x", "x:10: '(1)x', expected mentions such as (1, 1), (1) or (1)|(2"),
        ("(1)(2)", "()", "x:10: '()', expected mentions"),
        ("2\tit\t(1)(2)", "it", "x:10: 1 columns; the word is in column 2, its clusters in the la"),
        ("# begin document GUM_y", "", "x:8: a word outside of a document; #begin document"),
    ],
)
def test_a_fault_is_told_with_file_and_line(before, after, message, tmp_path):
    with pytest.raises(DataError) as error:
        examples(GUM.replace(before, after), tmp_path, "x")
    assert str(error.value).startswith(f"{tmp_path}/{message}")


@pytest.mark.parametrize("text", [ONTONOTES, LITBANK, GUM, SEMEVAL])
def test_what_is_written_is_read_again(text, tmp_path):
    documents = [clusters.read(example) for example in examples(text, tmp_path)]
    lines = "".join(line for each in documents for line in coreference.conll(each))
    again = [clusters.read(example) for example in examples(lines, tmp_path, "again")]
    for one, other in zip(documents, again, strict=True):
        assert one == other


def lines(tmp_path, name, *values):
    file = tmp_path / name
    file.write_text("".join(json.dumps(value) + "\n" for value in values))
    return str(file)


def test_answers_in_any_layout_have_the_same_figures(tmp_path):
    gold = tmp_path / "gold.conll"
    gold.write_text(ONTONOTES + LITBANK, "utf-8")
    documents = [clusters.read(example) for example in coreference.read(str(gold), DEFAULTS)]
    for document in documents:  # her alone is another's, and of the dog nothing is said
        document.clusters = [[span for span in document.clusters[0] if span != (2, 3)], [(1, 2)]]
    answers = [
        {
            "id": document.id,
            "clusters": [
                [{"start": a, "end": b, "text": document.text[a:b]} for a, b in cluster]
                for cluster in document.characters()
            ],
        }
        for document in documents
    ]
    words = [
        answer | {"sentences": each.sentence_words()}
        for answer, each in zip(answers, documents, strict=True)
    ]
    conll = tmp_path / "answers.conll"
    conll.write_text(coreference.published(words), "utf-8")
    files = [
        lines(tmp_path, "predict.jsonl", *answers),
        lines(tmp_path, "words.jsonl", *words),
        lines(tmp_path, "s2e.jsonl", *coreference.published_lines(words)),
        lines(tmp_path, "preco.jsonl", *clusters.json_lines(documents, "preco")),
        lines(tmp_path, "chains.jsonl", *clusters.json_lines(documents, "coref-data")),
        str(conll),
    ]
    results = [benchmarks.evaluate(str(gold), file, format="coreference") for file in files]
    for result in results:
        assert result.metrics == results[0].metrics
        assert not result.missing
        assert not result.extra
    metrics = results[0].metrics
    assert metrics["mention_precision"] == pytest.approx(100 * 4 / 6)
    assert metrics["no_singletons_mention_precision"] == 100
    assert {*metrics} == {*results[0].intervals} == {*results[0].baselines}


def test_a_document_without_an_answer_has_no_mention(tmp_path):
    gold = tmp_path / "gold.conll"
    gold.write_text(GUM, "utf-8")
    (first, second) = (clusters.read(x) for x in coreference.read(str(gold), DEFAULTS))
    file = lines(tmp_path, "s2e.jsonl", *clusters.json_lines([first]))
    result = benchmarks.evaluate(str(gold), file, format="coreference")
    assert result.missing == [second.id]
    assert result.metrics["mention_precision"] == 100
    assert result.metrics["mention_recall"] == pytest.approx(100 * 3 / 5)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"id": "GUM_x", "tokens": ["a"], "clusters": []}, "1 words; the gold document has 4"),
        ({"id": "GUM_x", "answer": "x"}, "no clusters"),
        ({"id": "GUM_x", "clusters": [[[4, 4]]]}, "a mention from word 4 to 4; there are 4"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(answer, message, tmp_path):
    gold = tmp_path / "gold.conll"
    gold.write_text(GUM, "utf-8")
    with pytest.raises(DataError) as error:
        benchmarks.evaluate(str(gold), lines(tmp_path, "a", answer), format="coreference")
    assert str(error.value).startswith(f"{tmp_path}/a:1: ")
    assert message in str(error.value)


def test_the_rule_puts_same_words_together_and_pronouns_to_what_is_before():
    words = "The dog saw Ann . It barked . She ran to the dog , and her cat ran .".split()
    spans = [(0, 2), (3, 4), (5, 6), (8, 9), (11, 13), (15, 16), (15, 17)]
    document = Document.of_words("x", [words], clusters=[[span] for span in spans])
    assert coreference.by_words(document) == [
        [(0, 2), (11, 13)],
        [(3, 4), (5, 6), (8, 9), (15, 16)],
        [(15, 17)],
    ]


def test_ids_of_json_lines_are_doc_keys(tmp_path):
    file = lines(tmp_path, "x.jsonl", {"doc_key": "k", "tokens": ["a"], "clusters": []})
    (example,) = coreference.read(file, DEFAULTS)
    assert example == Example({"doc_key": "k", "tokens": ["a"], "clusters": []}, "k", f"{file}:1")
