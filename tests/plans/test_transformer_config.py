"""Sizes of decoders from configs, next to those that are published."""

from __future__ import annotations

import json

import pytest

from cdmpp.errors import CdmppError
from cdmpp.plans.frameworks import MEGATRON, framework_of
from cdmpp.plans.transformer_config import shape_of
from cdmpp.plans.transformer_shape import StageOf, TransformerShape, stage_parameters

LLAMA = {
    "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
    "num_hidden_layers": 80, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip


def test_published_models_have_as_many_parameters_as_published():
    """124.4 million with 47 rows of padding for GPT-2; 8.03 billion, and rows of padding in embedding and head."""
    gpt2 = shape_of("hf:gpt2", None)
    assert gpt2 == TransformerShape(12, 768, 12, 3072, 50257, 1024, positions=1024)
    assert stage_parameters(gpt2, MEGATRON, StageOf(12), 1) == 124_439_808 + 47 * 768
    llama = shape_of("hf:Llama-3.1-8B", 4096)
    assert stage_parameters(llama, MEGATRON, StageOf(32), 1) == 8_030_261_248


def test_a_folder_with_a_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    shape = shape_of(f"hf:{tmp_path}", 8192)
    assert stage_parameters(shape, MEGATRON, StageOf(80), 1) == 70_553_706_496
    assert (shape.kv_heads, shape.is_gated, shape.is_tied) == (8, True, False)


@pytest.mark.parametrize(("change", "told"), [
    ({"hidden_size": None}, "has no hidden_size"),
    ({"head_dim": 64}, "heads of 64 for a width of 8192"),
    ({"model_type": "mamba"}, "sizes of mamba are not read"),
])  # fmt: skip
def test_configs_that_are_refused(tmp_path, change, told):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | change))
    with pytest.raises(CdmppError, match=told):
        shape_of(f"hf:{tmp_path}", 8192)


def test_broken_configs_are_named(tmp_path):
    for text in ("{", "[]", "{} {}"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CdmppError, match="config.json"):
            shape_of(f"hf:{tmp_path}", 8192)


def test_settings_of_a_framework():
    found = framework_of("megatron, sequence_parallel=true, attention=unfused, vocabulary_multiple=64")
    assert (found.sequence_parallel, found.attention, found.vocabulary_multiple) == (True, "unfused", 64)
    assert framework_of("megatron") is MEGATRON
