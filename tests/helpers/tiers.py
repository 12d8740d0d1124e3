"""Marks that leave the fast tier some cases of a test with parameters; the others are slow.

``@pytest.mark.fast("id", ...)`` names the cases, ``@pytest.mark.pairs`` takes those that together
have each pair of values of two parameters.
"""

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
def pytest_collection_modifyitems(config, items):
    whole = not any("::" in argument for argument in config.args)
    tests = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tests.items():
        kept = list(cases)
        if cases[0].get_closest_marker("pairs"):
            kept = [cases[place] for place in pairwise([item.callspec.indices for item in cases])]
        elif mark := cases[0].get_closest_marker("fast"):
            kept = [item for item in cases if item.callspec.id in mark.args]
            if whole and {item.callspec.id for item in kept} < set(mark.args):
                raise pytest.UsageError(f"{name}: no case is called {mark.args}")
        for item in cases:
            if item not in kept:
                item.add_marker("slow")
