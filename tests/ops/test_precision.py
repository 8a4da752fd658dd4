from contextlib import nullcontext

import pytest
import torch

from trellis.ops.precision import full_precision, in_bf16

CPU = torch.device("cpu")


def test_bf16_is_said_where_autocast_asks_for_it() -> None:
    assert not in_bf16(CPU)
    with torch.autocast("cpu", torch.bfloat16):
        assert in_bf16(CPU)
        assert not in_bf16(torch.device("cuda"))
        with torch.autocast("cpu", enabled=False):
            assert not in_bf16(CPU)
    with torch.autocast("cpu", torch.float16):
        assert not in_bf16(CPU)


def test_products_are_in_full_inside() -> None:
    a = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
        with full_precision(CPU):
            assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["cpu", "cuda", "mps", "meta", "lazy", "xla", "privateuseone"])
def test_every_type_of_device_may_be_asked(kind: str) -> None:
    device = torch.device(kind)
    assert not in_bf16(device)
    assert isinstance(full_precision(device), nullcontext)
    with torch.autocast("cpu", torch.bfloat16):
        assert in_bf16(device) is (kind == "cpu")
        assert isinstance(full_precision(device), nullcontext) is (kind != "cpu")
