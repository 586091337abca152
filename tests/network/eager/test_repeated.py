"""A step of a network of equal blocks from a few of them: call by call as all of it is read."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._guards import detect_fake_mode

from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.eager.kept_reads import kept_reads
from cdmpp.network.eager.repeated import UnlikeBlocksError
from cdmpp.network.eager.step import ExportedStep, export_step, read_blocks, read_step
from cdmpp.network.source.blocks import FEW, LEAST
from cdmpp.network.workload import Workload
from cdmpp.plans.combinations import combination

transformers = pytest.importorskip("transformers")
BLOCKS, TOKENS = LEAST + 1, 32


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=BLOCKS, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=512, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    sizes = {"n_embd": 64, "n_layer": BLOCKS, "n_head": 4, "vocab_size": 512, "n_positions": TOKENS, "use_cache": False}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def mixtral() -> nn.Module:
    config = transformers.MixtralConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=BLOCKS, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=512, num_local_experts=4, use_cache=False, sliding_window=None,
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config)
    model.set_experts_implementation("grouped_mm")
    return model


def bert() -> nn.Module:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 512}
    return transformers.BertForMaskedLM(transformers.BertConfig(**sizes, num_hidden_layers=BLOCKS))


def read(step: ExportedStep, division: str) -> EagerNetwork:
    exported = divided = step.exported
    for one in combination(division).operators if division else ():
        divided = one.divide(divided, 2).along(one.degrees[0], divided, one.replicates)
    return step.read("sm_90", None if divided is exported else divided)


def parts(found: EagerNetwork) -> dict[str, Any]:
    assert found.step is not None
    graph = {f"graph {one.name}": getattr(found.graph, one.name) for one in fields(found.graph) if one.name != "tasks"}
    step = {f"step {one.name}": getattr(found.step, one.name) for one in fields(found.step) if one.name != "graph"}
    names = ("batch", "precision", "warnings", "operators", "stand_ins", "elements", "exchanges")
    return {**graph, **step, **{name: getattr(found, name) for name in names}, "tasks": dict(found.graph.tasks).keys()}


@pytest.mark.parametrize(
    "model, settings, few, divisions",
    [
        (llama, {"precision": "bf16"}, FEW[0], ("", "tp", "cp")),
        (llama, {"precision": "bf16", "recompute": "full"}, FEW[1], ("", "tp")),
        (llama, {"precision": "bf16", "recompute": "op"}, FEW[1], ("",)),
        (gpt2, {"precision": "bf16-autocast", "optimizer": "adamw-fused"}, FEW[0], ("", "tp")),
        (mixtral, {"precision": "bf16"}, FEW[0], ("", "ep", "ep+tp")),
        (bert, {"optimizer": "sgd"}, FEW[0], ("", "sp")),
    ],
    ids=["llama", "llama full", "llama op", "gpt2", "mixtral", "bert"],
)
def test_as_all_blocks(model: Any, settings: dict[str, str], few: int, divisions: tuple[str, ...]) -> None:
    tokens = torch.zeros(4, TOKENS, dtype=torch.int64)
    module = {"input_ids": tokens, "labels": tokens}
    workload = Workload(model(), example_inputs=module, loss="model", mode="training_step", **settings)
    own, whole = export_step(workload, few_blocks=few), export_step(workload)
    assert own.blocks is not None
    assert len(own.exported.graph.nodes) < len(whole.exported.graph.nodes) * 0.8
    for division in divisions:
        found, expected = parts(read(own, division)), parts(read(whole, division))
        for name in expected:
            assert found[name] == expected[name], (division, name)


def test_a_large_model_has_no_values_and_the_same_blocks(tmp_path: Path) -> None:
    """Its modules ask tensors without values for their device, once more in the first run than in later ones."""
    config = transformers.LlamaConfig(
        hidden_size=1024, intermediate_size=1024, num_hidden_layers=BLOCKS, num_attention_heads=8, vocab_size=16384
    )
    config.save_pretrained(tmp_path)
    workload = Workload(f"hf:{tmp_path}", mode="training_step", batch=2, sequence=TOKENS, precision="bf16")
    step = export_step(workload, few_blocks=FEW[0])
    assert detect_fake_mode(list(step.model.parameters())) is not None
    assert step.blocks is not None
    assert len(step.blocks.names) == BLOCKS


def test_blocks_that_cannot_be_repeated() -> None:
    """The first block recomputes what the second does not: four blocks do not say it, and the error has the call."""
    tokens = torch.zeros(4, TOKENS, dtype=torch.int64)
    given = {"input_ids": tokens, "labels": tokens}
    workload = Workload(
        llama(), example_inputs=given, loss="model", mode="training_step", precision="bf16", recompute="full"
    )
    with pytest.raises(UnlikeBlocksError, match="recomputed#.* reads results of another place in the next block"):
        export_step(workload, few_blocks=FEW[0]).read("sm_90")


@pytest.mark.parametrize(
    "recompute, few", [("none", FEW[0]), ("full", FEW[1])], ids=["few say the rest", "one more is needed"]
)
def test_a_step_of_a_folder_is_read_by_few_blocks(recompute: str, few: int, tmp_path: Path) -> None:
    llama().config.save_pretrained(tmp_path)
    settings = {"sequence": TOKENS, "precision": "bf16", "recompute": recompute}
    workload = Workload(f"hf:{tmp_path}", mode="training_step", batch=2, **settings)
    step, found = read_blocks(workload, "sm_90")
    assert step.blocks is not None
    assert step.blocks.few == few
    kept, whole = kept_reads().read(workload, "sm_90"), parts(read_step(workload, "sm_90"))
    assert parts(found) == whole
    assert parts(kept) == whole


def test_a_loss_that_reads_all_blocks_is_read_with_all() -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(BLOCKS))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = []
            for layer in self.layers:
                x = layer(x)
                found.append(x)
            return torch.stack(found)

    workload = Workload(Own(), example_inputs=torch.zeros(4, 8), loss="mse", mode="training_step")
    step, found = read_blocks(workload, "sm_90")
    assert step.blocks is None
    assert parts(found) == parts(read_step(workload, "sm_90"))
