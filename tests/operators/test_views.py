"""What runs no kernel costs nothing: by each call, on tensors, whose results lie where what it was given lies."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cdmpp.operators.aten import calls_of

X = (4, 6, 8)
VIEWS = {
    "view": lambda x: x.view(24, 8),
    "reshape": lambda x: x.reshape(4, 48),
    "flatten": lambda x: x.flatten(1),
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(2, 0, 1),
    "t": lambda x: x[0].t(),
    "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim(0, 2),
    "swapaxes": lambda x: x.swapaxes(0, 2),
    "squeeze": lambda x: x[:1].squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "unflatten": lambda x: x.unflatten(-1, (2, 4)),
    "expand": lambda x: x[:1].expand(4, 6, 8),
    "expand_as": lambda x: x[:1].expand_as(x),
    "broadcast_to": lambda x: x[:1].broadcast_to(4, 6, 8),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, x[0])[1],
    "slice": lambda x: x[:, 1:3],
    "select": lambda x: x[1],
    "narrow": lambda x: x.narrow(0, 1, 2),
    "split": lambda x: x.split(2)[0],
    "chunk": lambda x: x.chunk(2)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "tensor_split": lambda x: x.tensor_split(3)[0],
    "unfold": lambda x: x.unfold(2, 4, 2),
    "diagonal": lambda x: x.diagonal(),
    "as_strided": lambda x: x.as_strided((2, 3), (1, 2)),
    "view_as": lambda x: x.view_as(x),
    "view of bits": lambda x: x.view(torch.int32),
    "detach": lambda x: x.detach(),
    "detach in place": lambda x: x.detach_(),
    "unsqueeze in place": lambda x: x.view(24, 8).unsqueeze_(0),
    "alias": lambda x: torch.ops.aten.alias(x),
    "to what it is": lambda x: x.to(torch.float32),
    "contiguous": lambda x: x.contiguous(),
    "atleast_2d": lambda x: torch.atleast_2d(x),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, 0], indexing="ij")[0],
    "nothing of it": lambda x: x[:0].relu(),
    "nothing joined": lambda x: torch.cat([x[:0], x[:0]]),
}
COPIES = {
    "reshape": lambda x: x.transpose(0, 1).reshape(24, 8),
    "flatten": lambda x: x.transpose(1, 2).flatten(1),
    "contiguous": lambda x: x.transpose(0, 1).contiguous(),
    "to another type": lambda x: x.to(torch.float64),
    "to a copy": lambda x: x.to(torch.float32, copy=True),
    "clone": lambda x: x.clone(),
    "joined": lambda x: torch.cat([x[:0], x]),
    "repeat": lambda x: x.repeat(2, 1, 1),
}


def calls(function, x: torch.Tensor) -> list[str]:
    class Call(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    nodes = torch.export.export(Call(), (x,)).graph.nodes
    return [str(one) for node in nodes if node.op == "call_function" for one in calls_of(node).operators]


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_no_call(name):
    x = torch.rand(*X)
    result = VIEWS[name](x)
    assert result.numel() == 0 or result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert calls(VIEWS[name], x) == []


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_one(name):
    x = torch.rand(*X)
    assert COPIES[name](x).untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert len(calls(COPIES[name], x)) == 1
