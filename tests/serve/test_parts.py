"""Small parts of the server, each alone: counts, errors, rankings, and what a request may be."""

import pytest
from served import make_run

from ldt.errors import ResourceError, UserError
from ldt.model import LdtConfig
from ldt.serve.app import Metrics
from ldt.serve.limits import RequestError, refused
from ldt.serve.model import RequestOptions, Served, automatic_batch
from ldt.serve.requests import Native, Predict, ranked


def test_a_value_counts_up_to_its_bound():
    metrics = Metrics()
    metrics.observe(te_batch_next_size=2)
    metrics.observe(te_batch_next_size=3)
    lines = metrics.text(0).splitlines()
    for bound, count in {"1": 0, "2": 1, "4": 2, "+Inf": 2}.items():
        assert f'te_batch_next_size_bucket{{le="{bound}"}} {count}' in lines
    assert "te_batch_next_size_sum 5" in lines


def test_errors_name_no_path_and_have_the_names_of_json():
    found, _ = refused(UserError("/srv/run/x: wrong; --n-best does"), "/srv/run")
    assert (found.status, str(found)) == (422, "the model/x: wrong; n_best does")
    found, _ = refused(ResourceError("/srv/run: out of memory"), "/srv/run")
    assert (found.status, found.kind) == (424, "Backend")
    assert str(found) == "out of memory with this document"


def test_choices_come_best_first_and_twins_by_their_first_place():
    found = ranked({"scores": [0.1, 0.7, 0.2]}, ["a", "b", "c"], 2)["ranking"]
    assert [(each["index"], each["text"]) for each in found] == [(1, "b"), (2, "c")]
    best = [{"answer": "b", "score": 0.8}, {"answer": "a", "score": 0.2}]
    found = ranked({"n_best": best}, ["a", "b", "a"], None)["ranking"]
    assert [(each["index"], each["text"]) for each in found] == [(1, "b"), (0, "a")]


def test_no_request_reads_the_folder_of_evidence(tiny_longformer, tmp_path):
    run = make_run(tiny_longformer, tmp_path / "run", "triviaqa", evidence=str(tmp_path))
    assert Served(str(run)).recipe.data.evidence is None


def test_a_question_is_cut_only_where_the_request_says_so(tiny_longformer, tmp_path):
    run = make_run(tiny_longformer, tmp_path / "run", "squad", task="max_question: 4")
    served = Served(str(run))
    fields = {"question": "when does this agreement end?", "context": "it ends."}
    (example,) = served.examples([fields])
    with pytest.raises(UserError, match='^input 1: the question is too long; "truncate": true'):
        served.variant(RequestOptions.of({})).encode(example)
    assert served.variant(RequestOptions.of({"truncate": True})).encode(example)[0]["flags"][
        "question_cut"
    ]


def test_a_long_document_is_not_read_for_each_of_very_many_choices(runs):
    served = Served(str(runs("multiple_choice")))
    body = {"question": "who?", "context": "a" * 600_000, "choices": ["b"] * 100}
    with pytest.raises(UserError, match="100 choices for a document of this length are too many"):
        Native(**body).asked(served, ranking=True)
    assert Native(**body | {"choices": ["b"] * 9}).asked(served, ranking=True).examples


def test_a_field_that_is_not_there_is_named():
    with pytest.raises(RequestError, match="^input: cannot be set here, did you mean 'inputs'"):
        Predict.read(b'{"inputs": "a", "input": "b"}')


@pytest.mark.parametrize(
    ("device", "layers", "width", "tokens"),
    [
        ("cpu", 12, 768, 2048),
        ("cpu", 2, 256, 8192),
        ("cpu", 1, 16, 16384),
        ("cuda:1", 12, 768, 16384),
    ],
)
def test_batches_of_a_small_model_and_of_a_gpu_are_larger(device, layers, width, tokens):
    config = LdtConfig(num_hidden_layers=layers, hidden_size=width)
    assert automatic_batch(device, config) == tokens
