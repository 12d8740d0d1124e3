"""Products of parameters: ``@pytest.mark.pairs`` leaves the fast tier those cases of a test that
together have each pair of values of two parameters, and has the rest in the slow tier."""

from collections import defaultdict
from itertools import combinations

import pytest


def pairwise(cases):
    """Places of few cases, mappings of a parameter to its value, that have all pairs of values."""
    missing = {
        place: set(combinations(sorted(case.items()), 2)) for place, case in enumerate(cases)
    }
    kept = []
    while any(missing.values()):
        best = max(missing, key=lambda place: len(missing[place]))
        had = missing.pop(best)
        kept.append(best)
        for pairs in missing.values():
            pairs -= had
    return kept


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    tests = defaultdict(list)
    for item in items:
        if item.get_closest_marker("pairs"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        kept = pairwise([item.callspec.indices for item in cases])
        for place, item in enumerate(cases):
            if place not in kept:
                item.add_marker("slow")
