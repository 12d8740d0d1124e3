"""Property tests: the same cases in every usual run, ten times as many of fresh seeds at night.

The fast tier tries a quarter of the slow one's cases. ``-m nightly`` runs all tests with
``@given``, besides those that bear the mark. What fails there prints the case; it becomes an
``@example`` of the test, which the usual run then tries as well.
"""

from math import ceil

import pytest
import torch
from hypothesis import HealthCheck, Phase, register_random, settings
from hypothesis.internal.conjecture import providers

NIGHTLY = "nightly"  # the mark, and the profile of hypothesis
FAST, SLOW = "fast", "slow"  # profiles of the other tiers
MORE = {FAST: 0.25, SLOW: 1, NIGHTLY: 10}  # times as many cases

COMMON = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}
for _tier in (FAST, SLOW):
    settings.register_profile(_tier, derandomize=True, **COMMON)
settings.register_profile(NIGHTLY, derandomize=False, print_blob=True, **COMMON)

# Hypothesis draws numbers that it finds in the modules of this folder that are imported, so a test
# would have other cases in a process that has loaded another file before it.
providers._get_local_constants = providers.Constants


class _OfTorch:
    """Torch's generator as hypothesis seeds it before each case: one fails alone as among others"""

    seed = staticmethod(torch.manual_seed)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


_of_torch = _OfTorch()  # hypothesis keeps no reference
register_random(_of_torch)


def cases(count, shrink=True, **more):
    """`hypothesis.settings` of a test: so many cases in a usual run; slow ones are not shrunk."""
    if not shrink:
        more["phases"] = [Phase.explicit, Phase.reuse, Phase.generate]
    times = MORE[settings.get_current_profile_name()]
    return settings(max_examples=ceil(count * times), **more)


def pytest_configure(config):
    tiers = {NIGHTLY: NIGHTLY, "not slow and not nightly": FAST}
    settings.load_profile(tiers.get(config.option.markexpr, SLOW))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    if config.option.markexpr == NIGHTLY:
        for item in items:
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
                item.add_marker(NIGHTLY)
