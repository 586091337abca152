"""Published language models by their sizes: the workload of one, and a source of its steps."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cdmpp import Workload
from cdmpp.devices import Device
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.platform.paths import cache_root

Family = Literal["llama", "gpt2"]


@dataclass(frozen=True)
class LanguageModel:
    """These are the sizes of a decoder as its paper prints them.

    ``llama``: RMS norms, rotary positions, a gated product, no biases. ``gpt2``: layer norms, learned positions, GELU,
    biases, and the embedding is the head.
    """

    family: Family
    layers: int
    width: int
    heads: int
    vocabulary: int
    inner: int
    """Width between the products of a block's second half."""
    kv_heads: int = 0
    """Heads of keys and values; 0: as many as there are heads."""
    activation: str = ""
    """Name that transformers gives it; empty: ``silu``, or ``gelu_new``."""
    is_tied: bool | None = None
    """True if the head is the embedding; None: as the family has it."""

    def config(self, sequence: int, layers: int | None = None) -> dict[str, Any]:
        """Return the config of transformers for sequences of so many tokens.

        Args:
            sequence: tokens of an example.
            layers: blocks; None: all.
        """
        many = layers or self.layers
        if self.family == "llama":
            return {
                "model_type": "llama", "hidden_size": self.width, "intermediate_size": self.inner,
                "num_hidden_layers": many, "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads or self.heads, "vocab_size": self.vocabulary,
                "max_position_embeddings": sequence, "tie_word_embeddings": bool(self.is_tied),
                "hidden_act": self.activation or "silu", "rms_norm_eps": 1e-5,
            }  # fmt: skip
        return {
            "model_type": "gpt2", "n_embd": self.width, "n_inner": self.inner, "n_layer": many, "n_head": self.heads,
            "vocab_size": self.vocabulary, "n_positions": sequence, "tie_word_embeddings": self.is_tied is not False,
            "activation_function": self.activation or "gelu_new", "embd_pdrop": 0.0, "attn_pdrop": 0.0,
            "resid_pdrop": 0.0,
        }  # fmt: skip


def workload_of(model: LanguageModel, sequence: int, layers: int | None = None, **settings: Any) -> Workload:
    """Return the training step of a model, whose loss is that of every next token.

    Args:
        model: its sizes.
        sequence: tokens of an example.
        layers: blocks; None: all.
        settings: further fields of a ``Workload``, such as ``precision``, ``optimizer``, ``recompute`` or ``batch``.
    """
    text = json.dumps(model.config(sequence, layers), sort_keys=True)
    folder: Path = cache_root() / "language-models" / hashlib.sha256(text.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(text)
    return Workload(f"hf:{folder}", loss="model", sequence=sequence, mode="training_step", **settings)


def source_of(
    model: LanguageModel,
    sequence: int,
    device: Device,
    runtime: EagerRuntime | None = None,
    like: PredictedSource | None = None,
    **settings: Any,
) -> PredictedSource:
    """Return a source of the steps of a model.

    Args:
        model: its sizes.
        sequence: tokens of an example.
        device: that of each rank.
        runtime: with the model that prices kernels; None: the default one of the device.
        like: source of the same model and settings on another device, whose exports are used.
        settings: as of ``workload_of``.
    """
    return PredictedSource(workload_of(model, sequence, **settings), device, runtime, like)
