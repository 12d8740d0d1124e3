import json

import pytest
from classified import lines_of, read, write

from ldt.attention import matmul
from ldt.errors import DataError, UserError
from ldt.inference.generate import CharacterPredictor
from ldt.inference.predict import predict
from ldt.inference.predictor import EncoderPredictor
from ldt.model import precision


@pytest.fixture
def gpu(monkeypatch):
    """Stands for a GPU with bf16: switches what is chosen for the device."""

    def switch(there):
        found = "bf16" if there else "fp32"
        monkeypatch.setattr(precision, "automatic", lambda device: found)

    return switch


def unfinished(folder, tmp_path, **options):
    """Answer one document of two, the second of which is broken; mend it, and return the paths."""
    first, second = lines_of(2)
    target, source = str(tmp_path / "answers.jsonl"), str(tmp_path / "docs.jsonl")
    with pytest.raises(DataError):
        predict(
            write(tmp_path / "docs.jsonl", [first, "{"]),
            model=str(folder),
            output=target,
            **options,
        )
    write(tmp_path / "docs.jsonl", [first, second])
    return source, target


def precision_of(tmp_path, name=".answers.jsonl.run.json"):
    return json.loads((tmp_path / name).read_text())["precision"]


def test_on_a_cpu_the_default_answers_as_fp32_byte_by_byte_and_says_nothing(
    fine_tuned, tmp_path, log
):
    source, files = write(tmp_path / "docs.jsonl", lines_of(5)), []
    for name, options in (("auto", {}), ("fp32", {"precision": "fp32"})):
        target = tmp_path / f"{name}.jsonl"
        # One library, whichever the clock chose for a test before this one.
        with matmul.chosen({"linear": False, "bmm": False}):
            predict(source, model=str(fine_tuned), output=str(target), device="cpu", **options)
        files.append(target.read_bytes())
        assert precision_of(tmp_path, f".{name}.jsonl.run.json") == "fp32"
    assert files[0] == files[1]
    assert not [line for line in log.messages if "fp32" in line]


@pytest.mark.parametrize(("began", "kept"), [(False, "fp32"), (True, "bf16")])
def test_a_file_keeps_the_precision_it_was_begun_in(fine_tuned, tmp_path, log, gpu, began, kept):
    gpu(began)
    source, target = unfinished(fine_tuned, tmp_path)
    gpu(not began)
    log.clear()
    predict(source, model=str(fine_tuned), output=target, resume=True)
    assert len(read(target)) == 2
    assert precision_of(tmp_path) == kept
    said = [line for line in log.messages if line.startswith("bf16")]
    assert said[:1] == (["bf16: as the answers that are there already"] if began else [])


def test_another_precision_than_that_of_the_file_is_refused(fine_tuned, tmp_path, gpu):
    gpu(True)
    source, target = unfinished(fine_tuned, tmp_path)
    with pytest.raises(UserError, match="made with another precision; use the same"):
        predict(source, model=str(fine_tuned), output=target, resume=True, precision="fp32")
    predict(source, model=str(fine_tuned), output=target, resume=True, precision="bf16")
    assert precision_of(tmp_path) == "bf16"


def test_a_character_model_samples_in_fp32_on_a_gpu_too(gpu):
    gpu(True)
    assert EncoderPredictor.automatic("cpu") == "bf16"
    assert CharacterPredictor.automatic("cpu") == "fp32"
