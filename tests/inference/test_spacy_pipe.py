"""Runs of ldt as components of a pipeline of spaCy."""

import json
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from classified import make_run

import ldt
from ldt.errors import UserError
from ldt.model import LdtForTokenClassification, load, load_tokenizer

spacy = pytest.importorskip("spacy", reason="spaCy is not installed: pip install spacy")

ROOT = Path(__file__).parents[2]
LONG = "the first party and the other party of this agreement " * 30  # more than one chunk


@pytest.fixture(scope="module", autouse=True)
def registered():
    """The entry points of pyproject.toml, which an installed package has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    points = project["entry-points"]["spacy_factories"]
    assert points.keys() == {"ldt_ner", "ldt_textcat"}
    for name, value in points.items():
        EntryPoint(name, value, "spacy_factories").load()


@pytest.fixture(scope="module")
def classifier(tiny_longformer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    make_run(tiny_longformer, folder)
    return str(folder)


@pytest.fixture(scope="module")
def tagger(tiny_longformer, tmp_path_factory):
    """A run that finds entities of two types in nearly every text."""
    import torch

    folder = tmp_path_factory.mktemp("tagger")
    torch.manual_seed(1)
    names = dict(enumerate(["O", "B-ORG", "I-ORG", "B-DATE", "I-DATE"]))
    labels = {name: number for number, name in names.items()}
    model = load(tiny_longformer, LdtForTokenClassification, id2label=names, label2id=labels)
    for weight in model.parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=0.7)
    model.save_pretrained(folder)
    load_tokenizer(tiny_longformer, model.config).save_pretrained(folder)
    (folder / "recipe.yaml").write_text(
        "task: {name: token_classification}\nmodel: {path: m}\n"
        "data: {train: t.jsonl, max_length: 64}\n"
    )
    return str(folder)


def test_textcat_gives_the_scores_of_ldt(classifier):
    nlp = spacy.blank("en")
    nlp.add_pipe("ldt_textcat", config={"folder": classifier})
    texts = ["this agreement ends", "the party of", LONG]
    docs = list(nlp.pipe(texts, batch_size=2))
    expected = ldt.load(classifier)(texts)
    assert [doc.cats for doc in docs] == [answer["scores"] for answer in expected]
    assert expected[0]["scores"] != expected[1]["scores"]
    assert [doc._.ldt["label"] for doc in docs] == [answer["label"] for answer in expected]
    assert docs[2]._.ldt["chunks"] > 1
    assert nlp(texts[0]).cats == expected[0]["scores"]


def test_ner_gives_the_entities_of_ldt_in_characters_or_whole_tokens(tagger):
    nlp = spacy.blank("en")
    nlp.add_pipe("ldt_ner", config={"folder": tagger})
    doc = nlp(LONG)
    answer = ldt.load(tagger)(LONG)
    assert doc._.ldt["entities"] == answer["entities"]
    found = [(ent.start_char, ent.end_char, ent.label_) for ent in doc.ents]
    assert len(found) > 3
    assert found == [(e["start"], e["end"], e["label"]) for e in answer["entities"]]
    assert max(end for _, end, _ in found) > len(LONG) * 0.9
    (glued,) = nlp.pipe(["the first-party"])  # spaCy parts at the hyphen, or not: whole tokens
    assert all(ent.text for ent in glued.ents)


def test_entities_of_other_components_stay_where_ldt_has_none(tagger):
    nlp = spacy.blank("en")
    ruler = nlp.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "WORD", "pattern": "zebra"}])
    text = "zebra " + LONG
    nlp.add_pipe("ldt_ner", config={"folder": tagger})
    labels = {ent.label_ for ent in nlp(text).ents}
    own = {each["label"] for each in ldt.load(tagger)(text)["entities"]}
    first = min(each["start"] for each in ldt.load(tagger)(text)["entities"])
    assert labels == own | ({"WORD"} if first > 0 else set())


def test_a_pipeline_is_kept_on_disk_with_its_folder(classifier, tmp_path):
    nlp = spacy.blank("en")
    nlp.add_pipe("ldt_textcat", config={"folder": classifier, "options": {"precision": "fp32"}})
    nlp.to_disk(tmp_path / "pipeline")
    again = spacy.load(tmp_path / "pipeline")
    assert again("this agreement").cats == nlp("this agreement").cats
    assert json.dumps(again.get_pipe_config("ldt_textcat")).count(classifier) == 1


def test_a_run_of_another_task_is_refused_before_it_is_loaded(classifier, tagger):
    nlp = spacy.blank("en")
    with pytest.raises(UserError, match=r"answers classification; ldt_ner takes token_classif"):
        nlp.add_pipe("ldt_ner", config={"folder": classifier})
    with pytest.raises(UserError, match="answers token_classification"):
        nlp.add_pipe("ldt_textcat", config={"folder": tagger})
