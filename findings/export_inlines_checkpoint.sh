#!/usr/bin/env bash
# torch.export inlines torch.utils.checkpoint without a trace, and torch.inference_mode as if it were not there.
#
# Versions: torch 2.13.0, Python 3.11 to 3.13.
# Expected: a call of checkpoint, or a mark on its nodes, as no_grad regions get (wrap_with_set_grad_enabled) and as
# torch.compile has it (tag_activation_checkpoint): who reads the graph must know that a part runs twice in training.
# Found: the graph with checkpoint is that without it, node for node, in training mode and with gradients on. A region
# of inference_mode is exported as plain operators too: the exported module has gradients for weights that eager has
# none for.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.4
cat > "$folder/shows.py" <<'PYTHON'
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

print("torch", torch.__version__)


class Net(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.way = way
        self.first = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.second = nn.Linear(8, 8)

    def forward(self, x):
        if self.way == "checkpoint":
            x = checkpoint(self.first, x, use_reentrant=False)
        elif self.way == "no_grad":
            with torch.no_grad():
                x = self.first(x)
        elif self.way == "inference_mode":
            with torch.inference_mode():
                x = self.first(x)
            x = x.clone()
        else:
            x = self.first(x)
        return self.second(x)


def has_gradient(model):
    weight = dict(model.named_parameters())["first.0.weight"]
    return torch.autograd.grad(model(x).sum(), weight, allow_unused=True)[0] is not None


x, targets = torch.randn(4, 8), {}
for way in ("plain", "checkpoint", "no_grad", "inference_mode"):
    torch.manual_seed(0)
    model = Net(way).train()
    exported = torch.export.export(model, (x,))
    targets[way] = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    gradients = [has_gradient(one) for one in (model, exported.module())]
    print(f"{way}: {targets[way]}; first weight has a gradient: eager {gradients[0]}, exported {gradients[1]}")
    if way == "inference_mode":
        assert gradients == [False, True], "inference_mode is exported as eager runs it now"
assert targets["checkpoint"] == targets["plain"], "checkpoint leaves a trace now"
assert any("set_grad_enabled" in one for one in targets["no_grad"]), "no_grad leaves no trace now"
PYTHON
"$folder/venv/bin/python" "$folder/shows.py"
