import threading
import time
import tracemalloc

import numpy as np
import pytest
from streaming import Sink, answer_all

from ldt.errors import DataError, ModelError, UserError
from ldt.inference import stream as answering
from ldt.inference.answer_file import AnswerFile
from ldt.inference.inputs import prefetch
from ldt.inference.stream import Counts, batches
from ldt.io.records import Example, SeenIds


class Lengths:
    """Answers with the number of windows and tokens; a document is a list of window lengths."""

    def __init__(self):
        self.batches = []

    def encode(self, example):
        if not example.fields["chunks"]:
            raise DataError(f"{example.where}: no windows")
        return [{"input_ids": [0] * length} for length in example.fields["chunks"]]

    def outputs(self, features):
        lengths = [len(feature["input_ids"]) for feature in features]
        self.batches.append(lengths)
        return [{"logits": np.array([length], np.float32)} for length in lengths]

    def decode(self, outputs, example, features):
        lengths = [output["logits"].item() for output in outputs]
        assert [len(feature["input_ids"]) for feature in features] == lengths
        assert example.fields["chunks"] == lengths
        return {"tokens": sum(lengths)}


def documents(*windows):
    return [
        Example({"chunks": lengths}, number, f"docs.jsonl:{number}")
        for number, lengths in enumerate(windows, 1)
    ]


def test_batches_are_alike_and_no_larger_than_asked():
    lengths = [3, 10, 1, 4, 7, 30]
    found = [[lengths[i] for i in batch] for batch in batches(lengths, 14)]
    assert found == [[30], [10], [7, 4], [3, 1]]


def test_answers_come_in_the_order_of_the_input_with_all_their_windows():
    model, sink = Lengths(), Sink()
    rng = np.random.default_rng(0)
    windows = [rng.integers(1, 40, rng.integers(1, 4)).tolist() for _ in range(300)]
    counts = answer_all(documents(*windows), model, sink, batch_tokens=64)
    answers = [answer for group in sink.groups for answer in group]
    assert [answer["id"] for answer in answers] == list(range(1, 301))
    assert [answer["tokens"] for answer in answers] == [sum(each) for each in windows]
    assert [answer["chunks"] for answer in answers] == [len(each) for each in windows]
    assert all(max(batch) * len(batch) <= 64 for batch in model.batches)
    assert (counts.documents, counts.chunks) == (300, sum(map(len, windows)))
    assert counts.tokens == sum(map(sum, windows))
    assert counts.long == sum(len(each) > 1 for each in windows)


@pytest.mark.parametrize(("seconds", "told"), [(0.0, True), (60.0, False)])
def test_progress_is_told_when_a_line_of_it_is_due(seconds, told):
    lines = []
    progress = lambda counts: lines.append(counts.tokens), seconds
    answer_all(documents([3], [5]), Lengths(), Sink(), batch_tokens=64, progress=progress)
    assert lines[-1:] == ([8] if told else [])


def test_few_documents_wait_for_their_answers():
    sink, waiting = Sink(), []

    def source():
        for example in documents(*[[1]] * 2000):
            waiting.append(example.id - len(sink.ids()))
            yield example

    answer_all(source(), Lengths(), sink, batch_tokens=1000)
    assert max(waiting) <= answering.LOOKAHEAD_DOCUMENTS
    answer_all(documents(*[[100]] * 50), Lengths(), sink := Sink(), batch_tokens=100)
    assert max(map(len, sink.groups)) == answering.LOOKAHEAD_BATCHES


def test_an_endless_input_takes_constant_memory():
    def source():
        for number in range(1, 30_001):
            yield Example({"chunks": [3]}, number, "docs.jsonl:1")
            if number == 2_000:
                tracemalloc.start()

    class Nowhere(Sink):
        def write(self, answers):
            pass

    class Fast(Lengths):
        def outputs(self, features):
            return [{}] * len(features)

        def decode(self, outputs, example, features):
            return {}

    try:
        answer_all(source(), Fast(), Nowhere(), batch_tokens=4096)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_resumed_run_forms_the_groups_and_batches_of_the_whole_one():
    windows = [[n % 37 + 1, n % 11 + 1] if n % 5 else [] for n in range(400)]
    whole, model = Sink(), Lengths()
    skip = {"batch_tokens": 64, "refuse": lambda error, example: None}
    answer_all(documents(*windows), model, whole, **skip)
    for kept in (1, 7, len(whole.groups) - 1, len(whole.groups)):
        done = [answer["id"] for group in whole.groups[:kept] for answer in group]
        rest, again = Sink(done), Lengths()
        counts = answer_all(documents(*windows), again, rest, **skip)
        assert rest.groups == whole.groups[kept:]
        assert again.batches == model.batches[len(model.batches) - len(again.batches) :]
        assert counts.resumed == len(done)


@pytest.mark.parametrize(
    ("done", "what"), [([1, 7], r"for 7, the input has 2 \(docs.jsonl:2\)"), ([1, 2, 3], "its end")]
)
def test_resuming_with_another_input_is_refused(done, what, tmp_path):
    for resume in (False, True):
        sink = AnswerFile(tmp_path / "a.jsonl", made_by={}, resume=resume)
        if not resume:
            sink.write([{"id": id} for id in done])
            sink.close()
    with pytest.raises(UserError, match=what):
        answer_all(documents([1], [2]), Lengths(), sink, batch_tokens=100)
    sink.close()


def test_numbers_that_are_not_finite_are_no_answer():
    class Broken(Lengths):
        def outputs(self, features):
            said = {"start": np.zeros(2), "end": np.array([0, np.nan])}
            return [said] * len(features)

    with pytest.raises(ModelError, match="docs.jsonl:1: the model answers with numbers"):
        answer_all(documents([1]), Broken(), Sink(), batch_tokens=100)


@pytest.mark.parametrize(
    "keys",
    [
        [3, 4, 5, 9, 10, 2, 1, 12, -4],
        ["a", "b", "7", "007", "1e3", str(1 << 80), 1 << 90],
        [*range(100), *map(str, range(200, 300, 3)), *"xyz", *range(201, 300, 3), 99_999],
    ],
)
def test_an_id_that_comes_twice_is_found_and_no_other(keys, monkeypatch):
    monkeypatch.setattr(SeenIds, "RECENT", 4)
    seen = SeenIds()
    assert all(seen.add(key) for key in keys)
    assert not any(seen.add(key) for key in keys)
    assert not any(seen.add(str(key)) for key in keys)


def test_a_pipe_that_pauses_gets_the_answers_that_wait():
    go = threading.Event()

    def records(on_error):
        yield from documents([1], [2])
        go.wait(5)
        yield from documents([3])

    found = []
    for item in prefetch(records, None, patience=0.05):
        found.append(item and item.fields["chunks"][0])
        if item is None:
            go.set()
    assert found[:3] == [1, 2, None]
    assert found[3] == 3


def test_errors_of_a_pipe_reach_the_reader_in_their_order():
    def records(on_error):
        yield from documents([1])
        on_error(DataError("stdin:2: not JSON"), b"{")
        yield from documents([2])
        raise DataError("stdin: gzip data cut off")

    seen = []

    def bad(error, raw):
        seen.append((str(error), raw, threading.current_thread().name))

    with pytest.raises(DataError, match="cut off"):
        seen.extend(item.id for item in prefetch(records, bad, patience=5))
    assert seen == [1, ("stdin:2: not JSON", b"{", threading.current_thread().name), 1]


def test_the_thread_of_a_pipe_ends_with_its_reader():
    before = threading.active_count()
    stream = prefetch(lambda on_error: iter(documents(*[[1]] * 1000)), None)
    next(stream)
    assert threading.active_count() == before + 1
    stream.close()
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() == before


def test_answers_are_counted_by_class_and_numbers_are_not():
    counts = Counts()
    for label in (["a", "b"], ["b"], [], "c", 1.5):
        counts.add({"label": label, "chunks": 1}, [{"input_ids": [0], "tokens": 3}])
    assert counts.labels == {"a": 1, "b": 2, "no class": 1, "c": 1}
    assert (counts.documents, counts.lengths, counts.cut, counts.long) == (5, 15, 0, 0)
    counts.add({"chunks": 2, "truncated": True, "unread_tokens": 7}, [{"tokens": 9}] * 2)
    assert (counts.lengths, counts.cut, counts.unread, counts.long) == (24, 1, 7, 1)
