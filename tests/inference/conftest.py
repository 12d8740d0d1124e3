import logging

import pytest
from classified import make_run


@pytest.fixture(scope="module")
def fine_tuned(tiny_longformer, tmp_path_factory):
    """A run folder whose classifier answers differently for different texts."""
    folder = tmp_path_factory.mktemp("run")
    make_run(tiny_longformer, folder)
    return folder


@pytest.fixture
def log(caplog):
    """What was told; ``log.messages`` in the order of telling."""
    caplog.set_level(logging.INFO, "ldt")
    return caplog
