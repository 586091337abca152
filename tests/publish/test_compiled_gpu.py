"""The script that measures compiled steps on a GPU, run on a CPU in small; what it writes is compared."""

import csv

import pytest
import torch

from benchmarks.compiled_gpu import LIMIT_S, cases, made, main


def test_it_measures_each_case_once_and_compares_it(tmp_path, capsys):
    out = tmp_path / "out.csv"
    ask = ["measure", str(out), "--device", "cpu", "--tiny", "--repeats", "1", "--backend", "aot_eager"]
    main(ask)
    rows = list(csv.DictReader(out.open()))
    assert [tuple(row.values())[:6] for row in rows] == [tuple(map(str, case)) for case in cases(tiny=True)]
    assert all(float(row["least_s"]) > 0 and row["gpu"] == "cpu" for row in rows)
    capsys.readouterr()
    main(ask)  # nothing again
    assert not capsys.readouterr().out
    chosen = [row for row in rows if row["network"] == "decode" or row["runtime"] == "torch-compile"][-5:]
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows([*chosen, next(row for row in rows if row["network"] == "gpt")])
    main(["compare", str(out), "h100"])
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 2 + 6 and all(line.count("|") == 10 for line in lines)


def test_its_questions_fit_into_five_minutes_and_a_decoder_reads_its_cache():
    asked = list(cases(tiny=False))
    assert len(asked) == len(set(asked)) and LIMIT_S <= 270
    assert {case.precision for case in asked if case.network == "gpt"} == {"fp32", "bf16-autocast"}
    assert {case.runtime for case in asked if case.network == "resnet"} == {"torch", "torch-compile"}
    case = next(case for case in cases(tiny=True) if case.past)
    module, inputs = made(case, "cpu")
    logits, cache = module(*inputs)
    assert logits.shape == (case.batch, 1, 100)
    assert cache[0][0].shape == (case.batch, 1, case.past + 1, 64)
    assert torch.equal(cache[1][1][:, :, :-1], inputs[1][1][1])
    assert logits.dtype == cache[0][0].dtype == torch.bfloat16


def test_a_loss_of_a_tiny_step_is_finite():
    for case in list(cases(tiny=True))[:8]:
        module, inputs = made(case, "cpu")
        assert module(*inputs).item() == pytest.approx({"gpt": 4.7, "resnet": 7.0}[case.network], abs=0.7)
