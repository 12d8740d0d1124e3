from collections import Counter

import pytest
from scored import examples

from ldt.errors import DataError


def test_each_document_is_read_with_each_hypothesis(shared_data):
    found = examples("contractnli", shared_data / "contractnli" / "dev.json.gz")
    assert len(found) == 61 * 17
    assert Counter(example.fields["label"] for example in found) == {
        "Entailment": 519,
        "NotMentioned": 423,
        "Contradiction": 95,
    }
    first = found[0]
    assert first.id == "3/nda-11"
    assert (first.fields["document"], first.fields["key"]) == (3, "nda-11")
    assert first.fields["hypothesis"].startswith("Receiving Party shall not reverse engineer")
    text, spans = first.fields["text"], first.fields["spans"]
    evidence = [text[slice(*spans[number])] for number in first.fields["evidence"]]
    assert len(evidence) == 2
    assert "reverse engineer" in " ".join(evidence)
    for example in found:
        is_silent = example.fields["label"] == "NotMentioned"
        assert is_silent == (not example.fields["evidence"])


def value(**more):
    document = {"id": 7, "text": "abc", "spans": [[0, 3]]} | more
    return {"documents": [document], "labels": {"x": {"hypothesis": "It is."}}}


def test_a_test_set_has_no_labels():
    (example,) = examples("contractnli", value())
    assert (example.id, example.fields) == (
        "7/x",
        {"text": "abc", "spans": [[0, 3]], "hypothesis": "It is.", "key": "x", "document": 7},
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"spans": [[2, 1]]}, "f: 7: span [2, 1]; expected 0 <= start <= end <= 3"),
        ({"spans": [[0, 4]]}, "f: 7: span [0, 4]; expected 0 <= start <= end <= 3"),
        ({"spans": [["0", 1]]}, "f: field documents.0.spans.0.0: found '0'; input"),
        (
            {"annotation_sets": [{"annotations": {"z": {"choice": "Entailment", "spans": [0]}}}]},
            "f: 7: hypotheses that stand only in the annotations or only in the labels: 'x', 'z'",
        ),
        (
            {"annotation_sets": [{"annotations": {"x": {"choice": "No", "spans": []}}}]},
            "f: field documents.0.annotation_sets.0.annotations.x.choice: found 'No'; input should",
        ),
        (
            {"annotation_sets": [{"annotations": {"x": {"choice": "Entailment", "spans": [1]}}}]},
            "f: 7/x: span 1 as evidence; the document has 1, from 0",
        ),
    ],
)
def test_a_document_that_cannot_be_read(more, message):
    with pytest.raises(DataError) as error:
        examples("contractnli", value(**more))
    assert str(error.value).startswith(message)
