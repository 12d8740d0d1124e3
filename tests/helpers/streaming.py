"""Answers of a pipeline, written to a sink."""

from ldt.inference.stream import Answering, Pipeline


class Sink:
    """A sink in memory, as `ldt.inference.answer_file.AnswerFile`.

    Args:
        done: ids that have their answers.
    """

    def __init__(self, done=()):
        self.left, self.groups, self.count = [*done], [], 0

    def skip(self, id):
        return self.left[:1] == [id] and bool(self.left.pop(0))

    def require_no_more(self, place):
        assert not self.left, place

    def write(self, answers):
        self.groups.append(answers)

    def ids(self):
        return [answer["id"] for group in self.groups for answer in group]


def answer_all(records, model, sink, *, batch_tokens, executor=None, agreement=None, **options):
    """Write the answers of all records, group by group; the counts of the run."""
    if executor is None:
        executor = Answering(model, batch_tokens, agreement.exact if agreement else None)
    pipeline = Pipeline(model, executor, batch_tokens, agreement=agreement, **options)
    for group in pipeline.answer(records, sink if hasattr(sink, "skip") else None):
        sink.write(group)
    return pipeline.counts
