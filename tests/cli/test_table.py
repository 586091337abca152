"""`cdmpp step layers.csv`: measured layers and timed messages in place of a network and a link."""

from __future__ import annotations

import csv
import json

import pytest

from cdmpp import cli

LAYERS = "name,forward_s,backward_s,parameter_bytes,output_bytes,examples\n" + "".join(
    f"block.{i},1e-3,2e-3,4000,1000,2\n" for i in range(4)
)
PIPELINE = "degrees: {pp: 2}\nmodel_parallel:\n  - {name: pipeline, micro_batches: 4, cuts: [block.2]}\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "layers.csv").write_text(LAYERS)
    (tmp_path / "links.csv").write_text("bytes,seconds\n500,1e-3\n1000,1e-3\n")
    (tmp_path / "plan.yaml").write_text(PIPELINE)
    return tmp_path


def step(*options):
    return cli.main(["step", "layers.csv", "--device", "a100", "--link", "links.csv", *options])


def test_replicas_reduce_over_timed_messages(folder, capsys):
    """Passes of 12 ms; 16 kB in one bucket of 2 ranks are two messages of 8 kB, as long as one of 1 kB."""
    assert step("--ranks", "2", "--no-overlap", "--json") == 0
    assert json.loads(capsys.readouterr().out)["iteration_s"] == pytest.approx(14e-3)


def test_a_pipeline_of_a_file_runs_its_micro_batches(folder, capsys):
    """2 stages, passes of 2 and 4 ms, messages of 1 ms, 4 micro-batches of 2 examples.

    The last stage runs its first forward pass at 3 and its backward pass to 9. From then on each micro-batch waits for
    its message and takes 6 ms: gradients arrive at 10, 17, 24 and 31 ms, and the first stage ends 4 ms later.
    """
    assert step("--plan", "plan.yaml", "--batch", "8", "--json") == 0
    assert json.loads(capsys.readouterr().out)["iteration_s"] == pytest.approx(35e-3)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--ranks", "2", "--input", "x=1"), "--input does not go with layers.csv"),
        (("--ranks", "2", "--seq", "128"), "--seq does not go with layers.csv"),
        (("--ranks", "2", "--decoder-seq", "8"), "--decoder-seq does not go with layers.csv"),
        (("--ranks", "2", "--past", "0"), "--past does not go with layers.csv"),
        (("--ranks", "2", "--boxes", "0"), "--boxes does not go with layers.csv"),
        (("--ranks", "2", "--moe-imbalance", "2"), "--moe-imbalance does not go with layers.csv"),
        (("--ranks", "2", "--loss", "model"), "--loss does not go with layers.csv"),
        (("--ranks", "2", "--schedule", "untuned"), "--schedule does not go with layers.csv"),
        (("--ranks", "2", "--no-fallback"), "--no-fallback does not go with layers.csv"),
        (("--ranks", "2", "--runtime", "torch", "--recompute", "full"), "--recompute does not go with layers.csv"),
        (("--ranks", "2", "--runtime", "torch", "--attention", "flash"), "--attention does not go with layers.csv"),
        (("--plan", "plan.yaml", "--batch", "3"), "does not divide into 4 equal parts"),
    ],
)
def test_what_a_table_cannot_say_is_refused(folder, capsys, options, told):
    assert step(*options) == 2
    assert told in capsys.readouterr().err


def test_one_device_needs_no_replay(folder, capsys):
    assert cli.main(["step", "layers.csv", "--device", "a100"]) == 2
    assert "--ranks is missing: layers.csv says what one device takes" in capsys.readouterr().err


def test_a_table_at_several_numbers_of_examples_needs_a_batch(folder, capsys):
    (folder / "layers.csv").write_text(LAYERS + LAYERS.partition("\n")[2].replace(",2\n", ",4\n"))
    assert step("--ranks", "2") == 2
    assert "--batch or --global-batch is missing: layers.csv has layers at 2, 4 examples" in capsys.readouterr().err


def test_the_heaviest_rank_is_named_and_a_pipeline_may_return_no_outputs(folder, capsys):
    """The last of two stages makes outputs of 10 MB, of which 4 micro-batches are kept where they are returned."""
    rows = LAYERS.rstrip().splitlines()
    (folder / "layers.csv").write_text("\n".join([*rows[:-1], rows[-1].replace(rows[-1].split(",")[4], "10000000")]))
    held = {}
    for returns in ("true", "false"):
        (folder / "plan.yaml").write_text(PIPELINE.replace("cuts:", f"return_outputs: {returns}, cuts:"))
        assert step("--plan", "plan.yaml", "--batch", "8") == 0
        assert "of rank 1, which holds most" in capsys.readouterr().out
        assert step("--plan", "plan.yaml", "--batch", "8", "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["peak_rank"], found["peak_bytes"]) == (1, sum(found["part_bytes"].values()))
        held[returns] = found["peak_bytes"]
    assert held["true"] > held["false"] + 3 * 10e6


def test_settings_of_one_way_are_not_searched(folder, capsys):
    asked = ["plan", "layers.csv", "--device", "a100", "--link", "links.csv", "--ranks", "2", "--strategy", "ddp"]
    assert cli.main(asked) == 2
    assert "settings are not searched for layers.csv" in capsys.readouterr().err


def test_all_ways_to_train_are_ranked(folder, capsys):
    """Two replicas of 2 examples: 12 ms of passes, and the all-reduce that they do not hide."""
    asked = ["plan", "layers.csv", "--device", "a100", "--link", "links.csv", "--gpus", "2", "--global-batch", "4"]
    assert cli.main([*asked, "--strategies", "data,pipeline", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert {"data", "pipeline"} <= {one["combination"] for one in plans}
    assert min(one["step_s"] for one in plans) == pytest.approx(14e-3, rel=0.15)
    for command in ([*asked[:-1], "64", "--strategies", "data"], ["step", *asked[1:-1], "64"]):
        assert cli.main(command) == 0
        told = capsys.readouterr().err
        assert "were measured at 2 examples: those at " in told and " are in proportion to those at 2\n" in told


def test_a_csv_of_all_ways_holds_the_ranked_plans(folder, capsys):
    asked = ["plan", "layers.csv", "--device", "a100", "--link", "links.csv", "--gpus", "2", "--global-batch", "4"]
    assert cli.main([*asked, "--strategies", "data,pipeline", "--top", "3", "--csv", "plans.csv", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    with open(folder / "plans.csv") as stream:
        rows = list(csv.DictReader(stream))
    assert [(one["words"], float(one["step_s"])) for one in rows] == [(one["words"], one["step_s"]) for one in plans]
    assert len(rows) == 3


def test_examples_that_come_late_are_the_limit(folder, capsys):
    """4 examples at 100 a second take 40 ms."""
    asked = ["plan", "layers.csv", "--device", "a100", "--link", "links.csv", "--gpus", "2", "--global-batch", "4"]
    assert cli.main([*asked, "--strategies", "data", "--input-samples-per-s", "100", "--scaling"]) == 0
    told = capsys.readouterr()
    assert "input pipeline" in told.out and "40.00 ms" in told.out
    assert "by replay of measured layers" in told.out + told.err and "predicted kernels" not in told.out + told.err
    assert cli.main([*asked[:-2], "--strategy", "ddp", "--input-samples-per-s", "100"]) == 2
    assert "--input-samples-per-s does not go with --strategy" in capsys.readouterr().err


def test_plans_are_calibrated_on_measured_runs(folder, capsys):
    """One rank takes 24 ms in place of 12; two take 40, so that gradients take 16 in place of two messages of 16."""
    (folder / "links.csv").write_text("bytes,seconds\n500,1e-3\n1000,2e-3\n")
    (folder / "one.yaml").write_text("degrees: {}\n")
    (folder / "two.yaml").write_text("strategy: {name: ddp, overlap: false}\ndegrees: {dp_replicate: 2}\n")
    (folder / "runs.csv").write_text("plan,global_batch,seconds\none.yaml,2,24e-3\ntwo.yaml,4,40e-3\n")
    asked = ["plan", "layers.csv", "--device", "a100", "--link", "links.csv", "--gpus", "2", "--global-batch", "4"]
    found = {}
    for name, more in (("nominal", []), ("calibrated", ["--calibrate", "runs.csv"])):
        assert cli.main([*asked, "--strategies", "data", *more, "--json"]) == 0
        found[name] = json.loads(capsys.readouterr().out)
    (told,) = [one for one in found["calibrated"]["warnings"] if "calibrated on 2 runs: computing x 2," in one]
    assert 1.5 < float(told.split(", ")[-1].split()[0]) < 2.5
    nominal_s, calibrated_s = (min(plan["step_s"] for plan in one["plans"]) for one in found.values())
    assert 24e-3 < calibrated_s <= 41e-3 and calibrated_s != pytest.approx(nominal_s, rel=0.01)
    assert "several nodes" not in told
    (folder / "alone.csv").write_text("plan,global_batch,seconds\none.yaml,2,24e-3\n")
    nodes = ["plan", "layers.csv", "--device", "v100", "--cluster", "dgx1-v100", "--global-batch", "16"]
    assert cli.main([*nodes, "--gpus", "16", "--strategies", "data", "--calibrate", "alone.csv", "--json"]) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert any("inside a node; no run was on several nodes: links between them are taken" in one for one in warnings)
    assert cli.main([*asked, "--calibrate", "none.csv"]) == 2
    assert "none.csv cannot be read" in capsys.readouterr().err
