"""Counts and times of the server as Prometheus reads them, by the names of TEI 1.9.

The text format is written by hand: the usual client library gives counters other names.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence

# TEI's 35 bounds, from 15 microseconds to 14 seconds, and further ones up to an hour.
SECONDS = tuple(1.5e-5 * 1.5**step for step in range(49))
SIZES = tuple(float(2**step) for step in range(25))  # tokens, and chunks of a batch

_COUNTERS = {
    "te_request_count": "Requests, by whether they hold one document or several.",
    "te_request_success": "Requests with an answer.",
    "te_request_failure": "Requests without, by what was wrong.",
    "te_predict_count": "Documents taken.",
    "te_predict_success": "Documents with an answer.",
}
_PARTS = {
    "duration": "Seconds from arrival to answer.",
    "tokenization_duration": "Seconds until a document was tokenized.",
    "queue_duration": "Seconds in which it waited for the model.",
    "inference_duration": "Seconds from its first batch to its answer.",
}
_HISTOGRAMS: dict[str, tuple[str, Sequence[float]]] = {
    **{f"te_request_{part}": (meaning, SECONDS) for part, meaning in _PARTS.items()},
    **{f"te_predict_{part}": (meaning, SECONDS) for part, meaning in _PARTS.items()},
    "te_request_input_length": ("Tokens of a document, in all its chunks.", SIZES),
    "te_batch_next_size": ("Chunks of a batch.", SIZES),
    "te_batch_next_tokens": ("Tokens of a batch.", SIZES),
}


class _Histogram:
    """Number of values up to each bound, and their sum."""

    def __init__(self, bounds: Sequence[float]):
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str) -> Iterator[str]:
        total = 0
        for bound, count in zip([*self.bounds, None], self.counts, strict=True):
            total += count
            shown = "+Inf" if bound is None else f"{bound:g}"
            yield f'{name}_bucket{{le="{shown}"}} {total}'
        yield f"{name}_sum {self.sum:.9g}"
        yield f"{name}_count {total}"


class Metrics:
    """Counts of events since the start; any thread may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, int]] = {name: {} for name in _COUNTERS}
        self._times = {name: _Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}

    def count(self, name: str, number: int = 1, **label: str) -> None:
        """Add to a counter; of its label, at most one, the values are few and known."""
        key = "".join(f'{{{name}="{value}"}}' for name, value in label.items())
        with self._lock:
            self._counts[name][key] = self._counts[name].get(key, 0) + number

    def observe(self, **values: float) -> None:
        """Add a value to each of some histograms."""
        with self._lock:
            for name, value in values.items():
                self._times[name].add(value)

    def text(self, waiting: int) -> str:
        """All of it, and the documents that have no answer yet, in the text format."""
        lines = []
        with self._lock:
            for name, meaning in _COUNTERS.items():
                lines += [f"# HELP {name} {meaning}", f"# TYPE {name} counter"]
                lines += [f"{name}{key} {n}" for key, n in sorted(self._counts[name].items())]
            for name, (meaning, _) in _HISTOGRAMS.items():
                lines += [f"# HELP {name} {meaning}", f"# TYPE {name} histogram"]
                lines += self._times[name].lines(name)
        name = "te_queue_size"
        lines += [f"# HELP {name} Documents without an answer.", f"# TYPE {name} gauge"]
        return "\n".join([*lines, f"{name} {waiting}"]) + "\n"
