import pytest
from exported import make_run

from ldt import cli


@pytest.fixture(scope="session")
def exported(tokenizer_folder, tmp_path_factory):
    """Function of a task and a format: (folder of the run, of what is exported of it)."""
    made = {}

    def get(task, format="onnx"):
        if (task, format) not in made:
            folder = tmp_path_factory.mktemp(task)
            run = make_run(tokenizer_folder, folder / "run", task)
            with pytest.raises(SystemExit) as ended:
                cli.main(["export", str(run), str(folder / format), "--format", format])
            assert ended.value.code == 0
            made[task, format] = run, folder / format
        return made[task, format]

    return get
