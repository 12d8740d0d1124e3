"""Answers of a pipeline, written to a sink."""

from ldt.inference.stream import Answering, LocalExecutor, Pipeline


def answer_all(records, model, sink, *, batch_tokens, executor=None, agreement=None, **options):
    """Write the answers of all records, group by group; the counts of the run."""
    if executor is None:
        executor = LocalExecutor(
            Answering(model, batch_tokens, agreement.exact if agreement else None)
        )
    pipeline = Pipeline(model, executor, batch_tokens, agreement=agreement, **options)
    for group in pipeline.answer(records, sink if hasattr(sink, "partial") else None):
        sink.write(group)
    return pipeline.counts
