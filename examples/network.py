"""How long does a network take on a GPU that is not here, and where does the time go? Needs torch, no TVM."""

import torch
from torch import nn

import cdmpp
from cdmpp.report import to_text, write_html


class Block(nn.Module):
    """A perceptron with a residual connection."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


network = nn.Sequential(*[Block(1024) for _ in range(4)])
workload = cdmpp.Workload(network, torch.zeros(512, 1024))

prediction = cdmpp.predict_network(workload, device="h100", runtime="torch")
print(to_text(prediction))  # the same text that `cdmpp network` prints
print(f"{prediction.latency_s * 1e6:.0f} us for a batch of 512")

comparison = cdmpp.compare_devices(workload, devices=["t4", "l4", "a100-pcie-40gb", "h100"], runtime="torch")
for row in comparison.table():
    print(f"{row['device']:<16}{row['latency_s'] * 1e6:8.0f} us")
write_html(comparison, "network.html")  # charts, in one file that needs no network
