"""The contract of a task: few members, and nobody else asks for a task by its name."""

import ast
from pathlib import Path

import ldt
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
