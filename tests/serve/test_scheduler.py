"""Documents of many callers, their answers and their order."""

import threading
import time
from concurrent.futures import wait

import numpy as np
import pytest

from ldt.errors import DataError, ResourceError, UserError
from ldt.io.records import Example
from ldt.serve.model import RequestOptions, Served
from ldt.serve.scheduler import ClosedError, FullError, LocalReplica, Scheduler


class Counting:
    """A model whose chunks are numbers: it notes its batches, and waits where it is told to."""

    max_length = 100

    def __init__(self):
        self.batches, self.held, self.begun = [], threading.Event(), threading.Event()
        self.held.set()

    def encode(self, example):
        if example.fields.get("bad"):
            raise DataError(f"{example.where}: bad")
        sizes = example.fields["sizes"]
        return [{"input_ids": [example.id] * size} for size in sizes]

    def outputs(self, features):
        self.batches.append([each["input_ids"][0] for each in features])
        self.begun.set()
        assert self.held.wait(30)
        if "poison" in self.batches[-1]:
            raise ValueError("a bug")
        if len(features) * max(len(each["input_ids"]) for each in features) > 300:
            raise ResourceError("out of memory")
        return [{"logits": np.zeros(1) + len(each["input_ids"])} for each in features]

    def decode(self, outputs, example, features):
        return {"answer": sum(int(each["logits"][0]) for each in outputs)}


@pytest.fixture
def counting():
    return Counting()


@pytest.fixture
def make(counting):
    made = []

    def make(model=counting, batch_tokens=100, places=512):
        made.append(Scheduler([LocalReplica(model)], batch_tokens=batch_tokens, places=places))
        return made[-1]

    yield make
    counting.held.set()
    for each in made:
        assert each.drain(30)


def document(name, *sizes, **fields):
    return Example({"sizes": sizes, **fields}, name, "input 1")


def test_short_documents_overtake_a_long_one_that_is_not_starved(counting, make):
    scheduler = make()
    counting.held.clear()
    first = scheduler.submit(counting, [document("first", 10)])
    assert counting.begun.wait(30)  # all that follow wait for it
    long = scheduler.submit(counting, [document("long", *[100] * 20)])
    shorts = []
    for n in range(30):
        shorts += scheduler.submit(counting, [document(n, 100)])
    while len(scheduler._waiting) < 31:
        time.sleep(0.001)
    late = []
    on_batch = scheduler.on_batch

    def more(chunks, tokens):
        """A further short one after each batch, for ever as it were."""
        if len(late) < 40:
            pushed = scheduler._number
            late.extend(scheduler.submit(counting, [document(f"late {len(late)}", 100)]))
            while scheduler._number == pushed:  # it waits for the model from then on
                time.sleep(0.001)
        on_batch(chunks, tokens)

    scheduler.on_batch = more
    counting.held.set()
    wait([*first, *shorts, *long], 30)
    order = [batch[0] for batch in counting.batches]
    assert order[1:31] == list(range(30))  # none of them waits for the long one
    # Due when 2,000 tokens were run: behind those that were due before, of which 19 came late.
    assert order.index("long") <= 51
    wait(late, 30)
    # Of those that came later each waited for a chunk or two, not for all twenty.
    last = len(order) - order[::-1].index("long")
    assert sum(str(name).startswith("late") for name in order[order.index("long") : last]) >= 15


def test_a_batch_has_as_many_chunks_as_fit_of_any_documents(counting, make):
    scheduler = make()
    counting.held.clear()
    futures = scheduler.submit(counting, [document("first", 1)])
    assert counting.begun.wait(30)
    futures += scheduler.submit(counting, [document("a", 30, 30, 30, 30), document("b", 20, 20)])
    futures += scheduler.submit(counting, [document("huge", 250)])
    while len(scheduler._waiting) < 3:
        time.sleep(0.001)
    counting.held.set()
    assert [each.result(30).answer["answer"] for each in futures] == [1, 120, 40, 250]
    assert counting.batches[1:] == [["b", "b", "a"], ["a", "a", "a"], ["huge"]]


@pytest.mark.parametrize(("others", "batch"), [(60, ["a", "c"]), (64, ["a"])])
def test_a_batch_passes_over_some_that_do_not_fit(counting, make, others, batch):
    scheduler = make(batch_tokens=200)
    counting.held.clear()
    futures = scheduler.submit(counting, [document("first", 1)])
    assert counting.begun.wait(30)
    futures += scheduler.submit(counting, [document(n, 110) for n in range(others)])
    futures += scheduler.submit(counting, [document("a", 90), document("c", 50, 101)])
    while len(scheduler._waiting) < others + 2:
        time.sleep(0.001)
    counting.held.set()
    wait(futures, 30)
    assert counting.batches[1] == batch


def test_whichever_model_is_free_takes_the_next_batch(counting):
    class Other(Counting):
        pass

    other = Other()
    counting.held.clear()
    scheduler = Scheduler(
        [LocalReplica(counting), LocalReplica(other)], batch_tokens=100, places=512
    )
    futures = scheduler.submit(other, [document("long", *[100] * 20)])
    futures += scheduler.submit(other, [document(n, 100) for n in range(10)])
    assert counting.begun.wait(30)
    late = time.monotonic() + 30
    while sum(each.done() for each in futures) < 10 and time.monotonic() < late:
        time.sleep(0.001)
    done = sum(each.done() for each in futures)
    counting.held.set()
    assert [each.result(30).answer["answer"] for each in futures] == [2000, *[100] * 10]
    assert done == 10  # all but what the held one has
    assert len(counting.batches) + len(other.batches) == 30
    assert scheduler.drain(30)


def test_a_document_that_is_cancelled_is_not_run_and_frees_its_place(counting, make):
    scheduler = make(places=2)
    counting.held.clear()
    (first,) = scheduler.submit(counting, [document("first", 10)])
    assert counting.begun.wait(30)
    (second,) = scheduler.submit(counting, [document("second", 10)])
    while not scheduler._waiting:
        time.sleep(0.001)
    with pytest.raises(FullError, match="2 of 2 places are taken"):
        scheduler.submit(counting, [document("third", 10)])
    assert second.cancel()
    assert scheduler.unanswered == 1
    (third,) = scheduler.submit(counting, [document("third", 10)])
    assert first.cancel()  # also one that runs: its answer is for nobody
    counting.held.set()
    assert third.result(30).answer == {"id": "third", "answer": 10, "chunks": 1}
    assert counting.batches == [["first"], ["third"]]


def test_places_are_taken_all_or_none(counting, make):
    scheduler = make(places=3)
    with pytest.raises(FullError):
        scheduler.submit(counting, [document(n, 1) for n in range(4)])
    assert scheduler.unanswered == 0
    assert len(scheduler.submit(counting, [document(n, 1) for n in range(3)])) == 3


def test_only_what_cannot_be_run_fails(counting, make):
    scheduler = make(batch_tokens=1000)
    counting.held.clear()
    futures = scheduler.submit(counting, [document("first", 1)])
    assert counting.begun.wait(30)
    futures += scheduler.submit(
        counting,
        [document("a", 10), document("poison", 20, 20), document("b", 30), document("c", 40)],
    )
    futures += scheduler.submit(counting, [document("bad", 1, bad=True)])
    while len(scheduler._waiting) < 4:
        time.sleep(0.001)
    counting.held.set()
    wait(futures, 30)
    errors = [type(each.exception(0)) for each in futures]
    assert errors == [type(None), type(None), ValueError, type(None), type(None), DataError]
    assert scheduler.unanswered == 0


def test_batches_become_smaller_where_the_memory_does_not_hold_them(counting, make, caplog):
    scheduler = make(batch_tokens=1000)
    (future,) = scheduler.submit(counting, [document("long", *[50] * 20)])
    assert future.result(30).answer["answer"] == 1000
    assert scheduler.fitting <= 500
    (future,) = scheduler.submit(counting, [document("huge", 400)])
    assert isinstance(future.exception(30), ResourceError)
    assert "out of memory; going on with batches of 500 tokens" in caplog.messages


def test_draining_answers_what_is_there_and_takes_nothing_more(counting, make):
    scheduler = make()
    counting.held.clear()
    futures = scheduler.submit(counting, [document(n, 100) for n in range(5)])
    assert counting.begun.wait(30)
    assert not scheduler.drain(0.01)
    assert not scheduler.alive
    with pytest.raises(ClosedError):
        scheduler.submit(counting, [document("late", 1)])
    counting.held.set()
    assert scheduler.drain(30)
    assert [each.result(0).answer["answer"] for each in futures] == [100] * 5


@pytest.mark.parametrize(
    ("task", "options", "what"),
    [
        ("squad", {"raw_scores": True}, "answers of squad have no scores by class"),
        ("classification", {"n_best": 2}, "classification has one answer a document"),
        ("summarization", {"passages": 2}, "answers of summarization are not explained"),
    ],
)
def test_what_a_task_does_not_have_is_refused(task, options, what, runs):
    with pytest.raises(UserError, match=what):
        Served(str(runs(task))).variant(RequestOptions.of(options))
