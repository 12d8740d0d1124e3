import os
import pickle
import tempfile

import numpy as np
import pytest
import torch
from features_of import feature

from ldt.data.features import Collator, Features, Items, Reshuffled
from ldt.io.records import Example


def test_features_are_given_back_as_they_were_written_in_any_order():
    written = [
        feature(5, document=0, labels=[0.0, 1.0]),
        feature(1, document=1, labels=[1.0, 1.0]),
        feature(4, document=1, token_type_ids=[0, 0, 1, 1]),
    ]
    found = Features(iter(written))
    for index in (2, 0, 1, 0, -1):
        back = found[index]
        assert {
            key: np.asarray(value).tolist() for key, value in back.items() if key != "flags"
        } == {key: value for key, value in written[index].items() if key != "flags"}
    assert found[0]["input_ids"].dtype == np.int32
    assert len(found) == len(list(found)) == 3
    assert found.lengths.tolist() == [5, 1, 4]
    assert found.documents.tolist() == [0, 1, 1]
    assert len(Features()) == 0


def test_features_with_a_mask_of_another_length_are_an_error():
    with pytest.raises(ValueError, match="global_attention_mask has the shape"):
        Features([feature(3) | {"global_attention_mask": [1]}])


def test_features_take_a_few_bytes_of_memory_a_token(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = Features(feature(10_000, document=number) for number in range(50))
    assert os.listdir(tmp_path) == []  # the file has no name, and so none is left behind
    inside = {key: value for key, value in vars(found).items() if key != "_file"}
    assert len(pickle.dumps(inside)) < 10_000
    assert os.fstat(found._file.handle).st_size == pytest.approx(50 * 10_000 * 5, rel=0.02)


def test_arrays_of_a_feature_are_kept_in_the_file_with_their_shape():
    offsets = np.arange(6, dtype=np.int32).reshape(3, 2)
    found = Features([feature(3, offsets=offsets, empty=np.empty((0, 2), np.int32)), feature(1)])
    assert np.array_equal(found[0]["offsets"], offsets)
    assert found[0]["offsets"].dtype == np.int32
    assert found[0]["empty"].shape == (0, 2)
    for key in ("input_ids", "offsets", "empty"):
        assert not found[0][key].flags.writeable
    assert "offsets" not in found[1]
    assert found[1]["input_ids"].tolist() == [40_000]


# items of a training


def test_the_features_of_a_document_are_one_item():
    found = Features([feature(1, 0), feature(2, 0), feature(3, 4), feature(1, 5), feature(2, 5)])
    assert list(found.by_document()) == [range(2), range(2, 3), range(3, 5)]
    items = Items(found)
    assert [[len(row["input_ids"]) for row in item] for item in items] == [[1, 2], [3], [1, 2]]
    assert list(Features().by_document()) == []


def shuffle(example, generator):
    letters = generator.permutation(list(example.fields["letters"]))
    return Example({"letters": "".join(letters)}, example.id, example.where)


def spell(example):
    return [{"input_ids": [ord(letter) for letter in example.fields["letters"]]}]


def test_a_reshuffled_set_is_new_in_each_epoch_and_the_same_in_each_run():
    documents = [Example({"letters": "abcdefgh"}, n, f"t.jsonl:{n}") for n in range(4)]

    def epochs(seed):
        items = Reshuffled(documents, [0, 3], shuffle, spell, seed)
        for epoch in range(3):
            items.set_epoch(epoch)
            yield from ([item[0]["input_ids"] for item in items])

    items = Reshuffled(documents, [0, 3], shuffle, spell, 0)
    assert [item[0]["document"] for item in items] == [0, 3]
    once = list(epochs(seed=1))
    assert once == list(epochs(seed=1)) != list(epochs(seed=2))
    assert {bytes(sorted(ids)) for ids in once} == {b"abcdefgh"}
    assert len(set(map(bytes, once))) == 6


# batches


class Head:
    """Takes these inputs."""

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        global_attention_mask=None,
        token_type_ids=None,
        positions=None,
        labels=None,
        example_ids=None,
        **kwargs,
    ):
        pass


def test_the_collator_pads_ids_masks_and_types_to_the_longest():
    batch = Collator(7, Head)(
        [
            feature(3, marked=2, token_type_ids=[0, 0, 1]),
            feature(1, token_type_ids=[1]),
        ]
    )
    assert {key: value.tolist() for key, value in batch.items()} == {
        "input_ids": [[40_000, 40_001, 40_002], [40_000, 7, 7]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "global_attention_mask": [[1, 1, 0], [1, 0, 0]],
        "token_type_ids": [[0, 0, 1], [1, 0, 0]],
    }
    assert {value.dtype for value in batch.values()} == {torch.int64}


@pytest.mark.parametrize(
    ("labels", "tensor"),
    [
        ([1, 0], torch.tensor([1, 0])),
        ([1.5, 2.0], torch.tensor([1.5, 2.0])),
        ([[1.0, 0.0], [0.0, 1.0]], torch.tensor([[1.0, 0.0], [0.0, 1.0]])),
        ([[4, 5, 6], [4]], torch.tensor([[4, 5, 6], [4, -100, -100]])),
    ],
)
def test_labels_of_every_problem_become_tensors_of_their_type(labels, tensor):
    features = [feature(3, labels=labels[0]), feature(1, labels=labels[1])]
    for source in (features, list(Features(features))):
        found = Collator(0, Head)(source)["labels"]
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor)


def test_what_a_batch_would_lose_is_an_error():
    full = feature(3, labels=1, token_type_ids=[0, 0, 0])
    for key in ("global_attention_mask", "labels", "token_type_ids"):
        with pytest.raises(ValueError, match=f"a feature without {key}"):
            Collator(0, Head)([full, {name: full[name] for name in full if name != key}])
    with pytest.raises(ValueError, match="a feature without global_attention_mask"):
        Collator(0, Head)([{"input_ids": [1]}])


def test_positions_are_filled_up_whether_or_not_there_are_any():
    rows = [feature(2, positions=[1]), feature(3, positions=[0, 2]), feature(1, positions=[])]
    batch = Collator(0, Head)(rows)
    assert batch["positions"].tolist() == [[1, -100], [0, 2], [-100, -100]]
    assert batch["positions"].dtype == torch.int64
    assert Collator(0, Head)(rows[2:])["positions"].shape == (1, 0)


def test_a_batch_says_which_rows_belong_to_a_document():
    batch = Collator(0, Head)([[feature(2), feature(3)], [feature(1)]])
    assert batch["example_ids"].tolist() == [0, 0, 1]
    assert batch["input_ids"].shape == (3, 3)
    assert "example_ids" not in Collator(0, Head)([feature(1)])


def test_a_key_that_the_head_does_not_take_is_an_error_unless_it_is_the_tasks_own():
    features = [feature(2, label=1)]
    with pytest.raises(ValueError, match="the head takes no label"):
        Collator(0, Head)(features)
    assert "label" not in Collator(0, Head, ["label"])(features)
