"""Questions over HTTP: the answers of the command line, and clear refusals."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cdmpp import cli
from cdmpp.data.derive import has_tvm
from cdmpp.platform.files import plain
from tests.serve.attacks import BAD, onnx_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
LINEAR = {"name": "linear", "sizes": "512x1024x4096"}


def operators(*each: dict[str, Any], device: str = "a100", **more: Any) -> dict[str, Any]:
    return {"device": device, "programs": {"operators": list(each)}, **more}


def printed(capsys: pytest.CaptureFixture[str], command: str) -> Any:
    """What a command prints with ``--json``."""
    capsys.readouterr()
    assert cli.main([*command.split(), "--json"]) == 0
    return plain(json.loads(capsys.readouterr().out))


def close(one: Any, other: Any) -> bool:
    """Equal but for the last digits of numbers, which depend on what else a model sees at once."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    return bool(one == other)


@pytest.mark.parametrize(
    ("verb", "question", "command"),
    [
        ("predict", operators(LINEAR), "predict op linear 512x1024x4096 --device a100"),
        (
            "network",
            {"network": "bert_tiny", "batch": 4, "device": "a100", "runtime": "torch"},
            "network bert_tiny --batch 4 --device a100 --runtime torch",
        ),
        (
            "network",
            {"network": "hf:gpt2", "past": 64, "sequence": 1, "device": "h100", "runtime": "torch",
             "precision": "bf16"},
            "network hf:gpt2 --past 64 --seq 1 --device h100 --runtime torch --precision bf16",
        ),
        (
            "step",
            {"network": "bert_tiny", "batch": 8, "device": "a100", "runtime": "torch", "optimizer": "sgd",
             "loss": "mse"},
            "step bert_tiny --batch 8 --device a100 --runtime torch --optimizer sgd --loss mse",
        ),
        (
            "step",
            {"network": "bert_tiny", "batch": 8, "device": "a100", "runtime": "torch", "loss": "mse", "ranks": 4,
             "link": "nvlink3", "strategy": "fsdp", "settings": {"overlap": False}, "slow": {"2": 1.3}},
            "step bert_tiny --batch 8 --device a100 --runtime torch --loss mse --ranks 4 --link nvlink3 "
            "--strategy fsdp --no-overlap --straggler 2=1.3",
        ),
        (
            "step",
            {"network": "bert_tiny", "device": "a100", "runtime": "torch", "ranks": 2, "cluster": "dgx-a100",
             "strategy": "tensor", "global_batch": 16},
            "step bert_tiny --device a100 --runtime torch --ranks 2 --cluster dgx-a100 --strategy tensor "
            "--global-batch 16",
        ),
        (
            "plan",
            {"network": "bert_tiny", "device": "a100", "ranks": 4, "link": "nvlink3", "global_batch": 32,
             "strategies": ["data", "fsdp"]},
            "plan bert_tiny --device a100 --ranks 4 --link nvlink3 --global-batch 32 --strategies data,fsdp",
        ),
    ],
)  # fmt: skip
def test_the_answer_is_that_of_the_command(asked, capsys, verb, question, command):
    reply = asked("POST", f"/v1/{verb}", json=question)
    assert reply.status_code == 200, reply.text
    assert close(reply.json(), printed(capsys, command))


def test_a_page_is_that_of_html(asked):
    question = {"network": "bert_tiny", "batch": 4, "device": "a100", "runtime": "torch"}
    reply = asked("POST", "/v1/network?form=html", json=question)
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/html")
    assert "<svg" in reply.text and "Content-Security-Policy" in reply.text


def test_questions_at_once_have_the_answers_of_each_alone(asked):
    sizes = [f"{64 * n}x256x{128 * n}" for n in range(1, 25)]
    questions = [operators({"name": "linear", "sizes": one}, LINEAR, device="h100") for one in sizes]
    questions.insert(3, operators({"name": "linear", "sizes": "8x8"}, device="h100"))
    with ThreadPoolExecutor(16) as threads:
        replies = list(threads.map(lambda one: asked("POST", "/v1/predict", json=one), questions))
    assert replies.pop(3).status_code == 422
    questions.pop(3)
    assert {reply.status_code for reply in replies} == {200}
    for question, reply in zip(questions, replies, strict=True):
        alone = asked("POST", "/v1/predict", json={**question, "compiled": False})
        assert close(reply.json()["programs"], alone.json()["programs"])


def test_an_onnx_file_is_read(asked):
    question = {"network": {"onnx": onnx_of(), "name": "mine.onnx"}, "device": "a100", "runtime": "torch"}
    reply = asked("POST", "/v1/network", json=question)
    assert reply.status_code == 200, reply.text
    assert reply.json()["network"] == "mine.onnx" and reply.json()["latency_s"] > 0


@pytest.mark.parametrize("name", BAD)
def test_bad_questions_are_refused(asked, name):
    bad = BAD[name]
    reply = asked(bad.method, bad.address, content=bad.body, headers=bad.headers)
    assert reply.status_code in bad.statuses, (reply.status_code, reply.text)
    told = reply.json()["error"]
    assert told["message"] and "Traceback" not in reply.text and len(reply.text) < 6000
    assert "cdmpp-serve-" not in told["message"] and "site-packages" not in told["message"], told["message"]


@pytest.mark.parametrize(
    ("address", "changes", "told"),
    [
        ("plan", {"seq": 128}, "seq: there is no such field; nearest: sequence"),
        ("network", {"devices": "a100", "zzz": 1}, "zzz: there is no such field"),
        ("network", {"devices": "a100"}, "devices: there is no such field; nearest: device"),
        ("step", {"optimizer": {"optimizer": "sgd", "batc": 1}}, "batc: there is no such field"),
    ],
)
def test_a_field_that_is_none_is_named_with_the_nearest(asked, address, changes, told):
    asked_for = {"network": "bert_tiny", "device": "a100", "global_batch": 8, **changes}
    if address != "plan":
        del asked_for["global_batch"]
    reply = asked("POST", f"/v1/{address}", json=asked_for)
    assert reply.status_code == 422
    assert told in reply.json()["error"]["message"]


def test_lists_name_what_may_be_asked(asked):
    names = asked("GET", "/v1/networks").json()["networks"]
    assert {"bert_tiny", "hf:gpt2", "torchvision:resnet50"} <= set(names)
    assert "a100" in {one["name"] for one in asked("GET", "/v1/devices").json()["devices"]}
    assert "torch-gpus" in {one["name"] for one in asked("GET", "/v1/models").json()["models"]}


def test_openapi_describes_every_field(asked):
    described = asked("GET", "/openapi.json").json()
    assert {"/v1/predict", "/v1/network", "/v1/step", "/v1/plan", "/v1/health"} <= set(described["paths"])
    asked_for = described["components"]["schemas"]["NetworkRequest"]
    assert asked_for["additionalProperties"] is False
    assert all("description" in asked_for["properties"][name] for name in ("batch", "sequence", "attention"))
    assert set(described["paths"]["/v1/plan"]["post"]["responses"]) >= {"400", "413", "422", "503", "504"}


@pytest.mark.tvm
@pytest.mark.skipif(not has_tvm(), reason="needs TVM")
def test_programs_are_read_never_executed(asked, capsys, tmp_path):
    import tvm

    from cdmpp.programs.script import read_script

    path = Path(__file__).parents[2] / "examples" / "matmul.py"
    question = {"device": "xeon-icelake", "programs": {"script": path.read_text()}}
    reply = asked("POST", "/v1/predict", json=question)
    assert reply.status_code == 200, reply.text
    whole = printed(capsys, f"predict {path} --device xeon-icelake")
    assert close(reply.json(), whole)
    trap = f"open({str(tmp_path / 'trap')!r}, 'w')\n"
    evil = path.read_text().replace("@T.prim_func", trap + "@T.prim_func", 1)
    asked("POST", "/v1/predict", json={**question, "programs": {"script": evil}})
    assert not (tmp_path / "trap").exists()
    (program,) = read_script(path, tvm.target.Target("llvm"))
    texts = [tvm.ir.save_json(program.module)]
    by_json = {**question, "programs": {"tvm_json": texts, "names": ["doubled"]}}
    reply = asked("POST", "/v1/predict", json=by_json)
    assert reply.status_code == 200, reply.text
    (found,), (expected,) = reply.json()["programs"], whole["programs"]
    assert found["program"] == "doubled" and math.isclose(found["latency_s"], expected["latency_s"], rel_tol=1e-6)


RANKS = {"network": "bert_tiny", "batch": 8, "device": "a100", "runtime": "torch", "ranks": 4, "link": "nvlink3"}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"ranks": 0}, "ranks"),
        ({"ranks": 2**40}, "ranks"),
        ({"link": None}, "no way between them: name a cluster or a link"),
        ({"link": "/etc/passwd"}, "no name that this server has"),
        ({"cluster": "no-such"}, "no name that this server has"),
        ({"strategy": "no-such"}, "no-such"),
        ({"strategy": "fsdp", "settings": {"colour": 1}}, "settings has 'colour', and fsdp has "),
        ({"settings": {"overlap": 5}}, "ddp.overlap is 5"),
        ({"settings": {"overlap": "x\ny"}}, "overlap"),
        ({"slow": {"9": 2.0}}, "slow rank 9"),
        ({"slow": {"0": -1.0}}, "slow rank 0"),
        ({"slow": {"x": 2.0}}, "expected each rank once"),
        ({"slow": {"1": 2.0, "01": 2.0}}, "expected each rank once"),
        ({"offload": ["everything"]}, "offload"),
        ({"granularity": "atom"}, "granularity"),
        ({"global_batch": 64}, "batch and global_batch"),
        ({"batch": None, "global_batch": 7}, "7"),
        ({"strategy": "tensor", "ranks": 2, "runtime": "tvm"}, "divides the operators of runtime torch"),
        ({"runtime": "torch-compile"}, "ranks is of runtime torch"),
        ({"ranks": None}, "link goes with ranks"),
        ({"ranks": None, "link": None, "slow": {"0": 2.0}}, "slow goes with ranks"),
    ],
)
def test_ranks_that_cannot_be_are_refused(asked, changes, text):
    given = {key: value for key, value in {**RANKS, **changes}.items() if value is not None}
    reply = asked("POST", "/v1/step", json=given)
    assert reply.status_code in (400, 422), reply.text
    assert text in reply.json()["error"]["message"], reply.text


def test_a_page_of_ranks_begins_with_all_of_them(asked):
    text = asked("POST", "/v1/step?form=html", json={**RANKS, "strategy": "fsdp"}).text
    assert text.index("4 ranks: fsdp") < text.index("bert_tiny on a100")
