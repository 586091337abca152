"""Sizes of a decoder from its config, as transformers writes it; nothing is built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError, UsageError
from cdmpp.network.source.checkpoint import read_checkpoints
from cdmpp.plans.transformer_shape import TransformerShape
from cdmpp.platform.content import content_of, parse_json

_LLAMA = ("llama", "mistral", "qwen2")
_GPT2 = {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None, "vocab_size": 50257, "n_positions": 1024}
"""Transformers takes these where a config of GPT-2 says nothing."""


def shape_of(network: str, sequence: int | None) -> TransformerShape:
    """Return the sizes of an ``hf:`` name or folder.

    Args:
        network: such as ``hf:Llama-3.1-8B``.
        sequence: tokens of an example; None: the positions of GPT-2, which others do not limit.

    Raises:
        CdmppError: no such decoder, or a config that lacks a size.
    """
    values = _values(network)
    kind = str(values.get("model_type", ""))
    if kind == "gpt2":
        own = _GPT2 | {name: value for name, value in values.items() if name in _GPT2}
        hidden, positions = int(own["n_embd"]), int(own["n_positions"])
        tokens = sequence or positions
        if tokens > positions:
            raise UsageError(f"{network}: {tokens:,} tokens an example, but it has {positions:,} positions")
        inner = int(own["n_inner"] or 4 * hidden)
        heads, vocabulary = int(own["n_head"]), int(own["vocab_size"])
        return TransformerShape(int(own["n_layer"]), hidden, heads, inner, vocabulary, tokens, positions=positions)
    if kind not in _LLAMA:
        raise CdmppError(
            f"{network}: sizes of {kind or 'such a network'} are not read; expected {', '.join(_LLAMA)} or gpt2"
        )
    if sequence is None:
        raise UsageError(f"--seq is missing: say how many tokens an example of {network} has")
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
    if missing := [name for name in names if not isinstance(values.get(name), int) or values[name] < 1]:
        raise CdmppError(f"{network}: its config has no {missing[0]}")
    layers, hidden, heads, inner, vocabulary = (int(values[name]) for name in names)
    if hidden % heads or values.get("head_dim") not in (None, hidden // heads):
        raise CdmppError(
            f"{network}: heads of {values.get('head_dim')} for a width of {hidden} and {heads} heads are not read"
        )
    return TransformerShape(
        layers, hidden, heads, inner, vocabulary, sequence, int(values.get("num_key_value_heads") or heads),
        is_gated=True, has_bias=False, is_tied=bool(values.get("tie_word_embeddings")),
    )  # fmt: skip


def _values(network: str) -> Mapping[str, Any]:
    name = network.removeprefix("hf:")
    path = Path(name).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if not network.startswith("hf:"):
        raise UsageError(f"{network}: frameworks are known for hf: names and folders with a config.json")
    if path.is_file():
        try:
            found = parse_json(content_of(path))
        except ValueError as error:
            raise CdmppError(f"{path} is no JSON: {error}") from error
        if not isinstance(found, Mapping):
            raise CdmppError(f"{path}: expected a config, an object")
        return found
    table = read_checkpoints()
    full = {one.split("/")[-1]: one for one in table}.get(name, name)
    if full not in table:
        raise CdmppError(f"{network} is none of the shipped checkpoints: give a folder with its config.json")
    entry = table[full]
    return {"model_type": str(entry.get("config", "")).removesuffix("Config").lower(), **entry.get("arguments", {})}
