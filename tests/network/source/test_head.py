"""A language model of a name is trained without its head, which is said, or with it and its own loss."""

from __future__ import annotations

import pytest
import torch

from cdmpp.errors import CdmppError
from cdmpp.network.eager.step import read_step
from cdmpp.network.source.torch_network import read_torch
from cdmpp.network.workload import Workload

transformers = pytest.importorskip("transformers")


def _step(**settings):
    return read_step(Workload("hf:distilgpt2", batch=2, sequence=16, mode="training_step", **settings))


def test_with_its_own_loss_a_name_is_the_model_that_transformers_trains():
    config = transformers.GPT2Config(n_layer=6, use_cache=False)
    tokens = torch.randint(0, 100, (2, 16))
    module = transformers.GPT2LMHeadModel(config)
    given = Workload(module, {"input_ids": tokens, "labels": tokens}, mode="training_step", loss="model")
    own, whole = _step(loss="model"), read_step(given)
    assert own.step.counts["backward"] == whole.step.counts["backward"]
    assert own.graph.counts == whole.graph.counts
    assert own.step.memory.parameter_bytes == whole.step.memory.parameter_bytes
    assert any("50257" in str(one) for one in own.operators.values())
    assert not any("without the head" in one for one in own.warnings)


def test_without_its_head_it_says_so():
    found = _step()
    assert any("hf:distilgpt2 is GPT2Model, without the head of a language model" in one for one in found.warnings)
    network = read_torch(Workload("hf:distilgpt2", batch=2, sequence=16))  # inference has what the name says
    assert network.warnings == ()


@pytest.mark.parametrize("name", ["hf:google/vit-base-patch16-224", "hf:openai/whisper-tiny"])
def test_what_is_no_language_model_has_no_loss_of_its_own(name):
    with pytest.raises(CdmppError, match="loss='model' needs a language model"):
        read_torch(Workload(name, mode="training_step", loss="model"))
