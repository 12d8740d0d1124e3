import pytest
import torch
from longformers import batch, ldt_model
from torch import nn

from ldt.model.heads.rows import micro_batched, same_document


def test_rows_alone_give_what_all_rows_give_with_the_gradients():
    torch.manual_seed(0)
    layer = nn.Linear(4, 3).double()
    x = torch.randn(5, 7, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.randint(2, (5, 7, 1)).double()
    seen = []

    def run(x, mask, nothing):
        assert nothing is None
        seen.append(len(x))
        y = torch.tanh(layer(x)) * mask
        return y, y.sum(1)

    def gradients(outputs):
        loss = sum((out**2).sum() for out in outputs)
        return torch.autograd.grad(loss, [x, *layer.parameters()])

    whole = gradients(run(x, mask, None))
    seen.clear()
    alone = gradients(micro_batched(run, x=x, mask=mask, nothing=None))
    assert seen == [1] * 10  # once forward, once in the backward pass
    for each, other in zip(alone, whole, strict=True):
        torch.testing.assert_close(each, other)
    seen.clear()
    with torch.no_grad():
        assert micro_batched(run, x=x, mask=mask, nothing=None)[1].shape == (5, 3)
    assert seen == [1] * 5


def test_documents_share_where_two_rows_are_of_one():
    assert same_document(torch.tensor([0, 1, 1]))
    assert not same_document(torch.tensor([0, 1, 2]))
    assert not same_document(None)


def test_dropout_is_the_same_when_a_row_is_computed_again():
    x = torch.ones(3, 1000, requires_grad=True)
    (found,) = micro_batched(lambda x: (nn.functional.dropout(x, 0.5),), x=x)
    found.sum().backward()
    assert torch.equal(x.grad, found.detach())


def test_rows_keep_nothing_but_their_inputs_for_the_backward_pass():
    alive = []

    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    def run(x):
        return (Kept.apply(x.repeat(1, 50)).sum(1),)

    def pack(tensor):
        alive.append(tensor.numel())
        return tensor

    for rows in (1, 4, 16):
        alive.clear()
        x = torch.ones(rows, 64, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            micro_batched(run, x=x)
        assert max(alive, default=0) <= 64  # the inputs alone


ONE_EXAMPLE = torch.zeros(4, dtype=torch.long)
GIVEN = {
    "ForQuestionAnswering": {"start_positions": ONE_EXAMPLE + 2, "end_positions": ONE_EXAMPLE + 3},
    "ForCandidateRanking": {"positions": ONE_EXAMPLE[:, None] + torch.tensor([3, 7])},
    "ForMultipleChoice": {"choices": torch.arange(4)},
}


@pytest.mark.parametrize("head", GIVEN)
def test_rows_of_one_document_have_another_loss_than_rows_of_several(head):
    model = ldt_model(head)
    given = batch(21, globals_="one") | GIVEN[head]
    if head != "ForQuestionAnswering":
        given["labels"] = ONE_EXAMPLE
    loss = model(**given, example_ids=ONE_EXAMPLE).loss
    assert not torch.equal(model(**given, example_ids=torch.arange(4)).loss, loss)


@pytest.mark.covering(1)
@pytest.mark.parametrize("head", GIVEN)
@pytest.mark.parametrize(
    ("ids", "from_zero"),
    [
        ([5, 5, 5, 5], [0, 0, 0, 0]),
        ([7, 3, 3, 7], [0, 1, 1, 0]),
        ([-9, 4, 4, 10**12], [0, 1, 1, 2]),
    ],
)
def test_ids_of_documents_may_be_any_numbers(head, ids, from_zero):
    torch.manual_seed(0)
    model = ldt_model(head).double()
    given = batch(21, globals_="one") | GIVEN[head]
    if head == "ForMultipleChoice":
        given["choices"] = torch.tensor([0, 0, 1, 1])
    if head != "ForQuestionAnswering":
        given["labels"] = ONE_EXAMPLE

    def loss_and_gradients(example_ids):
        loss = model(**given, example_ids=torch.tensor(example_ids)).loss
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        return loss, torch.autograd.grad(loss, weights, allow_unused=True)

    loss, gradients = loss_and_gradients(ids)
    want, others = loss_and_gradients(from_zero)
    torch.testing.assert_close(loss, want)
    assert loss > 0
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(one, other)
