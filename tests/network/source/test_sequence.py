"""Networks that read tokens take another number of them; others refuse it by name."""

from __future__ import annotations

import pytest
import torch

from cdmpp.cli.command import _parser
from cdmpp.cli.network import workload_of
from cdmpp.errors import CdmppError
from cdmpp.network.source.torch_network import read_torch
from cdmpp.network.workload import Workload


def shape_of(network, **settings) -> tuple[int, ...]:
    return tuple(read_torch(Workload(network, **settings), needs_values=False).example[0].shape)


def test_a_sequence_is_that_of_the_example_tokens():
    assert shape_of("bert_tiny", sequence=64) == (1, 64)
    assert shape_of("hf:gpt2-xl", sequence=1024, batch=3) == (3, 1024)
    assert shape_of("hf:t5-base", sequence=1000) == (1, 1000), "its positions are relative"


def test_a_function_may_take_it(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\n"
        "def make(batch=1, sequence=8):\n"
        "    return torch.nn.Embedding(10, 4), (torch.zeros(batch, sequence, dtype=torch.long),)\n"
        "def fixed():\n"
        "    return torch.nn.Embedding(10, 4), (torch.zeros(1, 8, dtype=torch.long),)\n"
    )
    assert shape_of(f"{file}:make", sequence=5, batch=2) == (2, 5)
    with pytest.raises(CdmppError, match="fixed has no parameter sequence"):
        shape_of(f"{file}:fixed", sequence=5)


@pytest.mark.parametrize(
    ("network", "settings", "told"),
    [
        ("torchvision:resnet18", {"sequence": 10}, "sequence=10, but its input is image, not tokens"),
        ("bert_tiny", {"sequence": 64, "inputs": {"x": (1, 3)}}, "sequence=64, and inputs give a shape"),
        ("bert_tiny", {"sequence": 513}, "513 tokens an example, but it has 512 positions"),
        ("bert_tiny", {"inputs": {"x": (1, 3000)}}, "3,000 tokens an example, but it has 512 positions"),
        ("hf:roberta-base", {"sequence": 513}, "513 tokens an example, but it has 512 positions"),
        ("bert_tiny", {"sequence": 0}, "sequence is 0: expected"),
        (torch.nn.Linear(2, 2), {"sequence": 2}, "sequence is 2: only networks of a name"),
        ("model.onnx", {"sequence": 2}, "sequence is 2: only networks of a name"),
    ],
)
def test_what_has_no_such_sequence_refuses_it(network, settings, told):
    with pytest.raises(CdmppError, match=told):
        shape_of(network, **settings)


@pytest.mark.parametrize("verb", ["network", "step", "plan"])
def test_the_command_line_takes_it(verb):
    options = _parser(verb).parse_args([verb, "bert_tiny", "--device", "t4", "--seq", "32"])
    assert workload_of(options).sequence == 32
