"""Language models of transformers as they generate text: a prompt is read, then one token after the other."""

from __future__ import annotations

import inspect
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.programs.caches import register_caches
from cdmpp.programs.refusal import first_line, quiet


def decoder_of(inner: Any) -> Any:
    """Make a module ``(tokens[, cache])`` -> (logits of the last token, cache), as ``generate`` calls ``inner``."""
    import torch

    options: dict[str, Any] = {"use_cache": True, "return_dict": False}
    if "logits_to_keep" in inspect.signature(inner.forward).parameters:
        options["logits_to_keep"] = 1

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, tokens: Any, cache: Any = None) -> Any:
            return tuple(self.inner(tokens, past_key_values=cache, **options)[:2])

    return Decoder()


def encoder_decoder_of(inner: Any) -> Any:
    """Make a module ``(tokens, states of the encoder[, cache])`` -> (logits, cache), as ``generate`` calls ``inner``.

    The encoder has run: its states are read where the cache has no keys and values of them yet.
    """
    import torch

    class EncoderDecoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, tokens: Any, states: Any, cache: Any = None) -> Any:
            found = self.inner(
                encoder_outputs=(states,), decoder_input_ids=tokens, past_key_values=cache, use_cache=True,
                return_dict=False,
            )  # fmt: skip
            return tuple(found[:2])

    return EncoderDecoder()


def states_of(model: Any, example: Any) -> Any:
    """Make the states that the encoder of a model gives of an example, with values that nobody wrote."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    encoder = model.inner.get_encoder()
    with quiet(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        found = encoder(torch.empty_like(example))[0]
    return torch.empty(found.shape, dtype=found.dtype, device=example.device)


def cache_of(model: Any, batch: int, tokens: int, states: Any = None) -> Any:
    """Make the cache of keys and values that ``model`` fills with ``tokens`` tokens of each of ``batch`` examples.

    ``states``: of the encoder, of a model that has one; then those of its states are in the cache too. What it holds
    has shapes and types, and values that nobody wrote. It lies where the weights of the model do.
    ``CdmppError`` where the model fills none.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._pytree import tree_map_only

    device = next(model.parameters()).device
    register_caches()
    try:
        with quiet(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
            read = () if states is None else (torch.empty_like(states),)
            made = model(torch.zeros(batch, tokens, dtype=torch.int64, device=device), *read)
            cache = made[1] if len(made) > 1 else None
    except Exception as error:
        raise CdmppError(
            f"{type(model.inner).__name__} does not read {tokens:,} tokens: {first_line(error)}"
        ) from error
    if not cache_bytes(cache):
        raise CdmppError(f"{type(model.inner).__name__} keeps no keys and values: leave past out")
    with torch.device(device):
        return tree_map_only(torch.Tensor, lambda one: torch.empty(one.shape, dtype=one.dtype), cache)


def cache_bytes(cache: Any) -> int:
    """Count the bytes of a cache's tensors."""
    import torch
    from torch.utils._pytree import tree_leaves

    return sum(one.nbytes for one in tree_leaves(cache) if isinstance(one, torch.Tensor))
