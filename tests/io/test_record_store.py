import errno
import gc
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from features_of import feature
from torch.utils.data import DataLoader

from ldt.data.features import Features, Items, Reshuffled
from ldt.errors import DataError, ResourceError
from ldt.io.record_store import LONG
from ldt.io.records import Example, read
from ldt.training.dataset_cache import Examples

DEEP = '{"text": "x", "more": ' + "[" * 800 + "]" * 800 + "}\n"


def example(number, text="short", **more):
    return Example({"text": text} | more, number, f"t.jsonl:{number}", "/data")


def size(items):
    return os.fstat(items._file.handle).st_size


def open_files():
    return len(os.listdir("/proc/self/fd"))


def in_memory():
    return sum(isinstance(value, Example) for value in gc.get_objects())


def test_examples_are_read_as_they_were_written_in_any_order():
    written = [
        example(1),
        example("two", "ä\udcff\0\u2028" * LONG, label=None, end=1.5),
        Example({}, 3, "stdin:3"),
        example(4, words=["a", {"b": (1, 2)}], context="y" * LONG),
    ]
    found = Examples(iter(written))
    assert len(found) == 4
    assert list(found) == written
    for index in (3, 1, 0, 1, -2, np.int64(2)):
        assert found[index] == written[index]
        assert found[index].folder == written[index].folder
        assert list(found[index].fields) == list(written[index].fields)  # in this order
    with pytest.raises(IndexError):
        found[4]
    assert list(Examples()) == []


def test_examples_are_in_a_file_without_a_name(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, held = open_files(), in_memory()
    found = Examples(example(n, f"{n}" * 10_000) for n in range(10, 60))
    assert os.listdir(tmp_path) == []
    assert f"{tmp_path}/" in os.readlink(f"/proc/self/fd/{found._file.handle}")
    assert size(found) > 50 * 20_000
    assert in_memory() == held
    assert found._index.nbytes == 50 * 24
    assert open_files() == before + 1
    part = found.only([1, 2])
    del found
    gc.collect()
    assert part[1].fields["text"] == "12" * 10_000
    del part
    gc.collect()
    assert open_files() == before


def test_a_part_has_its_order_and_shares_the_file():
    found = Examples(map(example, range(10)))
    part = found.only([7, 2, 2])
    assert [each.id for each in part] == [7, 2, 2]
    assert [each.id for each in part.only(np.array([1]))] == [2]
    assert part._file is found._file
    assert list(found.only([])) == []


def test_a_long_text_that_the_next_one_has_too_is_written_once():
    texts = ["a" * 50_000] * 40 + ["b" * 50_000] * 40
    found = Examples(example(n, text, asked=f"{n}?") for n, text in enumerate(texts))
    assert 100_000 < size(found) < 120_000
    assert [each.fields["text"] for each in found] == texts
    chunks = Features(feature(3, context=text) for text in texts)
    assert 100_000 < size(chunks) < 140_000
    assert [each["context"] for each in chunks] == texts


def shuffle(example, generator):
    return example


def spell(example):
    return [{"input_ids": [ord(letter) for letter in example.fields["text"]]}]


class Together:
    """An item of each of several sets, as one."""

    def __init__(self, *sets):
        self.sets = sets

    def __len__(self):
        return len(self.sets[0])

    def __getitem__(self, index):
        return [items[index] for items in self.sets], os.getpid()


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_processes_that_load_data_read_the_file(context):
    long = [feature(n + 1, document=n, context="x" * 10_000) for n in range(8)]
    texts = Examples(example(n, f"{n}") for n in range(8))
    features = Features(long)
    reshuffled = Reshuffled(texts.only(range(7, -1, -1)), range(8), shuffle, spell, 0)
    sets = Together(features.only([5, 3, *range(6)]), Items(features), reshuffled)
    loader = DataLoader(sets, 2, num_workers=2, collate_fn=list, multiprocessing_context=context)
    found = [one for batch in loader for one in batch]
    for index, (items, process) in enumerate(found):
        assert process != os.getpid()
        assert repr(items) == repr(sets[index][0])
    assert len(found) == 8
    assert len({process for _, process in found}) == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_an_error_of_resources(code, monkeypatch):
    class Full:
        def write(self, data):
            raise OSError(code, "No space left on device")

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    line = f"^{tempfile.gettempdir()}: full after 0 bytes of documents; TMPDIR can name another"
    with pytest.raises(ResourceError, match=line):
        Examples([example(1)])
    with pytest.raises(ResourceError, match="bytes of encoded documents"):
        Features([feature(3)])


def test_a_disk_that_fails_is_an_error_of_a_line(monkeypatch):
    found = Examples([example(1, "x" * 10_000), example(2)])
    os.truncate(f"/proc/self/fd/{found._file.handle}", 9_000)
    line = "^/.*: a temporary file was cut off or changed; [^\n]*$"
    with pytest.raises(ResourceError, match=line):
        found[0]

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(ResourceError, match="^/.*: Input/output error; the disk fails[^\n]*$"):
        found[1]


def test_damaged_data_end_the_writing_with_their_place(tmp_path, request):
    limit = sys.getrecursionlimit()  # which torch's compiler raises for good
    request.addfinalizer(lambda: sys.setrecursionlimit(limit))
    sys.setrecursionlimit(1000)
    path, before = tmp_path / "t.jsonl", open_files()
    path.write_text('{"text": "one"}\n{"text": "two"\n')
    with pytest.raises(DataError, match="t.jsonl:2: not JSON"):
        Examples(read(path))
    path.write_text('{"text": "one"}\n' + DEEP)
    assert len(list(read(path))) == 2  # Python reads more levels than it pickles
    with pytest.raises(DataError, match="t.jsonl:2: nested too deep$"):
        Examples(read(path))
    gc.collect()
    assert open_files() == before


WRITER = """
import itertools, signal
from ldt.io.records import Example
from ldt.training.dataset_cache import Examples

# Also where the tests run in the background of a shell, which ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)

def endless():
    for number in itertools.count():
        if number == 1000:
            print("writing", flush=True)
        yield Example({"text": "x" * 10_000}, number, "")

held = Examples(itertools.islice(endless(), 10))
Examples(endless())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_process_that_ends_while_it_writes(number, tmp_path):
    root = Path(__file__).parents[2]
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(root)}
    with subprocess.Popen(
        [sys.executable, "-c", WRITER],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(number)
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []
