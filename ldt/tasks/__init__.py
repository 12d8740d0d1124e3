"""What a recipe's ``task.name`` can be."""

from ldt.tasks.base import Segment, Task, join
from ldt.tasks.classification import Classification

TASKS: dict[str, type[Task]] = {"classification": Classification}

__all__ = ["TASKS", "Classification", "Segment", "Task", "join"]
