"""`cdmpp plan --devices A:2,B:2`: plans on unlike devices, and `cdmpp step --plan` that replays the saved one."""

from __future__ import annotations

import json

import pytest

from cdmpp import cli

LAYERS = "name,forward_s,backward_s,parameter_bytes,output_bytes,saved_bytes,device\n" + "".join(
    f"block.{i},{speed}e-3,{2 * speed}e-3,4000000,100000,300000,{device}\n"
    for device, speed in (("fast", 1), ("slow", 3))
    for i in range(4)
)
LAB = """
name: lab
title: A lab
documents: {}
devices_per_node: 2
kinds:
  - {device: fast, nodes: 1, inside: pcie4, between: ethernet-25g}
  - {device: slow, nodes: 1, inside: pcie3, between: ethernet-10g}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "layers.csv").write_text(LAYERS)
    (tmp_path / "lab.yaml").write_text(LAB)
    return tmp_path


def plan(*options):
    words = ["plan", "layers.csv", "--global-batch", "48"]
    words += [] if "--devices" in options else ["--devices", "fast:2,slow:2"]
    return cli.main([*words, *options])


def answer(capsys):
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("strategies", ["data", "data+pipeline", "fsdp"])
def test_the_best_plan_is_replayed_by_step(folder, capsys, strategies):
    words = ("--cluster", "lab.yaml", "--strategies", strategies, "--replays", "4", "--json")
    assert plan(*words, "--save-plan", "best.yaml") == 0
    best = answer(capsys)
    text = (folder / "best.yaml").read_text()
    assert "fast:2" in text and best["plans"][0]["waits_for"]
    assert ("shares" in text) == (strategies == "data")
    step = ["step", "layers.csv", "--device", "fast", "--cluster", "lab.yaml", "--plan", "best.yaml", "--global-batch"]
    assert cli.main([*step, "48", "--json"]) == 0
    optimized = best.get("optimized", best)
    replayed_s = answer(capsys)["iteration_s"]
    assert replayed_s <= best["plans"][0]["step_s"] * (1 + 1e-9) and optimized
    assert cli.main([*[word.replace("fast", "other") for word in step], "48"]) == 2
    assert "--device other: ranks of the plan stand on fast, slow" in capsys.readouterr().err


def test_shares_are_three_to_one_and_equal_on_request(folder, capsys):
    assert plan("--link", "pcie4", "--strategies", "data", "--json") == 0
    plans = answer(capsys)["plans"]
    assert plans[0]["plan"]["shares"] in ([18, 18, 6, 6], [9, 9, 3, 3], [3, 3, 1, 1], [6, 6, 2, 2])
    assert plan("--link", "pcie4", "--strategies", "data", "--even-shares", "--json") == 0
    even = answer(capsys)["plans"]
    assert not any("shares" in one["plan"] for one in even)
    assert plans[0]["step_s"] < 0.6 * even[0]["step_s"]


def test_the_table_says_what_each_device_does(folder, capsys):
    assert plan("--cluster", "lab.yaml", "--strategies", "data+pipeline", "--replays", "2") == 0
    out = capsys.readouterr().out
    assert "What each device does under the best plan" in out and "waits for" in out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--gpus", "8"), "--gpus 8, and --devices has 4"),
        (("--device", "t4"), "--device does not go with --devices"),
        (("--scaling",), "--scaling does not go with --devices"),
        (("--strategy", "ddp"), "--strategy does not go with --devices"),
        (("--memory-gb", "0.001"), "no plan fits: devices may hold fast 1.00 MB, slow 1.00 MB"),
        (("--devices", "fast:2,other:2"), "layers.csv has no layers on other: fast, slow"),
        (("--devices", "fast:0"), "--devices has 'fast:0'"),
        (("--devices", "fast,,slow"), "--devices has ''"),
        (("--devices", "worker.yaml:2"), "files of workers are for --strategies partition"),
        (("--runtime", "tvm"), "--devices is of --runtime torch"),
    ],
)
def test_what_cannot_be_is_refused(folder, capsys, options, told):
    assert plan("--link", "pcie4", *options) == 2
    assert told in capsys.readouterr().err


def test_other_options_say_that_they_need_unlike_devices(folder, capsys):
    assert cli.main(["plan", "layers.csv", "--device", "t4", "--gpus", "2", "--link", "pcie4", "--even-shares"]) == 2
    assert "--even-shares goes with --devices" in capsys.readouterr().err
    assert cli.main(["plan", "layers.csv", "--device", "t4", "--gpus", "2", "--link", "pcie4"]) == 2
    assert "layers.csv has layers on fast, slow: name one of them by --device" in capsys.readouterr().err
    assert cli.main(["plan", "layers.csv", "--devices", "fast:2", "--cluster", "lab.yaml"]) == 0
    assert cli.main(["plan", "layers.csv", "--devices", "fast:2,t4:2", "--cluster", "lab.yaml"]) == 2
