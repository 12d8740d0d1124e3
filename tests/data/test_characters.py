"""Characters, bytes and their numbers; pieces of a text to train on and to evaluate on."""

import bz2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ldt.data import characters
from ldt.data.characters import Alphabet, Overlapping, Stretches, part_texts
from ldt.data.options import CharacterSection
from ldt.errors import DataError, ModelError, UserError
from ldt.model.loading import read_tokenizer

TEXT = "Straße,\n’t was\r\n漢字 𝄞\t\x00 <s>"


def test_the_characters_are_those_of_the_text_by_code_point():
    stream = "anarchism originated as a term of abuse the quick brown fox jumps over lazy dogs"
    alphabet = Alphabet.of_text(stream.encode(), "text8", "characters")
    assert alphabet.letters == " abcdefghijklmnopqrstuvwxyz"
    ids = alphabet.encode(stream.encode(), "text8")
    assert ids.dtype == np.uint8
    assert [alphabet.letters[i] for i in ids] == list(stream)


@pytest.mark.parametrize("chunk", [1, 3, 1 << 24])
def test_a_text_is_numbered_alike_in_pieces_of_any_size(chunk, monkeypatch):
    monkeypatch.setattr(characters, "CHUNK", chunk)
    raw = TEXT.encode()
    alphabet = Alphabet.of_text(raw, "x", "characters")
    ids = alphabet.encode(raw, "x")
    assert "".join(alphabet.letters[i] for i in ids) == TEXT
    assert alphabet.bytes_of(ids) == len(raw)


@pytest.mark.parametrize("vocabulary", ["characters", "bytes"])
def test_the_tokenizer_is_the_alphabet(vocabulary, tmp_path):
    raw = TEXT.encode()
    alphabet = Alphabet.of_text(raw, "x", vocabulary)
    alphabet.tokenizer().save_pretrained(tmp_path)
    tokenizer = read_tokenizer(tmp_path)
    assert Alphabet.of_tokenizer(tokenizer, tmp_path) == alphabet
    ids = alphabet.encode(raw, "x").tolist()
    assert tokenizer(TEXT).input_ids == ids
    assert tokenizer.decode(ids) == TEXT
    assert len(tokenizer) == len(alphabet)


def test_a_character_that_the_alphabet_lacks_is_named():
    alphabet = Alphabet.of_text(b"abc", "x", "characters")
    with pytest.raises(
        DataError, match=r"dev\.txt: the character 'é' \(U\+00E9\) is none of the 3"
    ):
        alphabet.encode("abé".encode(), "dev.txt")


def test_text_in_another_encoding_is_told_with_its_place():
    with pytest.raises(DataError, match=r"x: not UTF-8 at byte 4; task\.vocabulary=bytes"):
        Alphabet.of_text(b"ab c\xff d", "x", "characters")


def test_a_tokenizer_of_words_is_refused(tokenizer_folder):
    with pytest.raises(ModelError, match="characters or bytes"):
        Alphabet.of_tokenizer(read_tokenizer(tokenizer_folder), tokenizer_folder)


def section(**values):
    return CharacterSection(**values)


def test_a_text_is_parted_as_text8_is(tmp_path):
    (tmp_path / "text8").write_bytes(b"abcdefghij" * 100)
    data = section(train=str(tmp_path / "text8"), eval_fraction=0.05, test_fraction=0.05)
    _, parts = part_texts(data, "bytes")
    assert list(parts) == ["train", "eval", "test"]
    assert [len(ids) for ids in parts.values()] == [900, 50, 50]
    assert np.concatenate(list(parts.values())).tobytes() == b"abcdefghij" * 100


def test_files_are_laid_end_to_end_and_others_evaluated_on(tmp_path):
    (tmp_path / "a").write_bytes(b"one\n")
    (tmp_path / "b.bz2").write_bytes(bz2.compress(b"two"))
    (tmp_path / "dev").write_bytes(b"net")
    names = [str(tmp_path / name) for name in ("a", "b.bz2", "dev")]
    alphabet, parts = part_texts(section(train=names[:2], eval=names[2]), "characters")
    assert alphabet.letters == "\nenotw"
    assert "".join(alphabet.letters[i] for i in parts["train"]) == "one\ntwo"
    assert "".join(alphabet.letters[i] for i in parts["eval"]) == "net"


def test_text_that_cannot_be_used_is_told(tmp_path):
    (tmp_path / "short").write_bytes(b"abcdefgh")
    name = str(tmp_path / "short")
    with pytest.raises(DataError, match="1 bytes to eval on, 2 are needed"):
        part_texts(section(train=name, eval_fraction=0.1), "bytes")
    with pytest.raises(UserError, match="no such file, did you mean 'short'"):
        part_texts(section(train=str(tmp_path / "shrt")), "bytes")
    (tmp_path / "cut.bz2").write_bytes(bz2.compress(b"a" * 99)[:-9])
    with pytest.raises(DataError, match=r"cut\.bz2: the bz2 data are damaged or cut off"):
        part_texts(section(train=str(tmp_path / "cut.bz2")), "bytes")


@given(st.integers(2, 60), st.integers(2, 25), st.integers(0, 5), st.integers(0, 3))
def test_stretches_are_neighbours_that_begin_elsewhere_in_every_epoch(n, length, epoch, seed):
    stretches = Stretches(np.arange(n), length, seed)
    stretches.set_epoch(epoch)
    size = min(length, n)
    found = [feature["input_ids"] for feature in stretches]
    assert all(len(ids) == size for ids in found)
    flat = np.concatenate(found)
    assert (np.diff(flat) == 1).all()  # end to end, nothing twice
    assert n - len(flat) < 2 * size  # nearly all of the text
    for feature in stretches:
        assert feature["labels"][0] == -100
        assert (feature["labels"][1:] == feature["input_ids"][1:]).all()


def test_stretches_depend_on_seed_and_epoch_alone():
    def begin(seed, epoch):
        stretches = Stretches(np.arange(1000), 50, seed)
        stretches.set_epoch(3)
        stretches.set_epoch(epoch)
        return int(stretches[0]["input_ids"][0])

    assert begin(0, 1) == begin(0, 1)
    assert len({begin(seed, epoch) for seed in range(3) for epoch in range(5)}) > 8


@given(st.integers(2, 80), st.integers(2, 30), st.data())
def test_overlapping_sequences_score_every_character_once_and_the_first_never(n, length, data):
    step = data.draw(st.integers(1, length - 1))
    windows, scored = Overlapping(np.arange(n), length, step), []
    for number, feature in enumerate(windows):
        ids, labels = feature["input_ids"], feature["labels"]
        assert len(ids) == min(length, n)
        places = np.flatnonzero(labels != -100)
        assert (labels[places] == ids[places]).all()
        assert places[-1] == len(ids) - 1
        assert number == 0 or len(places) <= step
        assert places[0] >= (1 if number == 0 else length - step)
        scored += ids[places].tolist()
    assert scored == list(range(1, n))
