"""Marks that leave the fast tier some cases of a test with parameters; the others are slow.

``@pytest.mark.fast("id", ...)`` names the cases, ``@pytest.mark.covering(strength)`` takes a
covering array: cases that together have each combination of values of so many parameters.
"""

from collections import defaultdict
from itertools import combinations

import pytest


def covering(cases, strength):
    """Places of few cases that have all combinations that ``cases`` have of ``strength`` values.

    Args:
        cases: mappings of a parameter to its value.
    """
    missing = {
        place: set(combinations(sorted(case.items()), strength)) for place, case in enumerate(cases)
    }
    kept = []
    while any(missing.values()):
        best = max(missing, key=lambda place: len(missing[place]))
        had = missing.pop(best)
        kept.append(best)
        for combination in missing.values():
            combination -= had
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
        if mark := cases[0].get_closest_marker("covering"):
            values = [{k: repr(x) for k, x in item.callspec.params.items()} for item in cases]
            places = covering(values, *mark.args)
            kept = [cases[place] for place in places]
        elif mark := cases[0].get_closest_marker("fast"):
            kept = [item for item in cases if item.callspec.id in mark.args]
            if whole and {item.callspec.id for item in kept} < set(mark.args):
                raise pytest.UsageError(f"{name}: no case is called {mark.args}")
        for item in cases:
            if item not in kept:
                item.add_marker("slow")
