"""Modules with a fault put in, which a test has to see."""

import inspect
import types


def mutant(original, old, new):
    """A module of the source of another, with ``new`` wherever ``old`` stands, which is there."""
    source = inspect.getsource(original)
    assert old in source
    module = types.ModuleType("mutant")
    module.__dict__["__name__"] = original.__name__
    exec(compile(source.replace(old, new), "mutant", "exec"), module.__dict__)
    return module
