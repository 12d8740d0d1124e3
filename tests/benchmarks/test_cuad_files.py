from scored import examples


def test_published_contracts_are_read_with_their_categories(shared_data):
    found = examples("cuad", shared_data / "cuad_v1_layout" / "train.json.gz")
    assert len(found) == 720
    assert sum(bool(example.fields["answers"]) for example in found) == 365
    first = found[0].fields
    assert first["category"] == "Agreement Date"
    assert f'related to "{first["category"]}"' in first["question"]
    for example in found:
        for answer in example.fields["answers"]:
            context = example.fields["context"]
            assert context.startswith(answer["text"], answer["answer_start"])
    assert max(len(example.fields["answers"]) for example in found) > 5
