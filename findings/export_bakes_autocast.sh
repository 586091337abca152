#!/usr/bin/env bash
# torch.export on a machine without CUDA turns regions of torch.autocast("cuda") off for good, and the types that it
# records inside a region of autocast contradict its operators.
#
# Versions: torch 2.13.0, Python 3.11 to 3.13.
# Expected: a graph that is exported on one machine says what the model asks for (autocast on), and the values of its
# nodes have the types that their operators give for their inputs, casts included.
# Found: the same model is exported as wrap_with_autocast("cuda", float16, enabled=False, ...) where no CUDA is, without
# an error (a warning of the eager autocast alone), and runs in float32 on any GPU afterwards. Inside a region that is
# on, linear(float32, float32, float32) has a value of bfloat16, and no node casts: who reads types from inputs takes
# the product for one of float32, who reads them from results misses the casts.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.4
cat > "$folder/shows.py" <<'PYTHON'
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
print("torch", torch.__version__, "CUDA", torch.cuda.is_available())


class Net(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.device, self.linear = device, nn.Linear(8, 8)

    def forward(self, x):
        with torch.autocast(self.device):
            return self.linear(x)


def region(device):
    exported = torch.export.export(Net(device), (torch.randn(4, 8),))
    call = next(node for node in exported.graph.nodes if "wrap_with_autocast" in str(node.target))
    inner = getattr(exported.graph_module, call.args[4].target)
    return call, [node for node in inner.graph.nodes if node.op == "call_function"]


call, nodes = region("cpu")
(linear,) = nodes
given = [str(one.meta["val"].dtype) for one in linear.all_input_nodes]
print("cpu:", call.args[:4], linear.target, given, "->", linear.meta["val"].dtype)
assert set(given) == {"torch.float32"} and linear.meta["val"].dtype == torch.bfloat16, "casts are recorded now"
if not torch.cuda.is_available():
    call, nodes = region("cuda")
    print("cuda:", call.args[:4], [(str(one.target), str(one.meta["val"].dtype)) for one in nodes])
    assert call.args[2] is False, "the region stays on now"
PYTHON
"$folder/venv/bin/python" "$folder/shows.py"
