"""``cdmpp step --plan`` with plans that divide the model."""

from __future__ import annotations

import json

import pytest

from cdmpp.cli import main

pytest.importorskip("torch")
STEP = ["step", "mlp", "--device", "h100", "--link", "pcie4"]
HYBRID = """
strategy: ddp
degrees: {pp: 2, dp_replicate: 2}
model_parallel: [{name: pipeline, schedule: gpipe, micro_batches: 4}]
"""


def test_a_hybrid_plan_is_replayed_with_a_timeline_of_its_ranks(tmp_path, capsys):
    plan, timeline = tmp_path / "plan.yaml", tmp_path / "ranks.json"
    plan.write_text(HYBRID)
    assert main([*STEP, "--batch", "8", "--plan", str(plan), "--timeline", str(timeline), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["replay"]
    assert (found["ranks"], found["strategy"], len(found["by_rank"])) == (4, "ddp + pipeline", 4)
    assert found["peak_bytes"] == sum(found["part_bytes"].values()) and found["peak_rank"] in (0, 1, 2, 3)
    events = [one for one in json.loads(timeline.read_text())["traceEvents"] if one["ph"] == "X"]
    names = {one["name"] for one in events}
    for number in range(4):
        assert f"forward to stage 1, micro-batch {number}" in names
        assert f"backward to stage 0, micro-batch {number}" in names
        assert {one["cat"] for one in events if one["name"].endswith(f", micro-batch {number}")} >= {
            "forward", "backward", "send_recv",
        }  # fmt: skip


def test_ranks_of_a_large_job_that_are_alike_are_replayed_once(tmp_path, capsys):
    plan = tmp_path / "plan.yaml"
    plan.write_text(HYBRID.replace("dp_replicate: 2", "dp_replicate: 32").replace("gpipe", "1f1b"))
    step = [*STEP[:4], "--link", "ethernet-25g"]
    assert main([*step, "--batch", "8", "--plan", str(plan), "--json"]) == 0
    caught = capsys.readouterr()
    found = json.loads(caught.out)["replay"]
    assert (found["ranks"], [one["rank"] for one in found["by_rank"]]) == (64, [0, 32])
    assert "each of ranks 0, 32 stands for others that do the same" in " ".join(found["warnings"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--batch", "6"], "a global batch of 12 does not divide into 8 equal parts"),
        (["--batch", "8", "--micro-batches", "2"], "--micro-batches does not go with --plan"),
    ],
)
def test_what_a_hybrid_plan_cannot_is_said(tmp_path, capsys, options, told):
    plan = tmp_path / "plan.yaml"
    plan.write_text(HYBRID)
    assert main([*STEP, *options, "--plan", str(plan)]) == 2
    assert told in capsys.readouterr().err


def test_only_operators_of_pytorch_are_divided(tmp_path, capsys):
    plan = tmp_path / "plan.yaml"
    plan.write_text(HYBRID)
    step = ["step", "mlp", "--device", "epyc-genoa", "--link", "pcie4", "--plan", str(plan)]
    assert main([*step, "--runtime", "tvm"]) == 2
    assert "pipeline divides the operators of --runtime torch, given --runtime tvm" in capsys.readouterr().err


def test_options_make_a_pipeline(capsys):
    options = ["--ranks", "2", "--strategy", "pipeline", "--micro-batches", "2", "--pipeline-schedule", "gpipe"]
    assert main([*STEP, "--batch", "8", *options]) == 0, "by PyTorch's own operators, unless said otherwise"
    told = capsys.readouterr().out
    assert told.startswith("2 ranks: ddp + pipeline over pcie4"), "the step of the plan leads"
    assert told.index("2 ranks: ddp") < told.index("\n\nOne device by itself: "), told
    assert main([*STEP, "--batch", "8", "--ranks", "2", "--strategy", "pipeline", "--pipeline-schedule", "x"]) == 2
    assert "pipeline.schedule is 'x'; one of gpipe, 1f1b" in capsys.readouterr().err


COMPILED = """
strategy: fsdp
degrees: {dp_shard: 2, tp: 2}
model_parallel: [{name: tensor, sequence_parallel: true}]
"""


def test_a_plan_of_compiled_blocks_is_replayed(tmp_path, capsys):
    plan = tmp_path / "plan.yaml"
    plan.write_text(COMPILED)
    step = ["step", "bert_tiny", "--device", "h100", "--link", "nvlink4", "--plan", str(plan), "--json"]
    step += ["--precision", "bf16-fsdp"]
    found = list[float]()
    for more in (["--runtime", "torch"], ["--runtime", "torch-compile"]):
        assert main([*step, "--batch", "64", *more]) == 0
        answer = json.loads(capsys.readouterr().out)
        replayed = answer.get("replay", answer)
        assert (replayed["ranks"], replayed["strategy"]) == (4, "fsdp + tensor")
        found.append(replayed["iteration_s"])
    assert found[1] < found[0]
    assert main([*step, "--runtime", "torch-compile"]) == 2
    assert "--batch is missing" in capsys.readouterr().err


def test_plans_of_compiled_blocks_are_ranked(tmp_path, capsys):
    """The best of them takes as long as its replay by ``cdmpp step``, and less than without ``torch.compile``."""
    plan = tmp_path / "plan.yaml"
    job = ["bert_tiny", "--device", "h100", "--link", "nvlink4", "--global-batch", "256", "--json"]
    searched = ["plan", *job, "--gpus", "4", "--strategies", "fsdp", "--save-plan", str(plan), "--replays", "2"]
    best = dict[str, float]()
    for precision, runtime in (
        ("bf16-fsdp", "torch"), ("bf16-fsdp", "torch-compile"), ("float8-tensorwise-fsdp", "torch-compile"),
    ):  # fmt: skip
        assert main([*searched, "--precision", precision, "--runtime", runtime]) == 0
        answer = json.loads(capsys.readouterr().out)
        best[precision, runtime] = answer["optimized"]["iteration_s"]
        step = ["step", *job, "--plan", str(plan), "--precision", precision, "--runtime", runtime]
        assert main(step) == 0
        replayed = json.loads(capsys.readouterr().out)
        found = replayed.get("replay", replayed)["iteration_s"]
        assert found == pytest.approx(best[precision, runtime], rel=1e-3)
    assert best["bf16-fsdp", "torch-compile"] < best["bf16-fsdp", "torch"]
    assert best["float8-tensorwise-fsdp", "torch-compile"] != best["bf16-fsdp", "torch-compile"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--strategy", "fsdp"], "--strategy does not go with --runtime torch-compile"),
        (["--cuda-graphs"], "--cuda-graphs does not go with --runtime torch-compile"),
        (["--framework", "megatron"], "--framework does not go with --runtime torch-compile"),
        (["--memory-only"], "--memory-only does not go with --runtime torch-compile"),
        (["--device", "epyc-genoa"], "no model trained on epyc-genoa is here for framework operators"),
        (["--strategies", "partition"], "--strategies partition does not go with --runtime torch-compile"),
        (["--power-limit-w", "800", "--precision", "bf16"], "800 W; it takes 100 W while idle, and at most 700 W"),
        (["--power-limit-w", "500"], "nobody published the power of products in float32"),
        (["--devices", "a100=2,h100=2"], "--devices does not go with --runtime torch-compile"),
    ],
)
def test_what_compiled_plans_cannot_is_said(capsys, options, told):
    job = ["plan", "bert_tiny", "--global-batch", "64", "--link", "ethernet-100g", "--runtime", "torch-compile"]
    if "--devices" not in options:
        job += ["--gpus", "4"] if "--device" in options else ["--gpus", "4", "--device", "h100"]
    assert main([*job, *options]) == 2
    assert told in capsys.readouterr().err


PLAN = ["plan", "torchvision:resnet18", "--device", "a100", "--link", "nvlink3"]


def test_help_of_plan_has_what_plan_takes(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for option in ("--straggler", "--ring-steps", "--cuda-graphs"):
        assert option not in said
    assert "micro-batches of a pipeline (default: 1); only with --memory-only or --strategies partition" in said


@pytest.mark.parametrize(
    "question",
    ["--gpus 4", "--gpus 4 --strategy ddp", "--gpus 4 --memory-only", "--machines 4 --strategy ps"],
)
@pytest.mark.parametrize("option", [["--straggler", "2=1.3"], ["--ring-steps"], ["--cuda-graphs"]])
def test_what_help_leaves_out_is_refused(question, option, capsys):
    assert main([*PLAN, *question.split(), *option]) == 2
    assert option[0] in capsys.readouterr().err


def test_a_power_limit_slows_products_down_and_nothing_else(capsys):
    """At 500 W an H100 multiplies at 0.71 of its full clock and not at 0.86; kernels one by one are those of 700 W."""
    job = ["plan", "bert_tiny", "--device", "h100", "--link", "nvlink4", "--gpus", "4", "--global-batch", "4096"]
    job += ["--precision", "bf16-fsdp", "--strategies", "fsdp", "--replays", "1", "--json"]
    best = list[float]()
    for more in ([], ["--power-limit-w", "500"]):
        assert main([*job, *more]) == 0
        answer = json.loads(capsys.readouterr().out)
        told = "products run at 71% of the full clock: a job would take more than the board's 500 W"
        assert (told in answer["warnings"]) == bool(more)
        best.append(answer["optimized"]["iteration_s"])
    assert best[0] < best[1] < 0.86 / 0.705 * best[0]
