"""The pretend device computes what the processor does, and refuses what CUDA would."""

import copy
import io

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from .pretend_device import pretend_device


@pytest.fixture
def device():
    with pretend_device() as device:
        yield device


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def changed(x: Tensor, change) -> Tensor:
    x = x.clone()
    change(x)
    return x


class Squares(torch.autograd.Function):
    """A function with a gradient of its own, which makes new tensors on the way back."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.full_like(x, 2.0) * x * grad


class Words(nn.Module):
    """A model of words, with an index that moves with it and one that may be left behind."""

    def __init__(self, *, forgetful: bool = False) -> None:
        super().__init__()
        self.vectors, self.layer = nn.Parameter(numbers(7, 4)), nn.Linear(4, 3)
        order_V = torch.arange(7).flip(0)
        if forgetful:
            self.order_V = order_V
        else:
            self.register_buffer("order_V", order_V)

    def forward(self, ids_N: Tensor) -> Tensor:
        vectors_NR = self.vectors.index_select(0, self.order_V.index_select(0, ids_N))
        return functional.dropout(self.layer(vectors_NR), 0.25).log_softmax(-1).logsumexp(0).sum()


# Each takes x, 5×4, and i, five whole numbers below five.
OPERATIONS = {
    "arithmetic": lambda x, i: (2 * x + x / 3 - x**2 + torch.tensor(2.0)).exp() // 1,
    "comparison": lambda x, i: torch.where((x > 0) & (x < 1), x, 0.0),
    "matmul": lambda x, i: x @ x.T,
    "bmm": lambda x, i: torch.bmm(x.expand(3, 5, 4), x.T.expand(3, 4, 5)),
    "einsum": lambda x, i: torch.einsum("ij,kj->ik", x, x),
    "index_select": lambda x, i: x.index_select(0, i),
    "index": lambda x, i: x[i, 1:],
    "index by a list": lambda x, i: x[[3, 0]],
    "index by a mask": lambda x, i: x[x > 0],
    "index_add_": lambda x, i: torch.zeros_like(x).index_add_(0, i, x),
    "scatter": lambda x, i: x.scatter(0, i[:, None].expand(5, 4), x),
    "scatter_reduce_": lambda x, i: x.clone().scatter_reduce_(0, i[:, None].expand(5, 4), x, "amax"),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "unique": lambda x, i: i.unique(return_inverse=True, return_counts=True),
    "unique_consecutive": lambda x, i: i.unique_consecutive(),
    "sort": lambda x, i: x.sort(1, descending=True),
    "topk": lambda x, i: x.topk(2),
    "searchsorted": lambda x, i: torch.searchsorted(i.sort().values, i),
    "bincount": lambda x, i: torch.bincount(i, minlength=6),
    "repeat_interleave": lambda x, i: x.repeat_interleave(i, dim=0),
    "nonzero": lambda x, i: (x > 0).nonzero(),
    "cumsum": lambda x, i: x.cumsum(0),
    "logsumexp": lambda x, i: x.logsumexp(1),
    "embedding_bag": lambda x, i: functional.embedding_bag(i.view(1, 5), x, mode="sum"),
    "cross_entropy": lambda x, i: functional.cross_entropy(x, i % 4),
    "pad": lambda x, i: functional.pad(x, (1, 2)),
    "layer_norm": lambda x, i: functional.layer_norm(x, (4,)),
    "cat, stack, split": lambda x, i: (torch.cat([x, x]), torch.stack([x, x]), *x.split([2, 3])),
    "clone, detach, contiguous": lambda x, i: (x.clone(), x.detach(), x.T.contiguous()),
    "view, expand": lambda x, i: x.view(4, 5)[None].expand(2, 4, 5).transpose(1, 2),
    "change of type": lambda x, i: x.double().to(torch.bfloat16).to(x),
    "change in place": lambda x, i: x.clone().mul_(2).sub_(x).clamp_(min=0),
    "change of shape in place": lambda x, i: x.clone().unsqueeze_(0).squeeze_(),
    "change of a view": lambda x, i: changed(x, lambda y: y.view(20)[3:9].mul_(2)),
    "set items": lambda x, i: changed(x, lambda y: y.__setitem__((i, 2), x[:, 0])),
    "set a mask": lambda x, i: changed(x, lambda y: y.__setitem__(x > 0, 0.0)),
    "set data": lambda x, i: changed(x, lambda y: setattr(y, "data", y.data[1:] * 2)) + 1,
    "out, of a view": lambda x, i: changed(x, lambda y: torch.mul(x[1:3], x[3:], out=y[2:4])),
    "out, of another shape": lambda x, i: torch.mm(x, x.T, out=x.new_empty(0)),
    "like": lambda x, i: (torch.zeros_like(x), torch.full_like(i, 3), x.new_ones(2), x.new_tensor([1.0, 2.0])),
    "single numbers": lambda x, i: torch.tensor([x[0, 0].item(), float(x.sum()), int(i[1]), bool(i.any())]).to(x),
    "lists": lambda x, i: torch.tensor([x.tolist(), x.cpu().tolist()]).to(x),
    "deepcopy": lambda x, i: copy.deepcopy(x),
    "vmap": lambda x, i: torch.vmap(lambda row: row.softmax(0))(x),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_right_and_stay(device, name):
    x, i = numbers(5, 4), torch.tensor([4, 0, 2, 2, 1])
    expected, found = OPERATIONS[name](x, i), OPERATIONS[name](x.to(device), i.to(device))
    expected, found = ((y,) if isinstance(y, Tensor) else tuple(y) for y in (expected, found))
    assert {y.device for y in found} == {device}
    assert_close(tuple(y.cpu() for y in found), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: Squares.apply(x).sum(),
        lambda x: (x[1:].exp() * x[:-1]).logsumexp(1).sum() + x.unsqueeze(0).cumsum(1).max(),
        lambda x: x.index_select(0, torch.tensor([1, 1, 0], device=x.device)).sum() + functional.softplus(x).prod(),
        lambda x: functional.embedding(torch.tensor([2, 2], device=x.device), x, sparse=True).sum(),
    ],
)
def test_gradients_are_right_and_stay(device, function):
    here, there = numbers(5, 4).requires_grad_(), numbers(5, 4).to(device).requires_grad_()
    loss = function(there)
    loss.backward()
    function(here).backward()
    assert loss.device == there.grad.device == device
    assert_close(there.grad.to_dense().cpu(), here.grad.to_dense())


def test_operations_in_inference_mode(device):
    with torch.inference_mode():
        x = numbers(5, 4).to(device)
        assert (x @ x.T).device == torch.zeros(3).to(x).device == device
        assert x.to("cpu").device.type == "cpu"


@pytest.mark.parametrize("make", [Words, lambda: nn.LSTM(4, 3, 2), lambda: nn.GRU(4, 3)])
def test_a_module_moves_there_and_back(device, make):
    module = make()
    before, values = dict(module.named_parameters()), {k: v.clone() for k, v in module.state_dict().items()}
    for where in (device, torch.device("cpu")):
        module.to(where)
        assert all(parameter is before[name] for name, parameter in module.named_parameters())
        assert all(isinstance(parameter, nn.Parameter) for parameter in copy.deepcopy(module).parameters())
        assert {tensor.device for tensor in module.state_dict().values()} == {where}
        assert_close({name: tensor.cpu() for name, tensor in module.state_dict().items()}, values)
        module.load_state_dict(values)


def test_recurrent_modules(device):
    torch.manual_seed(0)
    module, x = nn.LSTM(4, 3, 2), numbers(5, 2, 4)
    expected = module(x)[0].detach()  # a gradient that still needs the parameters would not let them move
    found = module.to(device)(x.to(device))[0]
    assert_close(found.cpu(), expected)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    ],
)
def test_a_module_learns_the_same_there(device, optimizer):
    def losses(where: str | torch.device) -> list[float]:
        torch.manual_seed(3)
        model = Words().to(where)
        steps, found = optimizer(model.parameters()), []
        for _ in range(4):
            loss = model(torch.tensor([1, 5, 5, 2], device=where))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            steps.step()
            steps.zero_grad()
            with torch.no_grad():
                model.vectors.mul_(0.99)
            found.append(loss.item())
        assert {parameter.device for parameter in model.parameters()} == {torch.device(where)}
        return found

    assert losses(device) == pytest.approx(losses("cpu"), rel=1e-6)


@pytest.mark.parametrize(
    "mixture",
    [
        lambda x, y: x + y,
        lambda x, y: y.add_(x),
        lambda x, y: x.add_(y),
        lambda x, y: x @ y.T,
        lambda x, y: torch.cat([x, y]),
        lambda x, y: torch.mul(x, x, out=y),
        lambda x, y: torch.equal(x, y),
        lambda x, y: x[y > 0],
        lambda x, y: x.index_select(0, torch.arange(2)),
        lambda x, y: torch.zeros(()).add_(x.sum()),
    ],
)
def test_a_mixture_of_devices_is_refused(device, mixture):
    with pytest.raises(RuntimeError, match="same device"):
        mixture(numbers(5, 4).to(device), numbers(5, 4))


def test_copies_may_cross(device):
    x = numbers(5, 4)
    assert_close(torch.empty(5, 4).copy_(x.to(device)), x)
    assert_close(torch.empty(5, 4, device=device).copy_(x).cpu(), x)
    assert_close(load(save({"x": x.to(device)}))["x"], x)


def test_a_tensor_that_was_left_behind_is_noticed(device):
    ids_N = torch.tensor([1, 5])
    assert Words().to(device)(ids_N.to(device)).device == device
    with pytest.raises(RuntimeError, match=r"index_select.* got \(7,\) from the cpu"):
        Words(forgetful=True).to(device)(ids_N.to(device))
    with pytest.raises(RuntimeError, match=r"index_select.* got \(2,\) from the cpu"):
        Words().to(device)(ids_N)


def test_a_tensor_that_is_left_behind_by_a_gradient_is_noticed(device):
    class Forgetful(Squares):
        @staticmethod
        def backward(ctx, grad):
            return grad * torch.ones(5, 4)

    with pytest.raises(RuntimeError, match="from the cpu"):
        Forgetful.apply(numbers(5, 4).to(device).requires_grad_()).sum().backward()


@pytest.mark.parametrize("read", [lambda x: x.numpy(), lambda x: x.data_ptr(), lambda x: torch.save(x, io.BytesIO())])
def test_numbers_cannot_be_read_from_outside(device, read):
    with pytest.raises((RuntimeError, TypeError)):
        read(numbers(5, 4).to(device))


@pytest.mark.parametrize(
    "make",
    [
        lambda where: torch.rand(3, 4, device=where),
        lambda where: torch.randn(3, 4, device=where),
        lambda where: torch.randint(9, (12,), device=where),
        lambda where: torch.randperm(12, device=where),
        lambda where: torch.empty(3, 4, device=where).uniform_(),
        lambda where: torch.rand_like(torch.zeros(3, 4, device=where)),
        lambda where: torch.multinomial(torch.ones(3, 4, device=where), 2),
        lambda where: functional.dropout(torch.ones(3, 4, device=where)),
        lambda where: nn.init.normal_(torch.empty(3, 4, device=where)),
        lambda where: torch.arange(2, 9, 3, device=where),
        lambda where: torch.full((3,), 7, device=where),
        lambda where: torch.eye(3, device=where),
        lambda where: torch.tensor([[1, 2]], device=where),
        lambda where: torch.as_tensor([1.0, 2.0], device=where),
        lambda where: torch.zeros(3, device=str(where)),
    ],
)
def test_tensors_are_made_there_and_draw_from_the_processors_generator(device, make):
    found = []
    for where in (device, torch.device("cpu")):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(4)
            found.append(make(where))
    assert found[0].device == device
    assert torch.equal(found[0].cpu(), found[1])


def test_a_generator_of_the_processor_is_refused(device):
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device=device, generator=torch.Generator())


def test_autocast_of_the_processor_does_nothing_there(device):
    x = numbers(5, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert (x.to(device) @ x.T.to(device)).dtype == torch.float32


def test_it_leaves_nothing_behind():
    module = nn.Linear(2, 2)
    with pretend_device() as device:
        kept = torch.ones(2, device=device)
    with pytest.raises(NotImplementedError, match="Lazy"):
        torch.ones(2, device=device)
    assert (kept + 1).tolist() == [2.0, 2.0]
    assert not torch.__future__.get_swap_module_params_on_conversion()
    assert nn.Module._apply.__module__ == "torch.nn.modules.module"
    assert module.double().weight.dtype == torch.float64
