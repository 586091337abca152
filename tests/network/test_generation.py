"""Language models that generate: the calls of a decoded token and of a prompt, as transformers runs them here."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import cdmpp
from cdmpp import cli
from cdmpp.errors import UsageError
from cdmpp.network.eager.read import read_run
from cdmpp.network.source.torch_network import read_torch
from cdmpp.network.workload import Workload
from cdmpp.programs.decoder import cache_of, decoder_of
from cdmpp.programs.models import import_transformers
from tests.network.configs import write_configs
from tests.network.dispatch_log import DispatchLog
from tests.network.dispatched import products

CONFIGS = {
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 64},
    "llama": {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    },
    "mistral": {
        "model_type": "mistral", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 8,
    },
}  # fmt: skip
BATCH, LAYERS, KEY_SIZES = 3, 2, {"gpt2": 32, "llama": 16, "mistral": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("transformers")
    return write_configs(tmp_path_factory.mktemp("configs"), CONFIGS)


def generated(folder, name: str, past: int, **options):
    return Workload(f"hf:{folder / name}", batch=BATCH, past=past, **options)


def dispatched(model, example, sizes) -> Counter:
    """Products without attention, and the copies of so many bytes that join tensors, of a real run."""

    def keys(func, args, out):
        joins = func is torch.ops.aten.cat.default and out.nbytes in sizes
        return [("cat", out.nbytes)] if joins else products(func, args, out)

    with torch.no_grad(), DispatchLog(keys) as log:
        model(*example)
    return Counter({key: n for key, n in log.seen.items() if key[0] == "cat" or (key[0] == "product" and key[1] == 1)})


@pytest.mark.parametrize("past", [0, 12])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_its_calls_are_those_of_a_real_run(folder, name, past):
    workload = generated(folder, name, past, sequence=None if past else 8)
    read, network, found = read_run(workload, "cpu"), read_torch(workload), Counter()
    sizes = [4 * BATCH * KEY_SIZES[name] * tokens for tokens in (8, past, past + 1)]
    for call in read.graph.calls:
        operator = read.operators[call.task_id]
        if operator.kind.family == "linear":
            found["product", *operator.matmul, "torch.float32"] += 1
        elif call.name.startswith("cat") and call.output_bytes in sizes:
            found["cat", call.output_bytes] += 1
    assert found == dispatched(network.model, network.example, sizes)
    assert found["cat", sizes[2] if past else sizes[0]] >= 2 * LAYERS
    assert read.tokens == BATCH * (1 if past else 8)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("gpt2", {"efficient_attention": {(1, 8, 13)}}),
        ("llama", {"bmm": {(1, 8, 13), (1, 13, 8)}}),  # no kernel has groups of heads in float32
    ],
)
def test_attention_is_over_all_positions(folder, name, sizes):
    read, found = read_run(generated(folder, name, 12)), dict[str, set]()
    for call in read.graph.calls:
        operator = read.operators[call.task_id]
        if operator.name == "bmm" and 13 in operator.matmul or operator.name.endswith("attention"):
            found.setdefault(operator.name, set()).add((operator["rows"], operator["inner"], operator["cols"]))
    assert found == sizes


@pytest.mark.parametrize(("name", "dtype"), [("gpt2", "float32"), ("llama", "float16")])
def test_the_cache_is_in_memory_once(folder, name, dtype):
    size = {"float32": 4, "float16": 2}[dtype]
    read = read_run(generated(folder, name, 12, dtype=dtype))
    each = 2 * LAYERS * BATCH * KEY_SIZES[name] * size
    assert read.cache_bytes == 13 * each
    assert read.graph.input_bytes == 12 * each + 8 * BATCH
    held = read.graph.input_bytes + read.alive_bytes
    assert read.cache_bytes < held < read.cache_bytes + 12 * each  # a layer's old keys go when the new ones are there
    prompt = read_run(generated(folder, name, 0, sequence=12, dtype=dtype))
    assert prompt.cache_bytes == 12 * each and prompt.alive_bytes > prompt.cache_bytes


def test_a_window_keeps_no_more_than_its_own(folder):
    read = read_run(generated(folder, "mistral", 30))
    assert read.cache_bytes == 2 * LAYERS * BATCH * 16 * 4 * 7  # a window of 8 keeps 7, and reads the new one


def test_a_made_cache_is_the_one_that_the_model_fills(folder):
    transformers = import_transformers()
    inner = transformers.GPT2LMHeadModel(transformers.GPT2Config(**CONFIGS["gpt2"])).eval()
    model = decoder_of(inner)
    with torch.no_grad():
        real = model(torch.zeros(BATCH, 12, dtype=torch.int64))[1]
    for one, other in zip(cache_of(model, BATCH, 12).layers, real.layers, strict=True):
        assert (one.keys.shape, one.values.dtype) == (other.keys.shape, other.values.dtype)


def test_tied_weights_lie_in_memory_once(folder):
    network = read_torch(generated(folder, "gpt2", 4))
    read = read_run(generated(folder, "gpt2", 4))
    assert read.graph.weight_bytes == sum(one.nbytes for one in (*network.model.parameters(), *network.model.buffers()))


def test_tokens_a_second_are_printed_and_in_json(folder, capsys):
    command = ["network", f"hf:{folder / 'llama'}", "--runtime", "torch", "--device", "h100", "--past", "12"]
    assert cli.main([*command, "--batch", "3"]) == 0
    shown = capsys.readouterr().out
    assert "tokens/s" in shown and "keys and values" in shown
    found = cdmpp.predict_network(generated(folder, "llama", 12), device="h100", runtime="torch").to_dict()
    assert found["tokens"] == 3 and found["tokens_per_s"] == pytest.approx(3 / found["latency_s"])
    assert found["cache_bytes"] == 2 * LAYERS * 3 * 16 * 4 * 13


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        ({"network": "torchvision:resnet18", "past": 4}, "only networks of an hf: name"),
        ({"network": "hf:gpt2", "past": 4, "mode": "training_step"}, "a cache of keys and values is of mode inference"),
        ({"network": "hf:gpt2", "past": -1}, "past"),
        ({"network": "hf:gpt2", "past": 1024}, "1,025 tokens an example, but it has 1,024 positions"),
        ({"network": "hf:t5-small", "past": 0}, "no causal language model"),
    ],
)
def test_what_generates_nothing_is_refused(workload, told):
    with pytest.raises(Exception, match=told):
        read_run(Workload(**workload))


def test_refusals_of_workloads_are_usage_errors():
    with pytest.raises(UsageError):
        Workload("hf:gpt2", past=1, mode="forward_backward")
