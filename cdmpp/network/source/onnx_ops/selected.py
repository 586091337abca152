"""Selections by value of ONNX: how many elements they keep is said beforehand (``boxes``)."""

from __future__ import annotations

from typing import Any

import torch

from cdmpp.network.source.onnx_ops.node import OnnxNode, Rule, Rules

_MOST_CLASSES = 1024
"""Images times classes: torchvision suppresses the boxes of each by themselves."""


def _places(_: OnnxNode, x: Any) -> Any:
    return torch.nonzero(x).t()


def _suppressed(
    node: OnnxNode, boxes: Any, scores: Any, most: Any = None, overlap: Any = None, threshold: Any = None
) -> Any:  # fmt: skip
    """Suppress the boxes of each image and class as torchvision does, those below the threshold taken out before."""
    import torchvision.ops

    kept = 0 if most is None else node.whole(most, "largest number of boxes")[0]
    if not kept:
        node.refuse("keeps no boxes: its largest number of boxes a class is 0")
    for value, what in ((overlap, "overlap"), (threshold, "threshold of scores")):
        if isinstance(value, torch.Tensor):
            node.refuse(f"takes its {what} from the values of a tensor, which only a run knows")
    if scores.shape[0] * scores.shape[1] > _MOST_CLASSES:
        node.refuse(f"has {scores.shape[0]} images of {scores.shape[1]} classes: {_MOST_CLASSES} in all are read")
    if node["center_point_box"]:
        centre, half = boxes[..., :2], boxes[..., 2:] / 2
        boxes = torch.cat((centre - half, centre + half), -1)
    else:
        ends = boxes.unflatten(-1, (2, 2))
        boxes = torch.cat((ends.amin(-2), ends.amax(-2)), -1)
    share = 0.0 if overlap is None else float(overlap.reshape(-1)[0])
    found = []
    for image in range(scores.shape[0]):
        for number in range(scores.shape[1]):
            own, places = scores[image, number], None
            corners = boxes[image]
            if threshold is not None:
                places = torch.nonzero(own > float(threshold.reshape(-1)[0])).squeeze(1)
                own, corners = own[places], corners[places]
            left = torchvision.ops.boxes.nms(corners, own, share)[:kept]
            left = left if places is None else places[left]
            found.append(torch.stack((torch.full_like(left, image), torch.full_like(left, number), left), 1))
    return torch.cat(found)


RULES: Rules = {"NonZero": Rule(_places), "NonMaxSuppression": Rule(_suppressed, known=(2, 3, 4))}
