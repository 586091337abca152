"""`cdmpp synchrony`: synchronies side by side, with workers, servers, loss and time; wrong input in one line."""

from __future__ import annotations

import csv
import json

import pytest

from cdmpp import cli


@pytest.fixture
def command(workplace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fast.yaml").write_text("batch_s: 0.1\nbatch: 32\n")
    (tmp_path / "core.yaml").write_text("device: epyc-genoa\nbatch: 8\n")
    (tmp_path / "slow.yaml").write_text("batch_s: 0.1\nbatch: 32\nspeed: 0.25\n")
    rows = "".join(f"{n},{1 / (0.0004 * n + 0.45) + 0.1}\n" for n in range(0, 20000, 1000))
    (tmp_path / "curve.csv").write_text(f"samples,loss\n{rows}")
    return ["synchrony", "--workers", "fast.yaml,fast.yaml,slow.yaml", "--bytes", "10MB"]


def test_synchronies_are_compared(command, capsys):
    assert cli.main([*command, "--policies", "bsp,ssp:4,async", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rate = {one["synchrony"]: one["samples_per_s"] for one in found["synchronies"]}
    assert rate["bsp"] == pytest.approx(3 * 32 / 0.4, rel=0.01)  # the slowest worker's pace
    assert rate["async"] == pytest.approx(32 * (1 / 0.1 + 1 / 0.1 + 1 / 0.4), rel=0.01)  # the sum of all
    assert found["best"] == "async"
    assert [one["commits"] for one in found["synchronies"][2]["workers"]] == pytest.approx([6000, 6000, 1500], abs=1)


def test_time_to_a_loss_with_its_assumption(command, capsys, tmp_path):
    more = ["--loss-curve", "curve.csv", "--target-loss", "0.3", "--policies", "bsp,async", "--csv", "out.csv"]
    assert cli.main([*command, *more, "--html", "page.html"]) == 0
    out, err = capsys.readouterr()
    assert "Best of 2 synchronies: async" in out and "loss 0.3 after" in out
    assert "limit of small steps" in err
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    needed = (1 / 0.2 - 0.45) / 0.0004
    assert float(rows[0]["to_loss_s"]) == pytest.approx(0.4 * needed / 32, rel=0.01)
    assert "Loss against time" in (tmp_path / "page.html").read_text()


def test_a_medium_is_shared_by_all_in_both_directions(command, capsys):
    assert cli.main([*command, "--policies", "async", "--link", "wifi", "--seconds", "100", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["synchronies"]
    moved = sum(one["sent_bytes"] + one["received_bytes"] for one in found["workers"])
    assert 0.85 < moved / (100 * 0.1083e9) <= 1.001
    assert found["limit"] == "medium"


def test_adsp_searches_its_commits_by_the_loss_curve(command, capsys):
    more = ["--loss-curve", "curve.csv", "--target-loss", "0.15", "--policies", "adsp,adsp:1", "--link", "ethernet-1g"]
    assert cli.main([*command, *more, "--seconds", "1200", "--json"]) == 0
    searched, fixed = json.loads(capsys.readouterr().out)["synchronies"]
    assert searched["settings"]["commits_per_check"] is None and searched["settings"]["target_loss"] == 0.15
    assert fixed["settings"]["commits_per_check"] == 1
    assert searched["commits_per_s"] > fixed["commits_per_s"]


def test_every_setting_of_a_policy_can_be_given(command, capsys):
    policies = "adsp:4,check_s=6,least_s=1,catch_up=true,bsp,local:every=2,nesterov=TRUE,outer_momentum=0.5"
    assert cli.main([*command, "--policies", policies, "--seconds", "30", "--json"]) == 0
    adsp, bsp, local = json.loads(capsys.readouterr().out)["synchronies"]
    assert adsp["synchrony"] == "adsp:4,check_s=6,least_s=1,catch_up=true" and bsp["synchrony"] == "bsp"
    settings = adsp["settings"]
    assert [settings[key] for key in ("commits_per_check", "check_s", "least_s", "catch_up")] == [4, 6, 1, True]
    assert local["settings"]["nesterov"] is True and local["settings"]["outer_momentum"] == 0.5


def test_measured_batches_that_vary_have_an_interval(command, capsys, tmp_path):
    assert cli.main([*command, "--policies", "bsp,async", "--json"]) == 0
    for one in json.loads(capsys.readouterr().out)["synchronies"]:  # nothing is left to chance
        assert one["low_per_s"] is None and one["high_per_s"] is None
    (tmp_path / "fast.yaml").write_text("batch_s: 0.1\nbatch: 32\nspread: 0.3\n")
    assert cli.main([*command, "--policies", "bsp,async", "--seconds", "60", "--json"]) == 0
    bsp, one = json.loads(capsys.readouterr().out)["synchronies"]
    assert bsp["low_per_s"] is None  # all wait for the worker that does not vary
    assert 0.9 * one["samples_per_s"] < one["low_per_s"] < one["samples_per_s"] < one["high_per_s"]


def test_the_whole_staleness_is_in_the_answer(command, capsys):
    assert cli.main([*command, "--policies", "async", "--seconds", "60", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["synchronies"]
    for one in found["workers"]:
        assert sum(one["staleness_counts"].values()) == one["commits"]
        mean = sum(int(k) * n for k, n in one["staleness_counts"].items()) / one["commits"]
        assert mean == pytest.approx(one["staleness"])


def test_stale_updates_count_less_with_a_penalty(command, capsys):
    more = ["--loss-curve", "curve.csv", "--target-loss", "0.3", "--policies", "bsp,async", "--json"]
    found = {}
    for penalty in ("0", "1"):
        assert cli.main([*command, *more, "--staleness-penalty", penalty]) == 0
        out, err = capsys.readouterr()
        assert ("1 / (1 + 1 x weight x staleness)" in err) == (penalty == "1")
        found[penalty] = {one["synchrony"]: one["to_loss_s"] for one in json.loads(out)["synchronies"]}
    assert found["1"]["bsp"] == found["0"]["bsp"]  # its updates are not stale
    assert found["1"]["async"] > 2 * found["0"]["async"]


def test_the_loss_curve_can_be_trained_here(command, capsys, tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "class Falling:\n"
        "    def __init__(self):\n"
        "        self.parameters, self.batches = [torch.zeros(4)], 0\n"
        "    def batch(self):\n"
        "        self.batches += 1\n"
        "        import time; time.sleep(0.005)\n"
        "        return 8, 1 / (0.01 * self.batches + 0.5) + 0.1\n"
        "def train(seed, worker, workers):\n"
        "    return Falling()\n"
    )
    more = ["--train", "train.py:train", "--train-seconds", "2", "--target-loss", "1", "--policies", "bsp,async"]
    assert cli.main([*command, *more, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["loss_curve"]["a"] == pytest.approx(0.01 / 8, rel=0.1)
    assert found["loss_curve"]["c"] == pytest.approx(0.1, abs=0.05)
    assert found["synchronies"][0]["to_loss_s"] is not None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--policies", "bsp,,ssp"], "expected names with a comma"),
        (["--policies", "bsp,bsp"], "names bsp twice"),
        (["--policies", "bps"], "unknown synchrony 'bps'; nearest: bsp"),
        (["--policies", "ssp:-1"], "ssp.slack is -1"),
        (["--policies", "bsp:2"], "bsp has no settings"),
        (["--policies", "bsp", "--explain", "ssp:4"], "not among --policies"),
        (["--policies", "adsp:gamma=60"], "adsp has no setting 'gamma'"),
        (["--policies", "adsp:4,least_s=1,least_s=2"], "least_s is given twice"),
        (["--policies", "adsp:4,least_s=soon"], "adsp.least_s is 'soon': expected a number"),
        (["--policies", "adsp:4,catch_up=1"], "adsp.catch_up is '1': expected true or false"),
        (["--policies", "bsp,least_s=1"], "unknown synchrony 'least_s=1'"),
        (["--target-loss", "0.3"], "goes with --loss-curve"),
        (["--train-seconds", "3"], "--train-seconds 3 is of --train"),
        (["--train", "a.py:f", "--loss-curve", "curve.csv"], "leave out one of them"),
        (["--train", "none.py:f"], "there is no file none.py: give file.py:FUNCTION"),
        (["--train", "curve.csv"], "expected FILE.py:FUNCTION"),
        (["--staleness-penalty", "0.5"], "is of a loss curve"),
        (["--staleness-penalty", "-1", "--loss-curve", "curve.csv"], "-1"),
        (["--policies", "adsp"], "give a target loss, or fix the commits in 60 s, as in adsp:1"),
        (["--policies", "adacomm"], "adacomm decides by the loss: give --loss-curve"),
        (["--target-loss", "0.05", "--loss-curve", "curve.csv"], "is never reached: the fitted curve falls to 0.1"),
        (["--seconds", "0.2"], "worker 2 ends no batch"),
        (["--servers", "4", "--servers-on-workers"], "--servers 4 on 3 workers"),
        (["--servers-on-workers", "--server-link", "ethernet-1g"], "leave out one"),
        (["--link", "ethernet-1"], "ethernet-1g"),
        (["--server-link", "wifi"], "wifi is shared by all: give it as --link"),
        (["torchvision:resnet18"], "leave out one of the two"),
        (["--seq", "8"], "--seq and --input are of NETWORK"),
        (["--policies", "ssp:4,ssp:04"], "ssp:04, which is there in other words"),
        (["--servers", "1025"], "1025"),
        (["--runtime", "torch"], "--runtime is of workers with a device"),
    ],
)
def test_wrong_input_is_one_line(command, more, words, capsys):
    assert cli.main([*command, *more]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize(
    ("workers", "size", "words"),
    [
        ("core.yaml", "1MB", "NETWORK is missing: a worker runs it on a device"),
        ("none.yaml", "1MB", "none.yaml"),
        ("fast.yaml,", "1MB", "with a comma"),
        ("fast.yaml", "0", "expected 1 byte"),
    ],
)
def test_files_and_sizes_that_cannot_be(command, workers, size, words, capsys):
    assert cli.main(["synchrony", "--workers", workers, "--bytes", size]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


def test_bytes_are_asked_for_where_nothing_reads_the_network(command, capsys):
    assert cli.main(command[:-2]) == 2
    assert "--bytes is missing, or NETWORK" in capsys.readouterr().err


def test_the_network_says_how_large_its_parameters_are(command, capsys):
    assert cli.main([*command[:-2], "torchvision:resnet18", "--policies", "bsp", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == 4 * 11_689_512


def test_a_time_without_an_upper_end_is_said_so(command, capsys, tmp_path):
    (tmp_path / "line.csv").write_text("samples,loss\n" + "".join(f"{1000 * n},{10 - n}\n" for n in range(9)))
    more = ["--loss-curve", "line.csv", "--target-loss", "3", "--policies", "bsp"]
    assert cli.main([*command, *more]) == 0
    assert "loss 3 after" in capsys.readouterr().out


def test_a_link_that_is_full_is_busy_though_adding_takes_no_time(command, capsys, tmp_path):
    """Each of 12 workers would pull 10 MB in 0.1 to 0.2 s, and the server's link sends 11.9 MB in that time."""
    for i in range(12):
        (tmp_path / f"{i}.yaml").write_text(f"batch_s: {0.1 + 0.01 * i}\nbatch: 32\nspread: 0.3\n")
    command[2] = ",".join(f"{i}.yaml" for i in range(12))
    assert cli.main([*command, "--policies", "async", "--link", "ethernet-1g", "--seconds", "100", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["synchronies"]
    (server,) = found["servers"]
    assert found["link_busy"] == server["link_busy"] > 0.8 and found["server_busy"] == server["busy"] == 0
    sent = max(server["sent_bytes"], server["received_bytes"])
    assert server["link_busy"] == pytest.approx(sent / 100 / (0.95 * 0.125e9), rel=1e-3)
    assert found["limit"] == "server link"
    assert cli.main([*command, "--policies", "async", "--link", "wifi", "--seconds", "100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["synchronies"][0]["link_busy"] > 0.85  # of the medium


def test_a_link_carries_the_same_for_buying_machines_and_for_replaying_them(command, capsys, tmp_path):
    (tmp_path / "layers.csv").write_text(
        "name,forward_s,backward_s,parameter_bytes,output_bytes,examples\na,1,2,9,9,8\n"
    )
    (tmp_path / "timed.csv").write_text("bytes,seconds\n1,1e-4\n1000000,10.1e-3\n100000000,1000.1e-3\n")
    for link, rate in (("ethernet-10g", 0.95 * 1.25e9), ("timed.csv", 1e8)):
        for device in ("t4", "xeon-icelake"):
            words = ["plan", "layers.csv", "--device", device, "--strategy", "ps", "--machines", "2", "--link", link]
            assert cli.main([*words, "--json"]) == 0
            bought = json.loads(capsys.readouterr().out)["link"]
            assert 1 / bought["seconds_per_byte"] == pytest.approx(rate, rel=1e-3)
        assert cli.main([*command, "--policies", "async", "--link", link, "--json"]) == 0
        replayed = json.loads(capsys.readouterr().out)["workers"][0]["link"]
        assert replayed["beta_s"] == bought["seconds_per_byte"] and 2 * replayed["alpha_s"] == bought["start_s"]


def test_outputs_never_replace_files_of_workers(command, capsys, tmp_path):
    before = (tmp_path / "slow.yaml").read_text()
    for option in ("--html", "--csv"):
        assert cli.main([*command, "--policies", "bsp", option, "slow.yaml"]) == 2
        assert "cannot write slow.yaml: the same command reads it" in capsys.readouterr().err
    assert (tmp_path / "slow.yaml").read_text() == before
