"""Every kind of network is really imported, computes what its source does, or is refused in a sentence."""

from __future__ import annotations

import pytest

from cdmpp.errors import CdmppError

torch = pytest.importorskip("torch")
tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from cdmpp.network.graph import graph_of  # noqa: E402
from cdmpp.network.source import read_network  # noqa: E402


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)

    def forward(self, x, scale=None):
        x = torch.relu(self.first(x))
        return self.second(x if scale is None else x * scale)


def counts(source):
    return graph_of(source.module, source.name).counts


def test_a_torch_module_by_place_and_by_name():
    x, scale = torch.randn(4, 16), torch.randn(32)
    source = read_network(Small(), x)
    assert (source.name, source.batch, source.example) == ("Small", 4, (x,)) and counts(source)
    assert not source.torch_model.training
    by_name = read_network(Small(), {"scale": scale, "x": x})
    assert by_name.torch_model(*by_name.example).shape == (4, 8)
    assert counts(by_name) == counts(read_network(Small(), (x, scale)))


def test_a_zoo_network():
    source = read_network("bert_tiny")
    assert source.name == "bert_tiny" and source.batch == 1
    assert source.torch_model(*source.example).shape == (1, 128, 128)
    assert read_network("zoo:mlp", batch=3).batch == 3


def test_a_relax_module_before_and_after_the_passes():
    from cdmpp.programs.networks import export, relax_of_exported

    exported = export(Small().eval(), (torch.randn(4, 16),))
    raw = relax_of_exported(exported)
    source = read_network(raw)
    assert source.batch == 4 and source.example is None and source.torch_model is None
    assert counts(source) == counts(read_network(source.module)) == counts(read_network(Small(), torch.randn(4, 16)))
    bare = tvm.IRModule({"main": raw["main"].without_attr("num_input")})
    assert graph_of(read_network(bare).module, "bare").folded == 0, "without num_input there are no weights"


def test_what_is_no_network_is_refused():
    with pytest.raises(CdmppError, match=r"a dict is no network: give a zoo network .* file.py:FUNCTION"):
        read_network({})
    with pytest.raises(CdmppError, match="its function main is not there"):
        read_network(tvm.IRModule())
