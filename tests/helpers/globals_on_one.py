"""Of two processes one has global tokens: the averaged gradients are right."""

import torch
from longformers import batch, gradients, ldt_model
from torch import distributed
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel


def loss(model, inputs):
    return model(**inputs).logits.square().sum()


def check(kind):
    """In each of two processes of a group, by "ddp" or by "fsdp"."""
    rank = distributed.get_rank()
    torch.manual_seed(0)
    model, inputs = (
        ldt_model("ForTokenClassification").train(),
        [batch(20), batch(20, "none", "some")],
    )
    (sum(loss(model, each) for each in inputs) / 2).backward()
    wanted = gradients(model)
    model.zero_grad()
    if kind == "ddp":
        ours = DistributedDataParallel(model, find_unused_parameters=False)
    else:
        ours = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    for _ in range(3):  # the second pass of DDP fails where a gradient has not come
        ours.zero_grad()
        loss(ours, inputs[rank]).backward()
    if kind == "ddp":
        found = gradients(model)
        assert found.keys() == wanted.keys() == dict(model.named_parameters()).keys()
        for name, gradient in wanted.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-4)
    else:
        found = torch.cat([p.grad.flatten() for p in ours.parameters() if p.numel()])
        square = found.double().square().sum()
        distributed.all_reduce(square)
        total = sum(x.double().square().sum() for x in wanted.values())
        torch.testing.assert_close(square, total, rtol=1e-4, atol=0)
