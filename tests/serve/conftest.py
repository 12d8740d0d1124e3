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


@pytest.fixture(scope="session")
def serve(runs):
    """A function that gives the running server of a task, the same one each time."""
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    pytest.importorskip("starlette", reason="starlette is not installed")
    from serving import running

    open_servers, made = [], {}

    def serve(name):
        if name not in made:
            context = running(Served(str(runs(name))))
            made[name] = context.__enter__()
            open_servers.append(context)
        return made[name]

    yield serve
    for context in open_servers:
        context.__exit__(None, None, None)
