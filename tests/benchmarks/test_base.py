"""Files of published layouts whose fields are of another kind, by one reader of shapes."""

import copy

import pytest
import scored

from ldt.benchmarks import base
from ldt.benchmarks.base import Id, Number, Shape, Truth, Whole
from ldt.errors import DataError, UserError

SHAPE = Shape(
    {
        "id": Id,
        "texts": [str],
        "by_name": {str: Number},
        "pairs?": [tuple[str, Whole]],
        "said?": (Truth, None),
    }
)
VALUE = {"id": 7, "texts": ["a"], "by_name": {"x": 1}}


def test_a_value_keeps_the_fields_of_its_shape():
    more = {"pairs": [["t", 0]], "said": None}
    assert SHAPE(VALUE | more | {"other": 1}, "f") == VALUE | {
        **{"id": "7", "pairs": [("t", 0)], "said": None}
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": 7.5}, "f: field id: found 7.5; input should be a valid string"),
        ({"id": True}, "f: field id: found true; input should be a valid string"),
        ({"texts": ["a", None]}, "f: field texts.1: found null; input should be a valid string"),
        ({"texts": "a"}, "f: field texts: found 'a'; input should be a valid list"),
        ({"texts": ...}, "f: field texts: found an object of 2 keys; field required"),
        ({"by_name": {"x": "1"}}, "f: field by_name.x: found '1'; input should be a valid number"),
        ({"by_name": {"x": True}}, "f: field by_name.x: found true; input should be a valid numbe"),
        ({"pairs": [["t"]]}, "f: field pairs.0.1: found a list of 1; field required"),
        ({"pairs": [["t", 1.0]]}, "f: field pairs.0.1: found 1.0; input should be a valid integer"),
        ({"said": 1}, "f: field said: found 1; input should be a valid boolean"),
    ],
)
def test_the_first_field_of_another_kind_is_named_with_what_stands_there(change, message):
    value = {key: each for key, each in (VALUE | change).items() if each is not ...}
    with pytest.raises(DataError) as error:
        SHAPE(value, "f")
    assert str(error.value).startswith(message)


def test_a_value_that_is_no_object_is_told():
    with pytest.raises(DataError, match="^f: found a list, empty; input should be a valid dict"):
        SHAPE([], "f")


def test_an_id_that_comes_twice_is_refused():
    with pytest.raises(DataError, match="^f: the id 'b' stands twice"):
        base.once(["a", "b", ("de", "b"), "b"], "f")


CONTEXT = {"context": "a b", "qas": [{"id": "q", "answers": [{"text": "a"}]}]}
SQUAD = {"data": [{"paragraphs": [CONTEXT]}]}
WIKIHOP = [{"id": "q", "candidates": ["a"], "supports": ["b"], "answer": "a"}]
HOTPOTQA = [{"_id": "q", "answer": "a", "supporting_facts": [["t", 0]], "context": [["t", ["b"]]]}]
PAGE = {"NormalizedAliases": ["a"]}
TRIVIAQA = {"Domain": "Wikipedia", "Data": [{"QuestionId": "q", "Answer": PAGE}]}
NLI = {"choice": "Entailment", "spans": [0]}
NLI = {"id": 1, "text": "a", "spans": [[0, 1]], "annotation_sets": [{"annotations": {"x": NLI}}]}
NLI = {"documents": [NLI], "labels": {"x": {"hypothesis": "b"}}}
SHARES = {"NotMentioned": 0, "Entailment": 1, "Contradiction": 0}
SHARES = {"x": {"class_probs": SHARES, "span_probs": [1]}}
ANSWER = {"unanswerable": False, "extractive_spans": [], "free_form_answer": "a", "evidence": []}
PAPER = {"question_id": "q", "question": "b", "answers": [{"answer": ANSWER}]}
TYDI = {"plaintext_start_byte": 0, "plaintext_end_byte": 1}
TYDI = {
    **{"example_id": 1, "language": "thai", "document_plaintext": "a"},
    **{"passage_answer_candidates": [TYDI], "annotations": []},
}
TYDI_PREDICTED = {
    **{"example_id": 1, "language": "thai", "passage_answer_index": 0, "passage_answer_score": 1},
    "minimal_answer": {"start_byte_offset": -1, "end_byte_offset": -1},
    "minimal_answer_score": 1,
}
NQ_TOKEN = {"token": "a", "html_token": False, "start_byte": 0, "end_byte": 1}
NQ = {
    **{"example_id": 1, "document_html": "a", "document_tokens": [NQ_TOKEN]},
    **{"long_answer_candidates": [], "annotations": []},
}
NQ_PREDICTED = {"example_id": 1, "long_answer_score": 1, "short_answers_score": 1}
# Gold and predictions of each format that can be scored, each value of which is changed.
FILES = {
    "squad": (SQUAD, {"q": "a"}),
    "squad2": (SQUAD, [{"id": "q", "prediction_text": "a", "no_answer_probability": 0.5}]),
    "cuad": (SQUAD, {"q": [{"text": "a", "probability": 0.5}]}),
    "wikihop": (WIKIHOP, {"q": "a"}),
    "hotpotqa": (HOTPOTQA, {"answer": {"q": "a"}, "sp": {"q": [["t", 0]]}}),
    "triviaqa": (TRIVIAQA, {"q": "a"}),
    "contractnli": (NLI, [{"id": 1, "annotation_sets": [{"annotations": SHARES}]}]),
    "qasper": (
        {"p": {"full_text": [{"paragraphs": ["c"]}], "qas": [PAPER]}},
        [{"question_id": "q", "predicted_answer": "a", "predicted_evidence": ["c"]}],
    ),
    "nq": (NQ, {"predictions": [NQ_PREDICTED]}),
    "tydiqa": (TYDI, TYDI_PREDICTED),
    "lexglue": ({"id": "q", "text": "a", "labels": [1]}, {"id": "q", "labels": [1]}),
    "summarization": ({"id": "q", "text": "a", "summary": "b"}, {"id": "q", "summary": "b"}),
}


def places(value, path=()):
    """The path of each value inside of a value, and of itself."""
    yield path
    inside = enumerate(value) if isinstance(value, list) else ()
    for key, each in value.items() if isinstance(value, dict) else inside:
        yield from places(each, (*path, key))


def changed(value, path, other):
    """A copy of a value with another one at a path."""
    if not path:
        return other
    value = copy.deepcopy(value)
    inside = value
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = other
    return value


def message(evaluate, *files):
    """The one line that files are refused with, "" of others."""
    try:
        evaluate(*files)
    except UserError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return str(error)
    return ""


@pytest.mark.parametrize("format", FILES)
def test_every_value_of_another_kind_is_one_line_with_the_name_of_its_file(format):
    options = {"task": "ecthr_a"} if format == "lexglue" else {}
    of_lines = format in ("tydiqa", "lexglue", "summarization")
    lines = "both" if of_lines else format == "qasper"

    def evaluate(*files):
        files = [[each] if of_lines else each for each in files]
        return scored.evaluate(format, *files, lines=lines, **options)

    files, refused = FILES[format], 0
    assert evaluate(*files).items
    for number in range(2):
        for path in places(files[number]):
            for other in (3.5, [{}], {"a": None}) if path else ():
                both = [*files]
                both[number] = changed(files[number], path, other)
                line = message(evaluate, *both)
                assert line.startswith(("gold", "pred") if line else ""), (path, other)
                refused += bool(line)
    assert refused
