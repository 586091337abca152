"""The benchmark on TensorFlow's public speeds: factors of planted rows, bytes of adapters, unsound rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.synchrony.tf import tables
from benchmarks.synchrony.tf_rows import Row, parameters, rows
from benchmarks.synchrony.tf_step import adapter_bytes, fit, many_s, step_s
from cdmpp.errors import DataError

HEAD = (
    "platform,gpu,instance,model,data,batch_per_gpu,gpus,variable_update,images_per_s,note,instances,"
    "parameter_servers,step_s\n"
)


def row(model: str, is_real: bool, batch: int, gpus: int, step_s: float = 1.0, machines: int = 1) -> Row:
    return Row("here", model, is_real, batch, gpus, machines, machines, step_s)


def test_parameters_are_those_of_the_published_networks():
    assert parameters("resnet50") == 25_557_032
    assert parameters("vgg16") == 138_357_544
    assert parameters("inception_v3") == 23_834_568  # without its auxiliary head


def test_fit_finds_planted_factors_and_predicts_an_unseen_network():
    single_s = {("here", "resnet50", data, 64): 1.0 for data in ("real", "synthetic")}
    single_s |= {("here", "vgg16", data, 32): 0.5 for data in ("real", "synthetic")}

    def planted(model: str, is_real: bool, batch: int, gpus: int) -> Row:
        size, one = 4e-9 * parameters(model), 1.0 if model == "resnet50" else 0.5
        images = batch * (gpus - 1) if is_real else 0
        seconds = one * 1.03 + 0.05 * size + 0.02 * size * (gpus - 1) + 0.004 * (gpus - 1) + 4e-5 * images
        return row(model, is_real, batch, gpus, seconds)

    seen = [
        planted(model, real, batch, n) for model, batch in (("resnet50", 64), ("vgg16", 32)) for real in (0, 1)
        for n in (2, 4, 8)
    ]  # fmt: skip
    factors = fit(seen, single_s)
    assert factors == pytest.approx([0.03, 0.05, 0.02, 0.004, 4e-5], rel=1e-3)
    single_s["here", "alexnet", "real", 512] = 0.8
    unseen = planted("alexnet", True, 512, 4)
    assert step_s(unseen, single_s, factors) == pytest.approx(unseen.step_s + (0.8 - 0.5) * 1.03, rel=1e-3)


@pytest.mark.parametrize(
    ("machines", "servers", "shares"),
    [(1, 1, 0.0), (2, 2, 1.0), (4, 4, 1.5), (8, 8, 1.75), (8, 4, 2.5), (8, 6, 2.0), (8, 1, 7.0)],
)
def test_busiest_adapter_receives_gradients_of_the_others_and_shares_of_the_others(
    machines: int, servers: int, shares: float
):
    assert adapter_bytes(machines, servers, 1_000) == pytest.approx(1_000 * shares)
    if machines == servers:  # as a ring all-reduce
        assert adapter_bytes(machines, servers, 1_000) == pytest.approx(2 * (machines - 1) / machines * 1_000)


def test_more_machines_add_what_their_adapters_receive_beyond():
    known = row("resnet50", False, 64, 16, 1.4, machines=2)
    more = row("resnet50", False, 64, 32, machines=4)
    assert many_s(more, known) == pytest.approx(1.4 + 0.5 * 4 * 25_557_032 / 1.25e9)


def test_unsound_rows_are_named_with_their_line(tmp_path: Path):
    folder = tmp_path / "tf-parameter-server"
    folder.mkdir()
    (folder / "throughput.csv").write_text(f"{HEAD}ec2,K80,x,vgg16,real,32,0,ps,30,,1,1,1\n")
    with pytest.raises(DataError, match="line 2"):
        rows(tmp_path)


def test_rows_on_more_machines_are_judged_where_they_are_there(tmp_path: Path):
    folder = tmp_path / "tf-parameter-server"
    folder.mkdir()
    lines = [
        f"ec2-distributed,K80,x,resnet50,synthetic,64,{gpus},dr,{speed},,{machines},{machines},0\n"
        for gpus, machines, speed in ((1, 1, 50), (8, 1, 380), (16, 2, 750), (32, 4, 1400))
    ]
    single = [
        f"ec2,K80,x,{m},synthetic,64,{g},ps,{50 * g},,1,0,0\n" for m in ("vgg16", "resnet50") for g in (1, 2, 4, 8)
    ]
    (folder / "throughput.csv").write_text(HEAD + "".join(lines + single))
    last = tables(tmp_path)[-1]
    assert last["rows"][1] == ["the step on 2 machines again", "6.7 (6.7)"]
    assert last["rows"][0] == ["the step on one GPU (linear scaling)", "12.5 (12.5)"]
    assert last["rows"][2][1] == "3.9 (3.9)"  # 1.3653 s and 0.5 x 102 MB over 1.25 GB/s, of 1.4629 s
