"""The contract of a task: few members, and nobody else asks for a task by its name."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import ValidationError
from recipe_data import LINES
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import ldt
from ldt.data.options import DataSection
from ldt.data.tokenization import add_tokens
from ldt.errors import DataError, ModelError
from ldt.io.records import Example
from ldt.tasks import TASKS
from ldt.tasks.base import Task

PACKAGE = Path(ldt.__file__).parent
OUTSIDE = [path for path in PACKAGE.rglob("*.py") if "tasks" not in path.parts]


def asks(node: ast.AST) -> bool:
    """True of a comparison with the name of a task, and of a probe of one for a member."""
    match node:
        case ast.Compare(left=left, comparators=others):
            sides = [each for each in (left, *others) if isinstance(each, ast.Attribute)]
            return any(
                each.attr == "name" and ast.unparse(each.value).split(".")[-1] == "task"
                for each in sides
            )
        case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[first, *_]):
            return ast.unparse(first).split(".")[-1] == "task"
    return False


def test_nothing_outside_of_the_tasks_asks_for_one_by_name_or_probes_it():
    assert len(OUTSIDE) > 100
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in OUTSIDE
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if asks(node)
    ]
    assert found == []


def test_a_task_has_no_more_than_25_members():
    own = {name for cls in Task.__mro__[:2] for name in vars(cls) if not name.startswith("_")}
    names = {name for name in own | set(Task.model_fields) if not name.startswith("model_")}
    assert 20 <= len(names) <= 25, sorted(names)


GOLD = {"label", "answer", "answers", "supporting_facts", "annotations", "evidence", "tags"}
GOLD |= {"summary", "clusters"}
ASKING = [name for name in LINES if TASKS[name].reads.kind == "examples"]


@pytest.fixture
def encode(tokenizer_folder):
    """Encode a line of a task's data, or another one, with labels by a model or without."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    add_tokens(tokenizer, {marker for name in ASKING for marker in TASKS[name].inputs.markers})

    def encode(task, config=None, **fields):
        line = LINES[task.name](2)
        if config is None:
            line = {key: value for key, value in line.items() if key not in GOLD}
        example = Example(line | fields, "d", "t.jsonl:1")
        return task.encode(example, tokenizer, data=DataSection(), max_length=200, config=config)

    return encode


@pytest.mark.parametrize("name", ASKING)
def test_golds_are_looked_at_where_there_is_a_config_alone(name, encode):
    task = TASKS[name]()
    examples = [Example(LINES[name](number), "d", "t.jsonl:1") for number in range(3)]
    learnt = task.learn(examples, DataSection())
    config = SimpleNamespace(max_decoder_position_embeddings=64, **learnt)
    labels = {*task.inputs.label_names}
    assert labels <= encode(task, config)[0].keys()
    assert not labels & encode(task)[0].keys()


@pytest.mark.parametrize("name", ASKING)
def test_the_recipe_names_the_roles_that_are_global(name, encode):
    roles = TASKS[name].inputs.roles
    marked = {
        tuple(role): encode(TASKS[name](global_attention=role))[0]["global_attention_mask"]
        for role in ([], *([role] for role in roles), roles)
    }
    assert not any(marked[()])
    assert all(marked[roles])
    assert sum(marked["cls",]) == marked["cls",][0] == 1
    assert sum(map(sum, marked.values())) == 2 * len(marked[roles])  # each token has one role


@pytest.mark.parametrize("name", ASKING)
def test_an_empty_set_and_an_empty_question_are_told(name, encode):
    task, data = TASKS[name](), DataSection(train="t.jsonl", eval="e.jsonl")
    with pytest.raises(DataError, match=f"^t.jsonl: (no|nothing to learn, 0) {task.reads.noun}"):
        task.learn([], data)
    with pytest.raises(DataError, match=f"^e.jsonl: no {task.reads.noun}$"):
        task.check([], data, SimpleNamespace(problem_type=None, id2label={}, label2id={}))
    if asked := [each for each in task.reads.query_fields if each not in ("candidates", "choices")]:
        with pytest.raises(DataError, match="^t.jsonl:1: the question is empty"):
            encode(task, **{asked[0]: " \n"})


@pytest.mark.parametrize("name", ASKING)
def test_a_document_is_encoded_without_a_list_of_the_vocabulary(name, encode, monkeypatch):
    first = encode(TASKS[name]())
    monkeypatch.setattr(PreTrainedTokenizerFast, "get_vocab", None)  # 10 ms for 30,000 tokens
    assert str(encode(TASKS[name]())) == str(first)


@pytest.mark.parametrize("name", [name for name in ASKING if TASKS[name].inputs.markers])
def test_a_vocabulary_without_the_markers_of_a_task_is_told(name, tokenizer_folder):
    plain = AutoTokenizer.from_pretrained(tokenizer_folder)
    example = Example(LINES[name](2), "d", "t.jsonl:1")
    with pytest.raises(ModelError, match="has no token .*; fine-tuning for the task"):
        TASKS[name]().encode(example, plain, data=DataSection(), max_length=200)


@pytest.mark.parametrize("name", [name for name in LINES if "weights" in TASKS[name].model_fields])
def test_the_recipe_weights_the_losses_by_name(name):
    task = TASKS[name](weights={"passages": 0.1})
    examples = [Example(LINES[name](number), "d", "t.jsonl:1") for number in range(3)]
    assert task.learn(examples, DataSection())["evidence_weights"] == {"passages": 0.1}
    for wrong in ({"spam": 1}, {"passages": -1}):
        with pytest.raises(ValidationError, match="weights"):
            TASKS[name](weights=wrong)
