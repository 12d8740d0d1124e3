import pytest
from served import make_run

from ldt.serve.model import Served


@pytest.fixture(scope="session")
def runs(tiny_longformer, tiny_led, tmp_path_factory):
    """A function that gives the run folder of a task, made once."""
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def run(name):
        if name not in made:
            source = tiny_led if name == "summarization" else tiny_longformer
            made[name] = make_run(source, folder / name, name)
        return made[name]

    return run


@pytest.fixture(scope="session")
def classifier(runs):
    return Served(str(runs("classification")))
