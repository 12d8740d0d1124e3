"""Commands of ldt in processes of their own."""

import os
import subprocess
import sys


def ldt(*arguments, **options):
    """The finished process of a command."""
    environment = dict(os.environ) | {"PYTHONUNBUFFERED": ""} | options.pop("env", {})
    command = [sys.executable, "-m", "ldt", *arguments]
    options = {"capture_output": True, "timeout": 120} | options
    return subprocess.run(command, env=environment, **options)
