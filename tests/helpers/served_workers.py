"""Processes with a model of a server that die where a document's id says so."""

import os
import signal
from pathlib import Path

from ldt.serve.model import ReplicaMaker


class Fatal(ReplicaMaker):
    """A process dies with each batch of a document ``die``, and with the first of ``once FILE``."""

    def load(self, settings):
        right = super().load(settings)

        def answers(documents, *more):
            for example, _ in documents:
                what, _, file = str(example.id).partition(" ")
                if what == "die" or (what == "once" and not Path(file).exists()):
                    Path(file or os.devnull).touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            return right(documents, *more)

        return answers
