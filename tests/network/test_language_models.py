"""Language models of transformers as their users have them: they return caches of keys and values, or are given one."""

from __future__ import annotations

import copy
import json
import resource

import pytest
import torch

import cdmpp
from cdmpp.errors import CdmppError
from cdmpp.network.compiled.stored_graph import graph_for
from cdmpp.network.eager.read import read_run
from cdmpp.network.eager.step import read_step
from cdmpp.network.source.trained_model import trained_model
from cdmpp.network.workload import Workload
from cdmpp.programs.caches import register_caches
from cdmpp.programs.models import import_transformers

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
GPT2 = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 64,
    "n_positions": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
T5 = {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_kv": 8, "vocab_size": 64}
MODELS = {
    "LlamaForCausalLM": {**SIZES, **HEADS},
    "Qwen2ForCausalLM": {**SIZES, **HEADS},
    "Qwen3ForCausalLM": {**SIZES, **HEADS, "head_dim": 8},
    "MistralForCausalLM": {**SIZES, **HEADS, "sliding_window": 8},
    "GPT2LMHeadModel": GPT2,
    "MixtralForCausalLM": {**SIZES, **HEADS, "num_local_experts": 4},
    "T5ForConditionalGeneration": T5,
}
NO_TVM = ("MixtralForCausalLM",)
TOKENS = 16


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("transformers")
    return import_transformers()


def made(transformers, name: str):
    """A model with random weights, and its inputs."""
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    tokens = torch.randint(0, 64, (2, TOKENS))
    example = {"input_ids": tokens}
    if name.startswith("T5"):
        example["decoder_input_ids"] = tokens[:, :4]
    return kind(kind.config_class(**MODELS[name])).eval(), example


PRODUCTS = ("linear", "bmm", "attention")


@pytest.mark.parametrize("name", MODELS)
def test_pytorch_runs_it(transformers, name):
    model, example = made(transformers, name)
    read = read_run(Workload(model, example))
    products = [call for call in read.graph.calls if read.operators[call.task_id].kind.family in PRODUCTS]
    assert len(products) >= 2 * 4
    with torch.no_grad():
        cache = model(**example).past_key_values
    caches = getattr(cache, "self_attention_cache", cache), getattr(cache, "cross_attention_cache", None)
    kept = [tensor for one in caches if one for layer in one.layers for tensor in (layer.keys, layer.values)]
    assert len(read.graph.results) >= len(kept)  # each is a result: it lives to the end
    assert sum(read.graph.calls[place].output_bytes for place in read.graph.results) >= sum(
        one.numel() * 4 for one in kept
    )


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel"])
def test_a_cache_is_no_more_calls_than_its_copies(transformers, name):
    model, example = made(transformers, name)
    calls = []
    for use_cache in (False, True):
        model.config.use_cache = use_cache
        calls.append([call.name.split("#")[0] for call in read_run(Workload(model, example)).graph.calls])
    copies = [name for name in calls[1] if name.startswith("cat")]
    before = [name for name in calls[0] if name.startswith("cat")]
    assert len(copies) == len(before) + 2 * 2 and len(calls[1]) == len(calls[0]) + 2 * 2  # keys and values, two layers


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel", "MistralForCausalLM"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_cache_that_is_given_is_an_input(transformers, name, dtype):
    model, example = made(transformers, name)
    with torch.no_grad():
        cache = model(**example).past_key_values
    held = sum(one.numel() for layer in cache.layers for one in (layer.keys, layer.values))
    before = copy.deepcopy(cache)
    token = {"input_ids": example["input_ids"][:, :1], "past_key_values": cache}
    read = read_run(Workload(model, token, precision=dtype))
    size = 4 if dtype == "float32" else 2
    assert read.graph.input_bytes == 2 * 8 + held * size
    joined = [call for call in read.graph.calls if call.name.startswith("cat") and call.resident]
    assert (
        len(joined) == 2 * 2
        and {call.output_bytes for call in joined} == {2 * held * size // 8 + 2 * 16 * size}
        or (name != "LlamaForCausalLM")
    )
    assert all(torch.equal(a.keys, b.keys) for a, b in zip(before.layers, cache.layers, strict=True))  # left as it was


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "T5ForConditionalGeneration"])
def test_an_export_with_caches_computes_what_the_model_does(transformers, name):
    model, example = made(transformers, name)
    register_caches()
    exported = torch.export.export(model, (), example)
    with torch.no_grad():
        expected, found = model(**example), exported.module()(**example)
    assert torch.allclose(expected.logits, found.logits, atol=1e-5)


def test_a_training_step_of_one(transformers):
    model, example = made(transformers, "LlamaForCausalLM")
    step = read_step(Workload(model, example, mode="training_step")).step
    assert step.counts["backward"] > 0 and len(step.parameters) == len(list(model.parameters()))


@pytest.mark.tvm
@pytest.mark.parametrize(
    "name",
    [
        "LlamaForCausalLM",
        *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS if name not in (*NO_TVM, "LlamaForCausalLM")),
    ],
)
def test_tvm_compiles_it(transformers, name):
    model, example = made(transformers, name)
    graph = graph_for(Workload(model, example)).graph
    assert sum(task.op_class in ("dense", "matmul") for task in graph.tasks.values()) >= 4
    assert len(graph.results) >= 1 + 2 * 2


@pytest.mark.tvm
def test_what_tvm_cannot_import_is_named_with_what_can(transformers):
    model, example = made(transformers, "MixtralForCausalLM")
    with pytest.raises(
        CdmppError, match=r"grouped_mm_fallback.* at inner\.model\.layers\.0\.mlp\.experts.*--runtime torch"
    ):
        graph_for(Workload(model, example))


@pytest.mark.parametrize("implementation", ["eager", "batched_mm"])
def test_experts_are_answered_however_they_run(transformers, implementation):
    model, example = made(transformers, "MixtralForCausalLM")
    model.set_experts_implementation(implementation)
    assert cdmpp.predict_network(model, example, device="h100", runtime="torch").latency_s > 0


def test_weights_that_hold_nothing_give_the_same_calls(transformers):
    model, example = made(transformers, "LlamaForCausalLM")
    with torch.device("meta"):
        described = type(model)(model.config).eval()
    whole, hollow = (read_run(Workload(one, example)) for one in (model, described))
    assert hollow.graph.calls == whole.graph.calls and hollow.graph.weight_bytes == whole.graph.weight_bytes
    assert {value.device.type for value in described.parameters()} == {"meta"}
    steps = [read_step(Workload(one, example, mode="training_step")).step for one in (model, described)]
    assert steps[0].graph.calls == steps[1].graph.calls and steps[0].memory == steps[1].memory
    with pytest.raises(CdmppError, match="weights on the device meta: a step of TVM's programs needs values"):
        trained_model(Workload(described, example, mode="training_step"))


def test_a_large_model_needs_no_memory_for_its_weights(transformers, tmp_path):
    sizes = {**SIZES, **HEADS, "hidden_size": 16384, "intermediate_size": 53248}
    config = {**sizes, "model_type": "llama", "head_dim": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = f"hf:{tmp_path}"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read = read_run(Workload(asked))
    assert read.graph.weight_bytes > 20e9
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < 2e9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Llama-2-7b-hf", 6_738_415_616 - 32000 * 4096),  # as published, without the head
        ("Llama-3.1-8B", 8_030_261_248 - 128256 * 4096),
        ("Mistral-7B-v0.1", 7_241_732_096 - 32000 * 4096),
        ("Mixtral-8x7B-v0.1", 46_702_792_704 - 32000 * 4096),
    ],
)
def test_well_known_large_models_have_their_published_sizes(transformers, name, parameters):
    read = read_run(Workload(f"hf:{name}"))
    assert read.graph.weight_bytes == pytest.approx(4 * parameters, rel=1e-4)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MistralForCausalLM"])
def test_an_empty_cache_is_no_input(transformers, name):
    model, example = made(transformers, name)
    cache = transformers.DynamicCache(config=model.config)
    given = read_run(Workload(model, {**example, "past_key_values": cache})).graph
    assert [call.task_id for call in given.calls] == [
        call.task_id for call in read_run(Workload(model, example)).graph.calls
    ]
    assert cache.get_seq_length() == 0
