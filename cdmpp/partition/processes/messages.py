"""Messages: tensors between neighbouring stages over gloo, received ahead and sent while the stage computes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from cdmpp.errors import UsageError

FORWARD_TAG, BACKWARD_TAG, HEADER_TAG = 0, 1, 2
_AHEAD = 2
"""Receives that are posted before they are needed: gloo moves bytes only once both ends have asked for it."""
_PAUSE_S = 1e-6
"""A sender sleeps after each message. Gloo sends in a thread of its own, which has the same core: while the stage
computes on, a kernel lets that thread wait for up to some milliseconds."""
_MOST_DIMENSIONS = 8
_TYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip


class LostStageError(Exception):
    """A neighbour is gone, or has not answered for as long as it may take."""


@contextmanager
def _with(peer: int) -> Iterator[None]:
    """Name the neighbour where gloo fails."""
    try:
        yield
    except RuntimeError as error:
        raise LostStageError(f"no message to or from stage {peer}: {str(error).splitlines()[0]}") from error


def send_header(message: torch.Tensor, peer: int, has_gradient: bool) -> None:
    """Say what the messages to a neighbour look like; ``has_gradient``: a gradient is to be sent back for each."""
    if message.dtype not in _TYPES or message.dim() > _MOST_DIMENSIONS:
        raise UsageError(
            f"a stage returns a tensor of {message.dtype} with {message.dim()} dimensions: expected at most "
            f"{_MOST_DIMENSIONS} dimensions and one of {', '.join(str(one) for one in _TYPES)}"
        )
    shape = [*message.shape, *[0] * (_MOST_DIMENSIONS - message.dim())]
    header = torch.tensor([_TYPES.index(message.dtype), has_gradient, message.dim(), *shape])
    with _with(peer):
        dist.send(header, peer, tag=HEADER_TAG)


def receive_header(peer: int) -> tuple[torch.Tensor, bool]:
    """Return room for a message like those that a neighbour is to send, and whether each needs a gradient."""
    header = torch.zeros(3 + _MOST_DIMENSIONS, dtype=torch.int64)
    with _with(peer):
        dist.recv(header, peer, tag=HEADER_TAG)
    kind, has_gradient, dimensions, *shape = header.tolist()
    return torch.empty(shape[:dimensions], dtype=_TYPES[kind]), bool(has_gradient)


class Inbox:
    """Messages of one neighbour of one kind, in order."""

    def __init__(self, peer: int, tag: int) -> None:
        self._peer, self._tag = peer, tag
        self._posted: deque[tuple[torch.Tensor, Any]] = deque()
        self._due = 0

    def expect(self, count: int) -> None:
        """So many messages are to come, and no more."""
        self._due += count

    def take(self, like: torch.Tensor) -> torch.Tensor:
        """Wait for the next message, which is like a given tensor."""
        self._post(like)
        message, work = self._posted.popleft()
        with _with(self._peer):
            work.wait()
        self._post(like)
        return message

    def _post(self, like: torch.Tensor) -> None:
        with _with(self._peer):
            while self._due and len(self._posted) < _AHEAD:
                room = torch.empty_like(like, requires_grad=False, memory_format=torch.contiguous_format)
                self._posted.append((room, dist.irecv(room, self._peer, tag=self._tag)))
                self._due -= 1


class Outbox:
    """Messages to one neighbour of one kind. At most ``room`` of them are under way."""

    def __init__(self, peer: int, tag: int, room: int) -> None:
        self._peer, self._tag, self._room = peer, tag, room
        self._sent: deque[tuple[torch.Tensor, Any]] = deque()

    def put(self, message: torch.Tensor) -> None:
        """Send a message while the stage goes on; wait for an older one where too many are under way."""
        message = message.detach().contiguous()
        with _with(self._peer):
            while len(self._sent) >= self._room:
                self._sent.popleft()[1].wait()
            self._sent.append((message, dist.isend(message, self._peer, tag=self._tag)))
        time.sleep(_PAUSE_S)

    def clear(self) -> None:
        """Wait until all have arrived."""
        with _with(self._peer):
            while self._sent:
                self._sent.popleft()[1].wait()
