"""`python -m ldt`, with FSDP on CPU processes too; accelerate has it for other devices only."""

from accelerate import state
from accelerate.utils import DistributedType

from ldt.__main__ import main

_begin = state.PartialState.__init__


def begin(self, *args, **kwargs):
    _begin(self, *args, **kwargs)
    if self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.MULTI_GPU


state.PartialState.__init__ = begin

if __name__ == "__main__":
    main()
