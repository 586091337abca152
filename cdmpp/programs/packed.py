"""Packed sequences while a network is exported: as if each were as long as the longest, since lengths are values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from cdmpp.programs.patch import patched

PADDED = (
    "packed sequences (torch.nn.utils.rnn.pack_padded_sequence) are taken to be as long as the longest one: their "
    "lengths are values, which play no part, so shorter ones take less"
)


@contextmanager
def packed_as_padded() -> Iterator[dict[str, None]]:
    """Let a model pack, run and unpack sequences of one length.

    Sequences that were packed before, as inputs, stay as they are.

    Yields:
        What was taken for something else, a sentence, once a model has packed something.
    """
    import torch

    told, packs = dict[str, None](), _Packs()
    functions = torch._VF  # what the functions of torch.nn.utils.rnn call, whoever imported those by name
    original = functions._pad_packed_sequence

    def pack(sequences: Any, _lengths: Any, batch_first: bool) -> Any:
        told[PADDED] = None
        return packs.made(sequences.transpose(0, 1) if batch_first else sequences)

    def unpack(data: Any, sizes: Any, batch_first: bool, *others: Any) -> Any:
        if id(sizes) not in packs.sizes:
            return original(data, sizes, batch_first, *others)
        steps = packs.steps(data, sizes)
        return steps.transpose(0, 1) if batch_first else steps, torch.full((steps.shape[1],), steps.shape[0])

    with ExitStack() as stack:
        stack.enter_context(patched(functions, "_pack_padded_sequence", pack))
        stack.enter_context(patched(functions, "_pad_packed_sequence", unpack))
        for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
            stack.enter_context(patched(kind, "forward", packs.running(kind.forward)))
        yield told


class _Packs:
    """Those that were packed here, by their tensors of batch sizes."""

    def __init__(self) -> None:
        self.sizes = dict[int, Any]()
        """Identity of a tensor of batch sizes -> it, so that it lives as long."""

    def made(self, steps: Any) -> tuple[Any, Any]:
        import torch

        sizes = torch.full((steps.shape[0],), steps.shape[1])
        self.sizes[id(sizes)] = sizes
        return steps.reshape(-1, *steps.shape[2:]), sizes

    def steps(self, data: Any, sizes: Any) -> Any:
        return data.unflatten(0, (sizes.shape[0], -1))

    def running(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Run a layer on the sequences side by side, where they were packed here."""

        def forward(this: Any, x: Any, hx: Any = None) -> Any:
            if id(getattr(x, "batch_sizes", None)) not in self.sizes:
                return original(this, x, hx)
            before, this.batch_first = this.batch_first, False
            try:
                out, state = original(this, self.steps(x.data, x.batch_sizes), hx)
            finally:
                this.batch_first = before
            return x._replace(data=out.flatten(0, 1)), state

        return forward
