"""WikiHop (Welbl et al. 2018, TACL): an answer is right if it is the gold one letter by letter."""


def accuracy(found: str | None, gold: str) -> float:
    """1.0 or 0.0 for a question; None, no answer, is wrong."""
    return float(found == gold)
