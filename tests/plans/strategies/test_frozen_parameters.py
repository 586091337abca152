"""FSDP of a step with frozen parameters: as many gathers and scatters as FSDP2 runs, of as many bytes."""

from __future__ import annotations

import pytest

import cdmpp
from cdmpp.errors import CdmppError
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.steps.from_prediction import graph_of
from cdmpp.steps.transforms.recompute import can_recompute
from cdmpp.steps.transforms.scale import scale_ranks

torch = pytest.importorskip("torch")

COUNTED = {
    "tt": (4, 2), "ft": (4, 1), "fft": (5, 1), "ffft": (6, 1), "tft": (6, 2), "tf": (4, 1), "tff": (6, 1),
    "btt": (6, 3), "fftft": (9, 2),
}  # fmt: skip
"""All-gathers and reduce-scatters that PyTorch 2.13's ``CommDebugMode`` counted on two ranks, each layer and the model
wrapped by ``fully_shard``. A letter a layer: trained, frozen, or trained in its bias alone."""


def layers(letters: str) -> torch.nn.Sequential:
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in letters))
    for layer, letter in zip(model, letters, strict=True):
        layer.weight.requires_grad_(letter == "t")
        layer.bias.requires_grad_(letter in "tb")
    return model


def exchanges(model, example, ranks=2, scheme=None):
    step = cdmpp.predict_step(cdmpp.Workload(model, example, loss="mse"), device="h100", runtime="torch")
    graph = scale_ranks(graph_of(step), ranks)
    return graph, (scheme or FSDP()).exchanges(graph)


@pytest.mark.parametrize("letters", COUNTED)
def test_frozen_layers_are_gathered_as_torch_gathers_them(letters):
    gathers, scatters = COUNTED[letters]
    graph, found = exchanges(layers(letters), torch.zeros(4, 64))
    kinds = [one.kind for one in found]
    assert (kinds.count("all_gather"), kinds.count("reduce_scatter")) == (gathers, scatters)
    assert {one.bytes for one in found if one.kind == "all_gather"} == {4 * 65 * 64}
    sizes = {"t": 4 * 65 * 64, "b": 4 * 64}
    trained = [sizes[letter] for letter in reversed(letters) if letter in sizes]
    assert [one.bytes for one in found if one.kind == "reduce_scatter"] == trained
    kept = exchanges(layers(letters), torch.zeros(4, 64), scheme=FSDP(reshard_after_forward=False))[1]
    assert [one.kind for one in kept].count("all_gather") == len(letters)
    prefix = len(letters) - len(letters.lstrip("f"))
    assert [one.name for one in can_recompute(graph.ranks[0])] == [str(i) for i in range(prefix, len(letters))]


class Lora(torch.nn.Module):
    """A frozen layer, and a narrow one that is trained next to it."""

    def __init__(self):
        super().__init__()
        self.whole, self.down, self.up = (torch.nn.Linear(*size, bias=False) for size in ((64, 64), (64, 2), (2, 64)))
        self.whole.requires_grad_(False)

    def forward(self, x):
        return self.whole(x) + self.up(self.down(x))


def test_adapters_are_gathered_with_what_they_adapt():
    found = exchanges(torch.nn.Sequential(*(Lora() for _ in range(4))), torch.zeros(8, 64), ranks=4)[1]
    assert [one.bytes for one in found if one.kind == "all_gather"] == [
        4 * (64 * 64 + 4 * 64 + 64 * 2)
    ] * 8  # 2 rows: 4
    assert [one.bytes for one in found if one.kind == "reduce_scatter"] == [4 * (4 * 64 + 64 * 2)] * 4


def test_a_parameter_without_dimensions_is_refused():
    """As ``fully_shard`` refuses it: it doesn't support scalar parameters."""

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.scale = torch.nn.Linear(64, 64), torch.nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            return self.layer(x) * self.scale

    with pytest.raises(CdmppError, match=r"module 'root' has a parameter without dimensions.*shape \(1,\)"):
        exchanges(Scaled(), torch.zeros(4, 64))
