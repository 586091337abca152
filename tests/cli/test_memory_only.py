"""`cdmpp plan ... --memory-only`: what each rank holds, from the command line."""

from __future__ import annotations

import csv
import json

import pytest

from cdmpp import cli
from cdmpp.plans.degrees import ParallelDegrees
from tests.plans.toy_source import ToySource

NETWORK = ("plan", "hf:prajjwal1/bert-tiny", "--device", "a100", "--cluster", "dgx-a100", "--memory-only")


@pytest.fixture(autouse=True)
def source(tmp_path, monkeypatch):
    """Eight layers of 4 MB in place of the network: no test here reads one."""
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("cdmpp.plans.sources.predicted.PredictedSource", lambda *_: ToySource())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(*options):
    return cli.main([*NETWORK, *options])


def test_degrees_that_are_left_out_take_the_rest(capsys):
    words = ("--gpus", "64", "--strategy", "fsdp+pipeline", "--degrees", "pp=4", "--micro-batches", "8", "--json")
    assert asked(*words, "--global-batch", "256") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"]["degrees"]["pp"] == 4 and found["plan"]["degrees"]["dp_shard"] == 16
    assert found["micro_batch"] == 2 and found["fits"] is True and len(found["ranks"]) == 4
    assert [one["in_flight"] for one in found["ranks"]] == [4, 3, 2, 1]
    assert [one["part_bytes"]["parameters"] for one in found["ranks"]] == [2 * 4_000_000 // 16] * 4
    assert {*found["basis"]} == {*found["ranks"][0]["part_bytes"]}


def test_a_plan_file_says_the_same(source, capsys):
    (source / "plan.yaml").write_text(
        "strategy: fsdp\ndegrees: {dp_shard: 16, pp: 4}\nmodel_parallel: [{name: pipeline, micro_batches: 8}]\n"
    )
    assert asked("--plan", "plan.yaml", "--global-batch", "256", "--json") == 0
    by_file = json.loads(capsys.readouterr().out)
    named = ("--gpus", "64", "--strategy", "fsdp+pipeline", "--degrees", "pp=4", "--micro-batches", "8")
    assert asked(*named, "--global-batch", "256", "--json") == 0
    assert json.loads(capsys.readouterr().out) == by_file


def test_a_plan_whose_ranks_all_have_the_device_of_the_job_is_answered(source, capsys):
    words = ("--plan", "plan.yaml", "--global-batch", "16", "--json")
    (source / "plan.yaml").write_text("strategy: fsdp\ndegrees: {dp_shard: 8}\ndevices: ['a100:8']\n")
    assert asked(*words) == 0
    named = json.loads(capsys.readouterr().out)
    (source / "plan.yaml").write_text("strategy: fsdp\ndegrees: {dp_shard: 8}\n")
    assert asked(*words) == 0 and json.loads(capsys.readouterr().out) == named
    (source / "plan.yaml").write_text("strategy: fsdp\ndegrees: {dp_shard: 8}\ndevices: ['h100:8']\n")
    assert asked(*words) == 2
    assert "--device a100: ranks of the plan stand on h100; name one of these" in capsys.readouterr().err


def test_what_lies_on_the_host_is_a_column_and_must_fit(source, capsys):
    """Eight layers of 4 MB with SGD's states: the host of four ranks has a share of them, their devices nothing."""
    words = ("--gpus", "4", "--strategy", "fsdp", "--batch", "2", "--offload", "parameters", "--json")
    assert asked(*words, "--csv", "m.csv") == 0
    found = json.loads(capsys.readouterr().out)
    (rank,) = found["ranks"]
    own = ToySource().work(2, ParallelDegrees()).memory
    assert rank["host_bytes"] == (own.parameter_bytes + own.state_bytes + own.gradient_bytes) // 4
    assert rank["part_bytes"]["parameters"] == rank["part_bytes"]["optimizer"] == 0
    assert found["host_limit_bytes"] == 2e12 / 4 and found["fits"] is True
    assert next(csv.DictReader((source / "m.csv").open()))["host_bytes"] == str(rank["host_bytes"])
    file = ("--plan", "plan.yaml", "--batch", "2", "--json")
    (source / "plan.yaml").write_text("strategy: fsdp\ndegrees: {dp_shard: 4}\noffload: [parameters]\n")
    assert asked(*file) == 0 and json.loads(capsys.readouterr().out)["ranks"] == found["ranks"]
    assert asked("--gpus", "4", *file, "--offload", "parameters") == 2
    assert "--offload does not go with --plan" in capsys.readouterr().err


def test_tables_and_files(source, capsys):
    words = ("--gpus", "8", "--strategy", "data+pipeline", "--degrees", "pp=2", "--micro-batches", "4")
    assert asked(*words, "--memory-gb", "0.01", "--csv", "m.csv", "--html", "m.html") == 0
    shown = capsys.readouterr()
    assert "it does not fit" in shown.out and "What each rank holds at its peak" in shown.out
    assert "no batch is given" in shown.err
    rows = list(csv.DictReader((source / "m.csv").open()))
    assert [row["place"] for row in rows] == ["0", "1"] and rows[0]["fits"] == "no"
    others = ("peak_bytes", "outside_bytes", "reserved_bytes", "host_bytes")
    parts = [name for name in rows[0] if name.endswith("_bytes") and name not in others]
    inside = {"inputs_bytes", "buffers_bytes", "workspace_bytes"}  # which the table adds to activations
    total = sum(int(rows[0][name]) for name in parts if name not in inside)
    assert total == int(rows[0]["peak_bytes"])
    assert "What each rank holds" in (source / "m.html").read_text()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "--ranks is missing"),
        (
            ("--gpus", "8", "--degrees", "dp_replicate=3"),
            "has a product of 3, and --gpus is 8: give degrees whose product divides it",
        ),
        (("--gpus", "8", "--degrees", "tp=2"), "tensor parallelism"),
        (("--gpus", "8", "--degrees", "width=2"), "expected NAME=N, each of dp_replicate"),
        (("--gpus", "8", "--degrees", "pp=2,pp=2"), "pp=2 is none"),
        (("--gpus", "8", "--strategy", "fsdp+pipeline"), "--degrees is missing dp_shard"),
        (("--gpus", "8", "--strategy", "pipeline", "--degrees", "pp=4"), "name a strategy for the rest"),
        (
            ("--gpus", "8", "--strategy", "fsdp", "--micro-batches", "4"),
            "--micro-batches goes with --strategy pipeline",
        ),
        (("--gpus", "8", "--strategies", "fsdp"), "--strategies does not go with --memory-only"),
        (("--gpus", "8", "--scaling"), "--scaling does not go with --memory-only"),
        (("--gpus", "8", "--batch", "2", "--global-batch", "16"), "--batch and --global-batch"),
        (("--gpus", "8", "--global-batch", "12"), "does not divide into 8 equal parts"),
        (("--gpus", "8", "--runtime", "tvm"), "--memory-only is of --runtime torch"),
        (("--gpus", "8", "--plan", "no.yaml", "--degrees", "pp=2"), "--degrees does not go with --plan"),
    ],
)
def test_what_cannot_be_is_refused(options, told, capsys):
    assert asked(*options) == 2
    shown = capsys.readouterr()
    assert told in shown.err and shown.out == ""


@pytest.mark.parametrize("plan", [("--strategy", "fsdp"), ("--strategy", "fsdp+pipeline", "--degrees", "pp=2")])
def test_an_allocator_is_followed(plan, capsys):
    words = ("--gpus", "8", *plan, *(("--micro-batches", "4") if "--degrees" in plan else ()))
    found, whole = (json.loads(_json(capsys, *NETWORK, *words, *own)) for own in (("--allocator", "expandable"), ()))
    for one, other in zip(found["ranks"], whole["ranks"], strict=True):
        parts = one["part_bytes"]
        assert one["reserved_bytes"] >= parts["parameters"] + parts["optimizer"]
        tensors = one["peak_bytes"] - one["outside_bytes"]
        assert tensors == other["peak_bytes"] - other["outside_bytes"] and other["reserved_bytes"] is None
        held = one["reserved_bytes"] + parts["context"] + parts["communicators"]
        assert one["peak_bytes"] == sum(parts.values()) == held, "reserved, and outside PyTorch"
    assert found["peak_bytes"] > whole["peak_bytes"] and found["fits"] is True
    between = ("--memory-gb", str((found["peak_bytes"] + whole["peak_bytes"]) / 2e9))
    for own, fits in ((("--allocator", "expandable"), False), ((), True)):
        assert json.loads(_json(capsys, *NETWORK, *words, *between, *own))["fits"] is fits


def test_an_allocator_of_another_question_is_refused(capsys):
    assert asked("--gpus", "8", "--allocator", "native") == 2
    assert "followed under fsdp over several ranks, given ddp" in capsys.readouterr().err
    assert cli.main([*NETWORK[:-1], "--gpus", "8", "--allocator", "native"]) == 2
    assert "--allocator goes with --memory-only" in capsys.readouterr().err
    framework = ("plan", "hf:gpt2", *NETWORK[2:], "--seq", "64", "--gpus", "8", "--framework", "megatron")
    assert cli.main([*framework, "--allocator", "native"]) == 2
    assert "--allocator does not go with --framework" in capsys.readouterr().err


def test_degrees_without_the_question_are_refused(capsys):
    assert cli.main([*NETWORK[:-1], "--gpus", "8", "--degrees", "pp=2"]) == 2
    assert "--degrees goes with --memory-only" in capsys.readouterr().err


MEGATRON = ("--gpus", "64", "--strategy", "zero1+tensor+pipeline", "--degrees", "tp=4,pp=4", "--micro-batches", "8")
MEGATRON += ("--global-batch", "32", "--seq", "2048")


def test_a_framework_needs_the_sizes_of_a_decoder_only(capsys):
    """Of Llama-3.1-8B in four stages of eight blocks: the embedding is 128,512 rows by four ranks."""
    network = ("plan", "hf:Llama-3.1-8B", *NETWORK[2:])
    told = json.loads(_json(capsys, *network, *MEGATRON, "--framework", "megatron,sequence_parallel=true"))
    block = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
    parameters = 8 * (block // 4 + 2 * 4096) + 128_512 // 4 * 4096
    first, *_, last = told["ranks"]
    assert first["part_bytes"]["parameters"] == 2 * parameters
    assert first["part_bytes"]["gradients"] == 4 * parameters
    assert first["part_bytes"]["optimizer"] == 12 * (parameters // 4)
    assert last["part_bytes"]["parameters"] == 2 * (parameters + 4096)  # its norm
    assert [one["in_flight"] for one in told["ranks"]] == [4, 3, 2, 1]
    assert last["logits_bytes"] == pytest.approx(6 * 2048 * 128_512 // 4, rel=0.01) and first["logits_bytes"] == 0
    whole = json.loads(_json(capsys, *network, *MEGATRON, "--framework", "megatron"))
    more = [two["peak_bytes"] - one["peak_bytes"] for one, two in zip(told["ranks"], whole["ranks"], strict=True)]
    # of each block in flight: three quarters of two norms and two sums, 2 bytes an element
    assert more[0] == pytest.approx(4 * 8 * 8 * 2048 * 4096 * 3 / 4, rel=0.1)


def _json(capsys, *words):
    assert cli.main([*words, "--json"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("network", "options", "told"),
    [
        ("hf:gpt2", ("--framework", "deepspeed"), "unknown framework 'deepspeed': expected megatron, nanotron"),
        ("hf:gpt2", ("--framework", "megatron,sequence=true"), "'sequence' is no setting"),
        ("hf:gpt2", ("--framework", "megatron,sequence_parallel=yes"), "expected true or false"),
        ("hf:gpt2", ("--framework", "megatron,attention=eager"), "expected flash or unfused"),
        ("hf:gpt2", ("--framework", "megatron,state=-1"), "expected a whole number from 0 up"),
        ("hf:gpt2", ("--framework", "megatron", "--strategy", "fsdp"), "--framework with fsdp"),
        ("hf:gpt2", ("--framework", "megatron", "--optimizer", "sgd"), "--optimizer sgd does not go with --framework"),
        ("hf:gpt2", ("--framework", "megatron", "--seq", "2048"), "it has 1,024 positions"),
        ("hf:Llama-3.1-8B", ("--framework", "megatron"), "--seq is missing"),
        ("hf:bert-base-uncased", ("--framework", "megatron", "--seq", "128"), "sizes of bert are not read"),
        ("torchvision:resnet18", ("--framework", "megatron"), "frameworks are known for hf: names"),
        ("hf:gpt2", ("--framework", "nanotron", "--strategy", "tensor", "--seq", "64"), "12 heads do not divide"),
    ],
)
def test_what_a_framework_does_not_have_is_refused(network, options, told, capsys):
    assert cli.main(["plan", network, *NETWORK[2:], "--gpus", "8", *options]) == 2
    assert told in capsys.readouterr().err
