"""Recipes: read one YAML file and overrides into a checked `Recipe`."""

from ldt.recipe.recipe import Recipe, check_training, dump, load, shipped

__all__ = ["Recipe", "check_training", "dump", "load", "shipped"]
