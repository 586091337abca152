"""``cdmpp step`` on several ranks: what is refused before anything is predicted, and the table of ranks."""

from __future__ import annotations

import json

import pytest

from cdmpp.cli.command import main


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--ranks 0 --link nvlink3", "--ranks/--gpus: '0' is given, expected a whole number"),
        ("--ranks 4", "4 ranks, and no way between them"),
        ("--ranks 99 --cluster dgx-a100", "99 ranks do not fit on cluster dgx-a100"),
        ("--ranks 2 --cluster dgx", "unknown cluster 'dgx'; nearest: dgx-"),
        ("--ranks 2 --link nvlink3 --strategy zeros", "unknown parallel strategy 'zeros'"),
        ("--ranks 2 --link nvlink3 --strategy ps --servers 3", "3 servers on 2 ranks"),
        ("--ranks 2 --link nvlink3 --servers 3", "--servers goes with --strategy ps"),
        ("--ranks 32 --link nvlink4 --ring-steps", "ring steps of 32 ranks"),
        ("--ranks 2 --link nvlink3 --backend mpi", "unknown back end 'mpi'"),
        ("--ranks 2 --link nvlink3 --bucket-mb 0", "--bucket-mb: '0' is given, expected a number"),
        ("--ranks 2 --link nvlink3 --straggler 2=1.5", "slow rank 2=1.5: expected a rank from 0 to 1"),
        ("--ranks 2 --link nvlink3 --straggler 1=0", "a positive factor"),
        ("--ranks 2 --link nvlink3 --straggler fast", "--straggler fast: expected RANK=FACTOR"),
        ("--straggler 1=2", "--straggler goes with --ranks"),
        ("--no-overlap", "--no-overlap goes with --ranks"),
        ("--offload parameters", "--offload goes with --ranks"),
        ("--ranks 2 --cluster dgx-a100 --strategy fsdp --offload weights", "one of parameters, activations"),
        ("--ranks 2 --cluster dgx-a100 --offload parameters", "ddp keeps them on the device: take fsdp or hsdp"),
        ("--ranks 2 --link nvlink3 --offload activations", "nothing describes the host of nvlink3: name a cluster"),
        ("--bucket-mb 5", "--bucket-mb goes with --ranks"),
    ],
)
def test_what_cannot_be_is_refused_at_once(options, told, capsys, monkeypatch):
    monkeypatch.setattr("cdmpp.predict_step", lambda *_, **__: pytest.fail("predicted"))
    assert main(["step", "gpt2", "--device", "a100", *options.split()]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("", "--ranks is missing"),
        ("--ranks 2 --link nvlink3 --bucket-mb 5", "--bucket-mb does not go with a search"),
        ("--ranks 2 --link nvlink3 --straggler 1=2", "--straggler does not go with a search"),
        ("--ranks 2 --link nvlink3 --offload activations", "--offload does not go with a search"),
        ("--ranks 2 --link nvlink3 --memory-gb -1", "--memory-gb: '-1' is given, expected a number above 0"),
        (
            "--ranks 2 --link nvlink3 --accumulate-steps 0",
            "--accumulate-steps: '0' is given, expected a whole number from 1",
        ),
        ("--ranks 2 --link nvlink3 --strategy pipeline", "`cdmpp plan --strategies pipeline` ranks all plans of"),
        ("--ranks 2 --link nvlink3 --strategy filter", "filter divides the model, and --strategy and --plan search"),
        ("--ranks 3 --link nvlink3 --strategy ddp --global-batch 64", "a global batch of 64 does not divide into 3"),
        ("--ranks 2 --link nvlink3 --strategy ddp --global-batch 8 --batch 4", "--batch and --global-batch: give the"),
        (
            "--ranks 2 --link nvlink3 --strategy ddp --global-batch 8 --accumulate-steps 2",
            "--accumulate-steps 2 lets a search multiply the batch, and --global-batch 8 fixes it",
        ),
    ],
)
def test_plans_that_cannot_be_searched_are_refused_at_once(options, told, capsys, monkeypatch):
    monkeypatch.setattr("cdmpp.predict_step", lambda *_, **__: pytest.fail("predicted"))
    assert main(["plan", "gpt2", "--device", "a100", *options.split()]) == 2
    assert told in capsys.readouterr().err


def test_a_plan_of_a_file_that_divides_the_model_is_not_searched(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("cdmpp.predict_step", lambda *_, **__: pytest.fail("predicted"))
    file = tmp_path / "plan.yaml"
    file.write_text("{strategy: fsdp, degrees: {dp_shard: 2, pp: 2}, model_parallel: [{name: pipeline}]}")
    assert main(["plan", "gpt2", "--device", "a100", "--link", "nvlink3", "--plan", str(file)]) == 2
    told = capsys.readouterr().err
    assert "`cdmpp plan --strategies fsdp+pipeline` ranks" in told and "`cdmpp step --plan FILE` replays" in told


def test_a_global_batch_of_one_way_is_that_of_all_its_ranks(capsys):
    asked = ["plan", "mlp", "--device", "h100", "--link", "pcie4", "--ranks", "2", "--strategy", "ddp", "--json"]
    found = []
    for batch in (["--global-batch", "8"], ["--batch", "4"]):
        assert main([*asked, *batch]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]


def test_only_a_search_has_limits(capsys):
    assert main(["step", "gpt2", "--device", "a100", "--ranks", "2", "--link", "nvlink3", "--memory-gb", "8"]) == 2
    assert "has no option --memory-gb" in capsys.readouterr().err
    assert main(["step", "gpt2", "--device", "a100", "--save-plan", "plan.yaml"]) == 2
    assert "--save-plan goes with --ranks" in capsys.readouterr().err
    assert main(["trace", "job", "--accumulate-steps", "2"]) == 2
    assert "--accumulate-steps goes with --optimize" in capsys.readouterr().err


def test_a_plan_of_a_file_goes_without_its_settings(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("cdmpp.predict_step", lambda *_, **__: pytest.fail("predicted"))
    (tmp_path / "plan.yaml").write_text("strategy: {name: ps, servers: 4}\ndegrees: {dp_replicate: 2}")
    for options, told in (
        ("", "plan.yaml: 4 servers on 2 ranks"),
        ("--strategy fsdp", "--strategy does not go with --plan"),
        ("--servers 2", "--servers does not go with --plan"),
    ):
        given = ["step", "gpt2", "--device", "a100", "--link", "nvlink3", "--plan", str(tmp_path / "plan.yaml")]
        assert main([*given, *options.split()]) == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--gpus 8 --link nvlink4 --strategies sideways", "unknown strategy 'sideways'"),
        ("--gpus 8 --link nvlink4 --strategies data+fsdp", "both say how replicas keep parameters alike"),
        ("--gpus 8", "8 ranks, and no way between them: name a cluster or a link"),
        ("--gpus 8 --link nvlink4 --batch 2 --global-batch 8", "--batch and --global-batch"),
        ("--gpus 8 --link nvlink4 --strategy ddp --strategies data", "--strategies does not go with --strategy"),
        ("--gpus 8 --link nvlink4 --timeline t.json", "--timeline is of one plan"),
        ("--gpus 8 --link nvlink4 --ring-steps", "search: leave it out, or replay one plan by `cdmpp step`"),
        ("--gpus 8 --link nvlink4 --bucket-mb 5", "search, which chooses it"),
        ("--gpus 8 --link nvlink4 --explain 0", "--explain 0: expected a place from 1 to 20"),
        ("--gpus 8 --link nvlink4 --explain sideways", "unknown strategy 'sideways'"),
        ("--gpus 8 --link nvlink4 --strategies data --explain fsdp", "--explain fsdp is not among --strategies data"),
        ("--gpus 8 --link nvlink4 --price 0", "--price: '0' is given"),
    ],
)
def test_questions_of_all_ways_that_cannot_be_are_refused_at_once(options, told, capsys, monkeypatch):
    monkeypatch.setattr("cdmpp.plans.oracle.ask", lambda *_, **__: pytest.fail("asked"))
    assert main(["plan", "hf:gpt2", "--device", "h100", *options.split()]) == 2
    assert told in capsys.readouterr().err
