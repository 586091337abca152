"""`cdmpp plan --strategies partition`: a network cut over equal and uneven devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdmpp import cli
from cdmpp.errors import CdmppError
from cdmpp.partition.plan_file import read_partition, save_partition

LAYERS = "name,forward_s,backward_s,parameter_bytes,output_bytes,examples\n" + "".join(
    f"block.{i},10e-3,20e-3,1000000,1000,8\n" for i in range(4)
)
LINK = "bytes,seconds\n1,1e-4\n1000000,10.1e-3\n100000000,1000.1e-3\n"
"""A hundred million bytes a second."""
FAST, SLOW = "batch: 8\nbatch_s: 0.12\nmemory_gb: 1\n", "batch: 8\nbatch_s: 0.36\nspeed: 1.0\nmemory_gb: 1\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "layers.csv").write_text(LAYERS)
    (tmp_path / "links.csv").write_text(LINK)
    (tmp_path / "fast.yaml").write_text(FAST)
    (tmp_path / "slow.yaml").write_text(SLOW)
    return tmp_path


def plan(*options, link="links.csv"):
    words = ["plan", "layers.csv", "--optimizer", "none", "--strategies", "partition"]
    return cli.main([*words, *(["--link", link] if link else []), *options])


def equal(*options):
    return plan("--device", "xeon-icelake", "--gpus", "4", "--batch", "8", "--micro-batches", "4", *options)


def answer(capsys):
    return json.loads(capsys.readouterr().out)


def test_equal_devices_get_a_layer_each(folder, capsys):
    assert equal("--json") == 0
    found = answer(capsys)
    by_name = {one["schedule"]: one for one in found["schedules"]}
    assert set(by_name) == {"sequential", "gpipe", "1f1b", "pipedream", "2bw", "delayed", "side-by-side"}
    for one in by_name.values():
        assert one["is_proven"] and one["slowest_stage_s"] == pytest.approx(one["bound_s"])
        assert [row["layers"] for row in one["stage_rows"]] == [[f"block.{i}"] for i in range(4)]
    assert by_name["delayed"]["step_s"] == pytest.approx(4 * 30e-3, rel=1e-6)
    assert by_name["delayed"]["staleness"] == 6 and by_name["pipedream"]["versions"] == 4
    assert by_name["gpipe"]["step_s"] == pytest.approx(7 * 30e-3, rel=0.02) == by_name["1f1b"]["step_s"]
    assert found["alone_s"] == pytest.approx(4 * 120e-3)
    assert found["schedules"][-1]["schedule"] == "side-by-side"
    assert by_name["side-by-side"]["step_s"] == pytest.approx(4 * 20e-3, rel=1e-2)


def test_the_fastest_cuts_are_saved_and_read_again(folder, capsys):
    assert equal("--pipeline-schedule", "delayed", "--save-plan", "cuts.yaml") == 0
    found = read_partition(Path("cuts.yaml"))
    assert (found.schedule, found.micro_batch, found.micro_batches, found.recompute) == ("delayed", 8, 4, False)
    assert [one.layers for one in found.stages] == [(f"block.{i}",) for i in range(4)]
    assert [one.devices for one in found.stages] == [(f"xeon-icelake #{i}",) for i in range(4)]
    save_partition(found, Path("again.yaml"))
    assert Path("again.yaml").read_text() == Path("cuts.yaml").read_text()
    text = Path("cuts.yaml").read_text()
    for old, new, says in (
        ("schedule: delayed", "schedule: later", "cuts.yaml: unknown pipeline schedule 'later'"),
        ("micro_batch: 8", "micro_batch: 0", "cuts.yaml: micro_batch is 0"),
        ("micro_batches: 4", "", "cuts.yaml: plan.micro_batches is missing"),
        ("- block.1", "- 1", r"cuts.yaml: stages.1.layers"),
        ("recompute: false", "recompute: false\nstage: 3", "cuts.yaml: .*stage"),
    ):
        Path("cuts.yaml").write_text(text.replace(old, new))
        with pytest.raises(CdmppError, match=says):
            read_partition(Path("cuts.yaml"))


def test_one_device_is_no_devices(folder, capsys):
    assert plan("--device", "xeon-icelake", "--gpus", "1", "--batch", "8", "--micro-batches", "4") == 0
    shown = capsys.readouterr().out
    assert "of 1 device" in shown and "1 devices" not in shown


def test_a_table_of_messages_whose_slope_changes_is_said_to_be_taken_as_a_line(folder, capsys):
    assert equal("--pipeline-schedule", "delayed", "--json") == 0
    assert not any("one start and one rate" in one for one in answer(capsys)["warnings"])
    (folder / "links.csv").write_text("bytes,seconds\n1,1e-4\n100000,2e-4\n1000000,10e-3\n100000000,0.1\n")
    assert equal("--pipeline-schedule", "delayed", "--json") == 0
    assert any("have one start and one rate" in one for one in answer(capsys)["warnings"])


def test_uneven_devices_get_their_share_in_the_best_order(folder, capsys):
    assert plan("--devices", "slow,fast.yaml", "--batch", "16", "--micro-batches", "4", "--json") == 0
    found = answer(capsys)
    best = next(one for one in found["schedules"] if one["schedule"] == "pipedream")
    layers = {row["devices"]: row["layers"] for row in best["stage_rows"]}
    assert len(layers["fast"]) == 3 and len(layers["slow"]) == 1
    assert best["step_s"] == pytest.approx(4 * 90e-3, rel=2e-3)
    assert found["devices"] == ["slow", "fast"]
    assert found["alone_s"] == pytest.approx(4 * 120e-3)


def test_one_schedule_text_page_and_trace(folder, capsys):
    assert (
        equal("--pipeline-schedule", "delayed", "--html", "page.html", "--timeline", "trace.json", "--csv", "a.csv")
        == 0
    )
    shown = capsys.readouterr()
    assert "Best partition: 4 stages on 4 of 4 devices, delayed" in shown.out
    assert "proven optimal by dynamic programming" in shown.out and "forward lock" in shown.out
    assert "Stages under delayed" in (folder / "page.html").read_text()
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert {one["args"]["name"] for one in events if one["name"] == "process_name"} == {"delayed"}
    rows = {one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert rows == {f"stage {i} (xeon-icelake #{i})" for i in range(4)}
    assert (folder / "a.csv").read_text().startswith("schedule,")


def test_devices_without_a_stage_are_said(folder, capsys):
    slow = "bytes,seconds\n1,50e-3\n1000000,60e-3\n"
    (folder / "slow-links.csv").write_text(slow)
    assert plan("--device", "xeon-icelake", "--gpus", "4", "--batch", "8", "--no-overlap", "--micro-batches", "4",
                "--pipeline-schedule", "1f1b", link="slow-links.csv") == 0  # fmt: skip
    shown = capsys.readouterr().out
    assert "1 stage on 1 of 4 devices" in shown and "3 devices have no stage: with a stage on each" in shown


def test_what_does_not_fit_is_explained(folder, capsys):
    assert equal("--memory-gb", "0.0005") == 2
    shown = capsys.readouterr().err
    assert "no partition fits under" in shown and "are missing" in shown and "which may hold 500 kB" in shown
    assert "weights, gradients and states 2.00 MB" in shown and "What would help" in shown
    assert equal("--memory-gb", "0.0031") == 0  # versions of weights do not fit
    shown = capsys.readouterr().out
    assert "Schedules that cannot be" in shown and "pipedream" in shown.split("Schedules that cannot be")[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--device a100", "needs devices: give --device and --gpus, or --devices"),
        ("--devices fast,,slow", "expected names with a comma between two"),
        ("--devices fast,slow --gpus 2", "give each device by name, or one --device and how many"),
        ("--devices fast,jetson-orin", "unknown device 'jetson-orin'"),
        ("--devices fast,gone.yaml", "gone.yaml"),
        ("--devices a100,t4", "was measured on one device, and a100 and t4 are named"),
        ("--device a100 --gpus 5 --batch 8", "5 devices, and a network that can be cut into 4 stages at most"),
        ("--device a100 --gpus 2 --batch 8 --micro-batches 3", "16 examples does not divide into 3 equal"),
        ("--device a100 --gpus 2 --batch 8 --global-batch 8", "give the examples of one device, or those of all"),
        ("--device a100 --gpus 2 --price 3", "--price does not go with --strategies partition"),
        ("--device a100 --gpus 2 --pipeline-schedule 1b1f", "unknown pipeline schedule '1b1f'"),
        ("--device a100 --gpus 2 --batch 1 --micro-batches 1 --global-batch 1", "--batch and --global-batch"),
        ("--device a100 --gpus 4 --batch 1 --micro-batches 1 --pipeline-schedule 2bw", "give 4 micro-batches or more"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(folder, capsys, options, message):
    assert plan(*options.split()) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--strategies", "partition,data", "--device", "a100", "--gpus", "2"], "give partition alone"),
        (["--devices", "a100,t4", "--keep-tied"], "--keep-tied goes with --strategies partition"),
        (["--strategies", "partition", "--devices", "a100", "--runtime", "tvm"], "is of --runtime torch"),
        (["--gpus", "2"], "--device is missing"),
    ],
)
def test_options_of_other_searches_are_told_apart(folder, capsys, options, message):
    assert cli.main(["plan", "layers.csv", *options]) == 2
    assert message in capsys.readouterr().err


def test_devices_that_nobody_joins_take_a_usual_link(folder, capsys):
    assert plan("--device", "a100", "--gpus", "2", "--batch", "8", "--pipeline-schedule", "1f1b", link=None) == 0
    assert "nothing says what joins the devices: pcie4 is taken" in capsys.readouterr().err


def test_replicas_share_a_stage(folder, capsys):
    assert equal("--stage-replicas", "--pipeline-schedule", "gpipe", "--json") == 0
    assert answer(capsys)["schedules"][0]["devices"] <= 4


def test_two_versions_are_held_on_every_stage_also_the_last(folder, capsys):
    assert equal("--pipeline-schedule", "2bw", "--json") == 0
    (found,) = answer(capsys)["schedules"]
    assert [(row["versions"], row["staleness"]) for row in found["stage_rows"]] == [(2, 1)] * 4
    header = "name,forward_s,backward_s,parameter_bytes,output_bytes,saved_bytes,examples\n"
    rows = "a,0.01,0.02,550000000,1000,1000,4\nb,0.01,0.02,1000000000,1000,1000,4\n"
    (folder / "layers.csv").write_text(header + rows)  # one stage holds 3.1 GB, the last of two 3 GB
    two = ["--device", "xeon-icelake", "--gpus", "2", "--batch", "8", "--micro-batches", "4"]
    assert plan(*two, "--pipeline-schedule", "2bw", "--memory-gb", "2.5") == 2
    assert "are missing" in capsys.readouterr().err
    assert plan(*two, "--pipeline-schedule", "2bw", "--memory-gb", "3.05", "--json") == 0
    assert len(answer(capsys)["schedules"][0]["stage_rows"]) == 2


def test_outputs_never_replace_files_of_devices(folder, capsys):
    for name in ("slow,fast.yaml", "slow.yaml, fast"):
        for given in ("slow.yaml", "fast.yaml"):
            assert plan("--devices", name, "--batch", "16", "--micro-batches", "4", "--html", given) == 2
            assert f"cannot write {given}: the same command reads it" in capsys.readouterr().err
    assert (folder / "slow.yaml").read_text() == SLOW and (folder / "fast.yaml").read_text() == FAST


def test_layers_that_take_no_time_are_refused(folder, capsys):
    (folder / "layers.csv").write_text(LAYERS.replace("10e-3,20e-3", "0,0"))
    assert equal() == 2
    assert "no layer takes any time" in capsys.readouterr().err
