"""A class that a script carries in itself: results of blocks in the memory of the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class OffloadedBlocks:
    """Results of blocks that the backward pass reads wait in the memory of the host, but for those of the last block.

    They are copied while the next block runs, and come back while the backward pass of the next block does. Parameters
    stay where they are, and what a block is given besides its first argument, which others read too. ``blocks`` run one
    after the other.
    """

    def __init__(self, blocks: Sequence[Any]) -> None:
        import functools

        import torch
        import torch.utils._pytree

        self.torch: Any = torch
        self.tree: Any = torch.utils._pytree
        self.blocks = list(blocks)
        self.is_gpu = torch.cuda.is_available()
        self.streams: list[Any] = [torch.cuda.Stream() if self.is_gpu else None for _ in range(2)]
        self.kept: list[dict[int, dict[str, Any]]] = [{} for _ in self.blocks]
        self.events: dict[tuple[int, int], Any] = {}
        for number, block in enumerate(self.blocks):
            block.forward = functools.partial(self.run, number, block.forward)

    def run(self, number: int, forward: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the forward pass of a block."""
        shared = [one for one in self.tree.tree_leaves((args[1:], kwargs)) if isinstance(one, self.torch.Tensor)]
        stays = {one.untyped_storage().data_ptr() for one in (*self.blocks[number].parameters(), *shared)}
        self.kept[number] = {}

        def pack(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            if storage.data_ptr() in stays or number == len(self.blocks) - 1:
                return (None, tensor)
            whole = self.torch.empty(0, dtype=self.torch.uint8, device=tensor.device).set_(storage)
            entry = self.kept[number].setdefault(storage.data_ptr(), {"device": whole, "of": tensor.device})
            return (entry, tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride())

        def unpack(packed: Any) -> Any:
            self.bring(number)
            self.bring(number - 1, waits=False)
            entry, kept = packed[0], packed[1]
            if entry is None:
                return kept
            storage = entry["device"].untyped_storage()
            return self.torch.empty(0, dtype=kept, device=entry["of"]).set_(storage, *packed[2:])

        with self.torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            found = forward(*args, **kwargs)
        if number < len(self.blocks) - 1:
            self.copy(0, number, "device", "host")
        if number:
            self.wait(0, number - 1)
            for entry in self.kept[number - 1].values():
                entry.pop("device", None)
        return found

    def copy(self, way: int, number: int, source: str, target: str) -> None:
        """Copy all of a block, on a stream of its own on GPUs."""
        import contextlib

        stream, main = self.streams[way], self.torch.cuda.current_stream() if self.is_gpu else None
        if stream is not None:
            stream.wait_stream(main)
        with self.torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
            for entry in self.kept[number].values():
                to_host, given = target == "host", entry[source]
                where = {"device": "cpu", "pin_memory": self.is_gpu} if to_host else {"device": entry["of"]}
                entry[target] = self.torch.empty(given.size(), dtype=self.torch.uint8, **where)
                entry[target].copy_(given, non_blocking=True)
                if stream is not None and not to_host:
                    entry[target].record_stream(main)
        if stream is not None:
            self.events[way, number] = stream.record_event()

    def wait(self, way: int, number: int) -> None:
        """Let the device wait for a copy."""
        if (event := self.events.pop((way, number), None)) is not None:
            self.torch.cuda.current_stream().wait_event(event)

    def bring(self, number: int, waits: bool = True) -> None:
        """Bring back what is not there, and let go of what later blocks had; the device waits for it, or not yet."""
        if not 0 <= number < len(self.blocks) - 1:
            return
        if any("device" not in entry for entry in self.kept[number].values()):
            self.copy(1, number, "host", "device")
        if waits:
            self.wait(1, number)
            self.kept[number + 1] = {}
