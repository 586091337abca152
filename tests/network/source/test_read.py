"""Every kind of network is really imported, computes what its source does, or is refused in a sentence."""

from __future__ import annotations

import json
import sys

import pytest

from cdmpp.errors import CdmppError

torch = pytest.importorskip("torch")
tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from torch import nn  # noqa: E402

from cdmpp.network.graph import graph_of  # noqa: E402
from cdmpp.network.source.checkpoint import checkpoint_entry, read_checkpoints  # noqa: E402
from cdmpp.network.source.entry import torchvision_entry, with_shape  # noqa: E402
from cdmpp.network.source.read import read_network  # noqa: E402
from cdmpp.network.workload import Workload  # noqa: E402
from cdmpp.programs.batch_norm import fold_batch_norm  # noqa: E402
from cdmpp.programs.exported import export  # noqa: E402
from cdmpp.programs.models import INPUTS, build_model  # noqa: E402
from cdmpp.programs.networks import relax_of_exported  # noqa: E402


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x, scale=None):
        x = torch.relu(self.first(x))
        return self.second(x if scale is None else x * scale)


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 6, 3, stride=2),
        nn.BatchNorm2d(6),
        nn.ConvTranspose2d(6, 4, 2),
        nn.BatchNorm2d(4),
    )
    for norm in model:
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.running_mean), nn.init.uniform_(norm.running_var, 0.5, 2)
            nn.init.uniform_(norm.weight), nn.init.uniform_(norm.bias)
    return model.eval()


def run(module, inputs, weights):
    """What TVM computes, as torch tensors; ``weights`` as TVM's importers found them."""
    from tvm import relax

    assert len(module["main"].params) == len(inputs) + len(weights)
    machine = relax.VirtualMachine(tvm.compile(module, tvm.target.Target({"kind": "llvm"})), tvm.cpu())
    found = machine["main"](*[tvm.runtime.tensor(x.numpy()) for x in inputs], *weights)
    found = found if hasattr(found, "numpy") else found[0]
    return torch.from_numpy(found.numpy())


def graph(source):
    return graph_of(source.module, source.name)


def weights_of(source):
    from tvm.relax.frontend.torch import from_exported_program

    exported = export(source.torch_model, source.example)
    fold_batch_norm(exported)
    return list(from_exported_program(exported, keep_params_as_input=True)["main"].attrs["params"])


def test_a_torch_module_by_place_and_by_name():
    x, scale = torch.randn(4, 16), torch.randn(32)
    source = read_network(Workload(Small(), x))
    assert (source.name, source.batch, source.example) == ("Small", 4, (x,)) and graph(source).calls
    assert not source.torch_model.training
    by_name = read_network(Workload(Small(), {"scale": scale, "x": x}))
    assert by_name.torch_model(*by_name.example).shape == (4, 8)
    assert graph(by_name).counts == graph(read_network(Workload(Small(), (x, scale)))).counts
    shaped = read_network(Workload(Small(), inputs={"x": [3, 16]}))
    assert shaped.batch == 3 and shaped.torch_model(*shaped.example).shape == (3, 8)


def test_batch_norm_is_folded_and_the_numbers_stay():
    model, x = convolutions(), torch.randn(2, 3, 12, 12)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    source = read_network(Workload(model, x))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any("sqrt" in call.name or "divide" in call.name for call in graph(source).calls)
    expected = model(x).detach()
    torch.testing.assert_close(run(source.module, (x,), weights_of(source)), expected, atol=1e-3, rtol=1e-3)


def test_shared_weights_and_training_statistics_are_not_folded():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x):
            return self.norm(self.conv(x)) + self.conv(x + 1)

    x = torch.randn(1, 3, 4, 4)
    assert fold_batch_norm(export(Twice().eval(), (x,))) == 0
    loose = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, track_running_stats=False)).eval()
    assert fold_batch_norm(export(loose, (x,))) == 0
    assert fold_batch_norm(export(convolutions(), (torch.randn(1, 3, 8, 8),))) == 3


def test_a_zoo_network_and_a_torchvision_name():
    assert read_network(Workload("zoo:mlp", batch=3)).batch == 3 and read_network(Workload("mlp@b16")).batch == 16
    named = read_network(Workload("torchvision:resnet18"))
    assert (named.name, named.batch) == ("resnet18", 1)
    torchvision = pytest.importorskip("torchvision")
    given = read_network(Workload(torchvision.models.resnet18(), named.example))
    assert graph(given).counts == graph(named).counts


@pytest.mark.slow
def test_the_numbers_of_a_transformer_stay():
    source = read_network(Workload("bert_tiny"))
    assert source.name == "bert_tiny" and source.batch == 1
    out = source.torch_model(*source.example).detach()
    assert out.shape == (1, 128, 128)
    torch.testing.assert_close(run(source.module, source.example, weights_of(source)), out, atol=1e-3, rtol=0)


def test_entries_of_libraries():
    sizes = {"resnet50": 224, "inception_v3": 299, "swin_v2_t": 256, "fcn_resnet50": 520}
    assert {name: torchvision_entry(name)["input"]["image"] for name in sizes} == sizes
    entry = torchvision_entry("resnet18")
    assert with_shape(entry, {"x": [2, 3, 64, 96]}, "n")["input"] == {"image": [3, 64, 96], "batch": 2}
    assert with_shape(entry, {"pixel_values": [1, 3, 64, 64]}, "n")["input"] == {"image": 64, "batch": 1}
    text = {"input": {"tokens": 8}}
    assert with_shape(text, {"input_ids": [1, 32]}, "n")["input"] == {"tokens": 32, "batch": 1}
    with pytest.raises(CdmppError, match="it takes one input, for example input_ids=1,128"):
        with_shape(text, {"input_ids": [1, 32], "attention_mask": [1, 32]}, "n")


def test_a_checkpoint_by_name_and_by_config(tmp_path):
    pytest.importorskip("transformers")
    source = read_network(Workload("hf:bert-tiny", batch=2))
    assert (source.name, source.batch) == ("bert-tiny", 2)
    config = {"model_type": "bert", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config |= {"intermediate_size": 512, "dtype": "float16", "auto_map": {"AutoModel": "evil--code.Model"}}
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    name, entry = checkpoint_entry(str(folder))
    assert name == "mine" and checkpoint_entry(str(folder / "config.json")) == (name, entry)
    assert "code" not in str(entry) and "float16" not in str(entry)
    mine, own = build_model(entry), source.torch_model
    assert mine[0](*mine[1]).shape == (1, 128, 128)
    assert [p.shape for p in mine[0].parameters()][3:] == [p.shape for p in own.parameters()][3:]
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "t5",
                "num_layers": 1,
                "is_encoder_decoder": True,
                "d_model": 64,
                "d_ff": 64,
                "d_kv": 16,
                "num_heads": 4,
            }
        )
    )
    encoder = read_network(Workload(f"hf:{folder}"))
    assert encoder.name == "mine (encoder)"
    assert encoder.torch_model(torch.ones(1, 8, dtype=torch.long)).shape == (1, 8, 64)
    (folder / "config.json").write_text('{"model_type": "brt"}')
    with pytest.raises(CdmppError, match=r"model_type is 'brt'.*nearest: .*bert"):
        read_network(Workload(f"hf:{folder}"))
    (folder / "config.json").write_text('{"model_type": "bert", "hidden_size": "wide"}')
    with pytest.raises(CdmppError, match=r"config\.json is no config of bert"):
        read_network(Workload(f"hf:{folder}"))


def test_shipped_checkpoints_are_well_formed():
    transformers = pytest.importorskip("transformers")
    table = read_checkpoints()
    assert len(table) >= 40 and len({name.split("/")[-1] for name in table}) == len(table)
    for name, entry in table.items():
        assert entry["source"] == "transformers" and set(entry["input"]) <= {*INPUTS, "batch"}, name
        assert hasattr(transformers, entry["config"]) and ("module" in entry or hasattr(transformers, entry["build"]))
    assert checkpoint_entry("t5-small")[0] == "t5-small (encoder)"
    assert checkpoint_entry("bert-base-uncased")[1] == checkpoint_entry("google-bert/bert-base-uncased")[1]


def test_a_relax_module_before_and_after_the_passes():
    raw = relax_of_exported(export(Small().eval(), (torch.randn(4, 16),)))
    source = read_network(Workload(raw))
    assert source.batch == 4 and source.example is None and source.torch_model is None
    counts = graph(source).counts
    assert counts == graph(read_network(Workload(source.module))).counts
    assert counts == graph(read_network(Workload(Small(), torch.randn(4, 16)))).counts
    bare = tvm.IRModule({"main": raw["main"].without_attr("num_input")})
    assert graph(read_network(Workload(bare))).folded == 0, "without num_input there are no weights"


def test_mixed_precision():
    assert any(
        '"float16"' in task.workload for task in graph(read_network(Workload("mlp", precision="fp16"))).tasks.values()
    )
    assert all('"float16"' not in task.workload for task in graph(read_network(Workload("mlp"))).tasks.values())


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({}, {}, r"a dict is no network: give a zoo network .* file\.py:FUNCTION"),
        (tvm.IRModule(), {}, "its function main is not there"),
        ("bert_tinny", {}, "there is no network 'bert_tinny': nearest: bert_tiny"),
        ("bert-base-uncased", {}, "nearest: hf:bert-base-uncased"),
        ("zoo:bert_tinny", {}, "not in the zoo; nearest: bert_tiny"),
        ("torchvision:resnet51", {}, "not among torchvision's models.* nearest: resnet50"),
        ("torchvision:r3d_18", {}, "is for video or flow"),
        ("hf:bert-bse-uncased", {}, r"nearest: bert-base-uncased.*config\.json and give hf:FOLDER"),
        ("weights.pt", {}, "pickles are not loaded"),
        ("none.onnx", {}, "there is no file none.onnx"),
        ("none.py:make", {}, "there is no file none.py"),
        ("mlp", {"batch": 0}, "batch is 0: expected a whole number from 1 to"),
        ("mlp", {"inputs": {"y": [1, 256]}}, "mlp: input y=1,256: it takes one input, for example x=1,256"),
        ("mlp", {"inputs": {"x": [2, 256]}, "batch": 3}, "batch=3, but inputs give 2"),
        ("mlp", {"example_inputs": torch.ones(1)}, "mlp has inputs of its own"),
        ("mlp", {"dtype": "float8"}, "TVM.s programs have fp32 or fp16"),
        (Small(), {}, r"Small: a module says nothing about its inputs: give example_inputs"),
        (Small(), {"example_inputs": torch.ones(4, 16), "batch": 2}, "batch=2, but its example inputs have batch 4"),
        (Small(), {"example_inputs": torch.ones(4, 16), "inputs": {"x": [1]}}, "not both"),
        (Small(), {"example_inputs": torch.ones(4, 15)}, r"Small cannot be exported.*must have same reduction dim"),
        (Small(), {"example_inputs": {"z": torch.ones(4, 16)}}, "unexpected keyword argument 'z'"),
        (Small(), {"example_inputs": (torch.ones(4, 16), 3)}, r"example inputs must be tensors \(here 3\)"),
    ],
)
def test_what_cannot_be_read_says_what_can(given, options, message):
    with pytest.raises(CdmppError, match=message):
        read_network(Workload(given, **options))


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(CdmppError, match="transformers is not installed"):
        read_network(Workload("hf:bert-tiny"))
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(CdmppError, match="torchvision is not installed: `pip install .*torch=="):
        read_network(Workload("torchvision:resnet18"))


def test_positions_of_roberta_are_no_sum_over_tokens(tmp_path):
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "roberta", "vocab_size": 200, **sizes}))
    entry = checkpoint_entry(str(tmp_path))[1]
    numbered, tokens = build_model(entry)
    counted, _ = build_model({key: value for key, value in entry.items() if key != "first_position"})
    torch.testing.assert_close(numbered(tokens[0] + 3), counted(tokens[0] + 3))
    assert graph(read_network(Workload(f"hf:{tmp_path}"))).calls


def test_attention_whose_result_lies_in_other_strides_is_read(tmp_path):
    pytest.importorskip("transformers")
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 200}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
    one, several = (graph(read_network(Workload(f"hf:{tmp_path}", batch=batch))) for batch in (1, 4))
    assert len(one.calls) == len(several.calls)
