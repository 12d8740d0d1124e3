"""What the person at the keyboard can put right, and the exit codes that say so.

An error is one line: where, what was found, what would do.
"""

EXIT_OK = 0
EXIT_BUG = 1
EXIT_USAGE = 2
EXIT_RECIPE = 3
EXIT_DATA = 4
EXIT_MODEL = 5
EXIT_RESOURCES = 6
EXIT_REJECTS = 7
EXIT_DIVERGED = 8
EXIT_SIGINT = 130
EXIT_SIGTERM = 143


class UserError(Exception):
    """A command, option or path that cannot work. Printed without a traceback, exit code 2."""

    exit_code = EXIT_USAGE


class RecipeError(UserError):
    """A recipe with wrong keys or values; the message may hold several lines, one a problem."""

    exit_code = EXIT_RECIPE


class DataError(UserError):
    """Input data that cannot be read or used."""

    exit_code = EXIT_DATA


class ModelError(UserError):
    """A model folder, checkpoint or tokenizer that cannot be used."""

    exit_code = EXIT_MODEL


class ResourceError(UserError):
    """Too little memory or disk."""

    exit_code = EXIT_RESOURCES


class TrainingDiverged(UserError):
    """A loss or gradient that is not finite."""

    exit_code = EXIT_DIVERGED
