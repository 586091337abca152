"""A table of layers as a step graph: by hand, from CSV and JSON, and what is refused."""

from __future__ import annotations

import json

import pytest

from cdmpp.errors import CdmppError
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.steps.from_layers import COLUMNS, Layer, graph_of_layers, read_layers
from cdmpp.steps.strategy_replay import replay_strategy
from tests.steps.toy_graph import MIB, ranks_of, wires

LAYERS = tuple(Layer(f"layer {i}", 1e-3, 2e-3, 4 * MIB, MIB) for i in range(4))
TABLE = "\n".join([",".join(COLUMNS), *(f"layer {i},1e-3,2e-3,{4 * MIB},{MIB}" for i in range(4))])


@pytest.mark.parametrize("strategy", [DDP(), FSDP()])
def test_a_table_is_the_step_that_was_made_by_hand(strategy):
    made, by_hand = graph_of_layers(LAYERS, 3, update_s=1e-3), ranks_of(3)
    assert replay_strategy(made, strategy, wires(3)).iteration_s == pytest.approx(
        replay_strategy(by_hand, strategy, wires(3)).iteration_s
    )


def test_results_are_saved_and_gradients_follow_their_layers():
    layers = (Layer("embed", 1.0, 2.0, 8, 100), Layer("relu", 3.0, 4.0, 0, 50))
    (rank,) = graph_of_layers(layers).ranks
    assert [(op.phase, op.duration_s) for op in rank.ops] == [
        ("forward", 1.0), ("forward", 3.0), ("backward", 4.0), ("backward", 2.0), ("backward", 0.0),
    ]  # fmt: skip
    assert [op.inputs for op in rank.ops] == [(), (0,), (1,), (0, 2), (0, 3)]
    assert [op.output_bytes for op in rank.ops] == [100, 50, 100, 0, 8]
    assert [(one.name, one.ready_after) for one in rank.gradients] == [("embed", 4)]
    assert [one.name for one in rank.modules] == ["embed"]


def test_what_a_layer_saves_is_not_what_it_hands_on():
    one = Layer("block", 1.0, 2.0, 8, 100, saved_bytes=700, update_s=0.5)
    (rank,) = graph_of_layers((one, one)).ranks
    assert (rank.ops[0].output_bytes, rank.ops[0].saved_bytes, rank.ops[0].result_bytes) == (700, 700, 100)
    assert rank.phase_s == {"forward": 2.0, "backward": 4.0, "update": 1.0}


def test_both_files_are_read_alike(tmp_path):
    (tmp_path / "layers.csv").write_text(TABLE)
    rows = [{column: getattr(one, column) for column in COLUMNS} for one in LAYERS]
    (tmp_path / "layers.json").write_text(json.dumps(rows))
    assert read_layers(tmp_path / "layers.csv") == read_layers(tmp_path / "layers.json") == LAYERS


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "", "has no layers"),
        ("a.csv", "name,forward_s\nx,1", "layer 1 has name, forward_s: expected name, forward_s, backward_s"),
        ("a.csv", TABLE.replace("1e-3", "fast"), "layer 1: forward_s is 'fast', expected seconds"),
        ("a.csv", TABLE.replace("1e-3", "-1"), "layer 'layer 0': forward_s is -1.0, expected 0 or more"),
        ("a.csv", TABLE.replace("1e-3", "nan"), "forward_s is nan"),
        ("a.csv", TABLE + ",9", "expected name"),
        ("a.json", '{"name": "x"}', "has no layers"),
        ("a.json", "[1]", "layer 1 has 1: expected name"),
        ("a.json", "[", "cannot read"),
    ],
)
def test_tables_that_are_none_are_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(CdmppError, match=message):
        read_layers(tmp_path / name)


def test_steps_without_layers_or_ranks_are_refused(tmp_path):
    with pytest.raises(CdmppError, match="without layers"):
        graph_of_layers(())
    with pytest.raises(CdmppError, match="ranks 0: expected 1 to"):
        graph_of_layers(LAYERS, 0)
    with pytest.raises(CdmppError, match="no such file"):
        read_layers(tmp_path / "none.csv")
