"""Wide-ResNet as Alpa trained it (OSDI'22 artifact, commit 8350d913): wide in its 3x3 convolutions alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
_CLASSES = 1024


class Block(nn.Module):
    """A bottleneck: 1x1 to ``filters``, 3x3 to ``filters * width``, which takes the stride, 1x1 to four times."""

    def __init__(self, channels: int, filters: int, width: int, stride: int) -> None:
        super().__init__()
        wide, out = filters * width, 4 * filters
        self.relu = nn.ReLU(inplace=True)
        self.conv1, self.norm1 = nn.Conv2d(channels, filters, 1, bias=False), nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, wide, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(wide)
        self.conv3, self.norm3 = nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out)
        self.shortcut = None
        if channels != out or stride > 1:
            convolution = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.shortcut is None else self.shortcut(x)
        x = self.relu(self.norm1(self.conv1(x)))
        x = self.relu(self.norm2(self.conv2(x)))
        return self.relu(self.norm3(self.conv3(x)) + kept)


def wide_resnet(layers: int, channels: int, width: int) -> nn.Sequential:
    """Build the network for images of any size: a stem, 16 or 33 blocks, a head."""
    stem = nn.Sequential(
        nn.Conv2d(3, channels, 7, 2, 3, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    )
    parts, into = list[nn.Module]([stem]), channels
    for stage, count in enumerate(_BLOCKS[layers]):
        for place in range(count):
            filters, stride = channels * 2**stage, 2 if stage > 0 and place == 0 else 1
            parts.append(Block(into, filters, width, stride))
            into = 4 * filters
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, _CLASSES))
    return nn.Sequential(*parts, head)


def empty(layers: int, channels: int, width: int) -> nn.Sequential:
    """Build the network without memory for its weights."""
    with torch.device("meta"):
        return wide_resnet(layers, channels, width)
