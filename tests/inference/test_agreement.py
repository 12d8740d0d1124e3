"""int8 is refused where it changes too many of the first answers, before any is written."""

import json
import shutil
import subprocess

import numpy as np
import pytest
import torch
from classified import lines_of, read, write
from processes import ldt
from streaming import Sink, answer_all

from ldt.errors import DataError, PrecisionError
from ldt.inference.agreement import PrecisionCheck, same_decision
from ldt.inference.predict import predict
from ldt.io.records import Example
from ldt.model import LdtForSequenceClassification, load

EYE = np.eye(2)


@pytest.fixture(scope="module", autouse=True)
def one_library():
    """For the same answers in each run, whichever library the clock would choose."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LDT_ONEDNN", "0")
        yield


@pytest.fixture(scope="module")
def outliers(fine_tuned, tmp_path_factory):
    """A run whose weights have a large one in each row, on a state that is always 0: in fp32 it
    does nothing, in int8 all others are 0 beside it."""
    folder = shutil.copytree(fine_tuned, tmp_path_factory.mktemp("outliers") / "run")
    model = load(folder, LdtForSequenceClassification)
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight[0] = module.bias[0] = 0
            elif name.endswith(("query", "key", "value", "intermediate.dense")):
                module.weight[:, 0] = 1e4
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    return write(tmp_path_factory.mktemp("docs") / "docs.jsonl", lines_of(40, seed=2))


@pytest.fixture(scope="module")
def labels(outliers, documents, tmp_path_factory):
    """The labels in fp32 and in int8."""
    found = {}
    for precision in ("fp32", "int8"):
        target = tmp_path_factory.mktemp(precision) / "answers.jsonl"
        options = {"precision": precision, "max_changed": 1}
        predict(documents, model=str(outliers), output=str(target), **options)
        found[precision] = [answer["label"] for answer in read(target)]
    return found


def changed(labels):
    return sum(one != other for one, other in zip(labels["fp32"], labels["int8"], strict=True))


def test_a_bound_at_the_very_share_that_changes_holds(outliers, documents, labels, tmp_path, log):
    count = changed(labels)
    assert 0 < count < 40
    target = tmp_path / "answers.jsonl"
    options = {"model": str(outliers), "output": str(target), "precision": "int8"}
    with pytest.raises(PrecisionError, match=f"int8 changes {count} of 40 answers, more than"):
        predict(documents, **options, max_changed=(count - 1) / 40)
    assert list(tmp_path.iterdir()) == []
    predict(documents, **options, max_changed=count / 40)
    assert [answer["label"] for answer in read(target)] == labels["int8"]
    said = f"int8 against fp32 on the first 40 documents: {count} answers changed"
    assert [line.startswith(said) for line in log.messages].count(True) == 2
    record = json.loads((tmp_path / ".answers.jsonl.run.json").read_text())
    assert record["int8"] == {"documents": 40, "changed": count}


@pytest.mark.slow
def test_a_pipe_gets_nothing_of_a_refused_run(outliers, documents, labels):
    command = ["predict", "-", "--model", str(outliers), "--precision", "int8"]
    with (
        open(documents, "rb") as source,
        subprocess.Popen(["cat"], stdin=source, stdout=subprocess.PIPE) as pipe,
    ):
        done = ldt(*command, stdin=pipe.stdout, text=True)
    share, count = f"{changed(labels) / 40:.1%}", changed(labels)
    assert (done.returncode, done.stdout) == (9, "")
    said = [line for line in done.stderr.splitlines() if "int8" in line]
    assert said == [
        f"int8 against fp32 on the first 40 documents: {count} answers changed ({share})",
        f"error: --precision int8 changes {count} of 40 answers, more than max_changed=0.01 "
        "allows; nothing was written; --precision fp32 keeps the answers, max_changed=1 goes on "
        "all the same",
    ]


def test_a_resumed_run_has_been_compared(outliers, tmp_path, log):
    lines, target = lines_of(12, seed=2), tmp_path / "answers.jsonl"
    source, options = tmp_path / "docs.jsonl", {"model": str(outliers), "precision": "int8"}
    whole = str(tmp_path / "whole.jsonl")
    write(source, [*lines[:5], "{", *lines[6:]])
    with pytest.raises(DataError):
        predict(str(source), **options, output=str(target), max_changed=1)
    write(source, lines)
    log.clear()
    predict(str(source), **options, output=str(target), resume=True, max_changed=0)
    (said,) = [line for line in log.messages if "int8" in line]
    assert said.startswith("int8: as the answers that are there already; of the first 5, ")
    predict(str(source), **options, output=whole, max_changed=1)
    assert [each["label"] for each in read(target)] == [each["label"] for each in read(whole)]


class Numbered:
    """Answers with the number of a document, or with 0 to every ``every``-th."""

    def __init__(self, every=0):
        self.every, self.asked = every, []

    def encode(self, example):
        return [{"input_ids": [example.id]}]

    def outputs(self, features):
        self.asked += [feature["input_ids"][0] for feature in features]
        return [{"logits": np.array(feature["input_ids"], np.float32)} for feature in features]

    def decode(self, outputs, example, features):
        changes = self.every and example.id % self.every == 0
        return {"label": "0" if changes else str(example.id), "scores": {"a": 1 / (self.every + 1)}}


def examples(count):
    return [Example({}, number, f"docs.jsonl:{number}") for number in range(1, count + 1)]


@pytest.mark.parametrize(("size", "compared"), [(30, 30), (200, 200), (700, 200)])
def test_the_first_200_documents_alone_run_twice_and_the_rest_once(size, compared, log):
    exact, model, sink, noted = Numbered(), Numbered(100), Sink(), []
    agreement = PrecisionCheck(exact, 0.01, noted.append)
    counts = answer_all(examples(size), model, sink, batch_tokens=16, agreement=agreement)
    assert sorted(exact.asked) == list(range(1, compared + 1))
    assert sorted(model.asked) == sink.ids() == list(range(1, size + 1))
    assert counts.documents == counts.chunks == size
    assert noted == [{"documents": compared, "changed": compared // 100}]


@pytest.mark.parametrize("every", [1, 2, 5, 50, 100, 200])
@pytest.mark.parametrize("documents", [100, 200])
def test_the_bound_itself_is_allowed_in_decimals(every, documents):
    count = documents // every
    for bound, refused in ((count / documents, False), ((count - 0.5) / documents, True)):
        agreement, sink = PrecisionCheck(Numbered(), max(bound, 0)), Sink()
        run = {"batch_tokens": 1000, "agreement": agreement}
        if count and refused:
            with pytest.raises(PrecisionError):
                answer_all(examples(documents), Numbered(every), sink, **run)
            assert sink.groups == []
        else:
            answer_all(examples(documents), Numbered(every), sink, **run)
            assert len(sink.ids()) == documents


def test_29_of_100_are_no_more_than_29_hundredths():
    assert 0.29 * 100 < 29
    agreement = PrecisionCheck(None, 0.29)
    agreement.exact = Numbered()
    agreement.compare([{"label": "a"}] * 100, [{"label": "b"}] * 29 + [{"label": "a"}] * 71)
    assert agreement.release([{}], end=True) == [[{}]]


@pytest.mark.parametrize(("bound", "written"), [(0.5, 0), (1, 30)])
def test_answers_to_a_pipe_wait_unless_all_may_change(bound, written):
    sink, seen = Sink(), []

    def source():
        for example in examples(300):
            yield example
            if example.id in (30, 60, 250):
                yield None
                seen.append(len(sink.ids()))

    agreement = PrecisionCheck(Numbered(), bound)
    answer_all(source(), Numbered(), sink, batch_tokens=1000, agreement=agreement)
    assert seen == [written, 2 * written, 250]
    assert len(sink.ids()) == 300


SPAN = {"answer": "the rent", "start": 3, "end": 11, "score": 0.5, "chunks": 2}
NONE = {"answer": "", "best": "the rent", "start": 3, "end": 11, "score": 0.5, "no_answer": 0.9}
ENTITY = {"start": 1, "end": 2, "label": "PER", "text": "Ann", "score": 0.9}
NESTED = {"evidence": [{"span": 1, "text": "A.", "score": 0.5}], "span_probs": [0.5, 0.1]}


@pytest.mark.parametrize(
    ("one", "changes", "expected"),
    [
        ({"label": "a", "scores": {"a": 0.6, "b": 0.4}}, {"scores": {"a": 0.9, "b": 0.1}}, True),
        ({"label": "a"}, {"label": "b"}, False),
        ({"label": ["a", "b"]}, {"label": ["a"]}, False),
        ({"label": "a"}, {"label": None, "abstained": True, "why": "unsure"}, False),
        ({"label": 2.0}, {"label": 2.01}, True),
        ({"label": 2.0}, {"label": 2.1}, False),
        ({"label": 2.0}, {"label": None}, False),
        ({"label": "a", "label_set": ["a"]}, {"label_set": ["a", "b"]}, False),
        (SPAN, {"score": 0.1, "n_best": [{"answer": "it", "score": 0.1}]}, True),
        (SPAN, {"answer": "rent"}, False),
        (SPAN, {"start": 20, "end": 28}, False),
        (NONE, {"best": "it", "start": 20, "end": 22, "no_answer": 0.8}, True),
        (NONE, {"answer": "the rent"}, False),
        ({"entities": [ENTITY]}, {"entities": [ENTITY | {"score": 0.1}]}, True),
        ({"entities": [ENTITY]}, {"entities": [ENTITY | {"label": "LOC"}]}, False),
        ({"entities": [ENTITY]}, {"entities": []}, False),
        (NESTED, {"span_probs": [0.4, 0.2]}, True),
        (NESTED, {"evidence": []}, False),
        ({"supporting_facts": [["A", 0]], "fact_scores": [0.9]}, {"fact_scores": [0.8]}, True),
        ({"supporting_facts": [["A", 0]]}, {"supporting_facts": [["A", 1]]}, False),
        ({"answer": None, "choice": None, "scores": [0.5, 0.5]}, {"scores": [0.6, 0.4]}, True),
        ({"label": "a"}, {"passages": [{"start": 0}], "by_chunk": []}, True),
        ({"vectors": EYE, "spans": [[0, 1]]}, {"vectors": EYE * 1.02}, True),
        ({"query": EYE[:1], "documents": [EYE]}, {"documents": [EYE + 0.2 * EYE[::-1]]}, False),
    ],
)
def test_answers_are_the_same_where_they_decide_the_same(one, changes, expected):
    assert same_decision(one, one | changes) == expected
    assert same_decision(one | changes, one) == expected
