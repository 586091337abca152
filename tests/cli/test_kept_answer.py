"""A question that was asked before is answered from the cache, while nothing changed that the answer follows from."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cdmpp
from cdmpp import cli
from cdmpp.cli import kept_answer
from cdmpp.network.prediction import NetworkPrediction
from tests.network.example_prediction import example

ASKED = ["network", "torchvision:resnet50", "--device", "a100"]


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Networks that were predicted; each gets the example as its answer."""
    found = list[Any]()
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / "cache"))

    def predict(given: Any, **options: Any) -> NetworkPrediction:
        found.append(given.network)
        return example(network=str(given.network), device=options["device"])

    monkeypatch.setattr(cdmpp, "predict_network", predict, raising=False)
    return found


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    assert cli.main([*ASKED, *words]) == 0
    return tuple(capsys.readouterr())


@pytest.mark.parametrize("words", [(), ("--json",), ("--rows", "3")])
def test_the_same_words_and_warnings(words: tuple[str, ...], calls: list[Any], capsys: Any) -> None:
    first = said(capsys, *words)
    assert said(capsys, *words) == first
    assert len(calls) == 1
    assert "launch overhead of a100" in first[1]


def test_a_csv_file_is_the_same(calls: list[Any], capsys: Any, tmp_path: Path) -> None:
    for name in ("one.csv", "two.csv"):
        said(capsys, "--csv", str(tmp_path / name))
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    assert len(calls) == 1


@pytest.mark.parametrize("words", [("--batch", "2"), ("--precision", "bf16"), ("--schedule", "untuned")])
def test_another_question_is_predicted(words: tuple[str, ...], calls: list[Any], capsys: Any) -> None:
    said(capsys)
    said(capsys, *words)
    assert len(calls) == 2


def test_charts_are_not_kept(calls: list[Any], capsys: Any, tmp_path: Path) -> None:
    for _ in range(2):
        said(capsys, "--html", str(tmp_path / "page.html"))
    assert len(calls) == 2


def test_schedules_of_a_database_may_change(calls: list[Any], capsys: Any, tmp_path: Path) -> None:
    for _ in range(2):
        said(capsys, "--schedule", f"database:{tmp_path}")
    assert len(calls) == 2


def test_a_file_that_changed_is_another_network(calls: list[Any], capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for content, predicted in ((b"one", 1), (b"one", 1), (b"two", 2)):
        path.write_bytes(content)
        assert cli.main(["network", str(path), "--device", "a100"]) == 0
        assert len(calls) == predicted


@pytest.mark.parametrize(("device", "again"), [("epyc-genoa", True), ("a100", False)])
def test_a_program_that_was_not_compiled_in_time_is_tried_again(
    calls: list[Any], capsys: Any, monkeypatch: pytest.MonkeyPatch, device: str, again: bool
) -> None:
    """On a GPU no program of a network is compiled."""

    def predict(given: Any, **options: Any) -> NetworkPrediction:
        calls.append(given.network)
        made = example(network=str(given.network), device=options["device"])
        return replace(made, kernels=(replace(made.kernels[0], flags=("no machine code",)), *made.kernels[1:]))

    monkeypatch.setattr(cdmpp, "predict_network", predict, raising=False)
    for _ in range(2):
        assert cli.main([*ASKED[:3], device]) == 0
    assert len(calls) == 1 + again


def test_a_config_of_the_hub_that_changed_is_another_network(
    calls: list[Any], capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    config = tmp_path / "config.json"
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, _: name == "some/model" and str(config))
    for content, predicted in (("{}", 1), ("{}", 1), ('{"model_type": "bert"}', 2)):
        config.write_text(content)
        assert cli.main(["network", "hf:some/model", "--device", "a100"]) == 0
        assert len(calls) == predicted


def test_code_and_models_that_changed(calls: list[Any], capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said(capsys)
    monkeypatch.setattr(kept_answer, "_files", lambda: [["engine.py", 1, 2]])
    said(capsys)
    monkeypatch.setattr(kept_answer, "models", lambda: [])
    said(capsys)
    assert len(calls) == 3


def test_a_damaged_file_is_made_again(calls: list[Any], capsys: Any, tmp_path: Path) -> None:
    first = said(capsys)
    (kept,) = (tmp_path / "cache" / "answers").iterdir()
    for text in ("{", "[]", "{}", '{"tables": [{}]}'):
        kept.write_text(text)
        assert said(capsys) == first
    assert len(calls) == 5
    assert said(capsys) == first
    assert len(calls) == 5


def test_the_key_is_the_same_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts that were measured are a set, of which each process has another order."""
    code = "from cdmpp import devices; from cdmpp.network.network_key import device_key as key; "
    code += "print(key(devices.get('epyc-genoa')))"
    found = set[str]()
    for seed in ("1", "2", "3"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        found.add(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1
    assert "l2_bytes_per_cycle" in found.pop()


def test_neither_torch_nor_tvm_is_imported(capsys: Any) -> None:
    said(capsys)
    code = (
        f"import sys; from cdmpp.cli import main; main({ASKED!r}); "
        "print([name for name in ('torch', 'tvm', 'transformers', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


OPERATORS = ["predict", "op", "linear", "512x512x512", "softmax", "64x64", "--device", "h100", "--json"]


def test_operators_that_were_asked_for_need_no_torch(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(OPERATORS) == 0
    first = capsys.readouterr().out
    code = (
        f"import sys; from cdmpp.cli import main; main({OPERATORS!r}); "
        "print([name for name in ('torch', 'tvm', 'scipy', 'pandas', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{first}[]\n"
    monkeypatch.setattr(cdmpp, "load_model", lambda name: pytest.fail(f"{name} is loaded"), raising=False)
    assert cli.main(OPERATORS) == 0
    assert capsys.readouterr().out == first


@pytest.mark.parametrize("words", [("--dtype", "float16"), ("--no-compile",), ("--model", "none-of-ours")])
def test_other_operators_are_predicted(words: tuple[str, ...], capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(OPERATORS) == 0

    def load(name: str) -> None:
        raise LookupError("it is loaded")

    monkeypatch.setattr(cdmpp, "load_model", load, raising=False)
    with pytest.raises(LookupError, match="it is loaded"):
        cli.main([*OPERATORS, *words])


STEP = ["step", "torchvision:alexnet", "--device", "a100", "--runtime", "torch", "--batch", "2"]


def test_a_step_that_was_asked_for_needs_no_torch(capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(STEP) == 0
    first = tuple(capfd.readouterr())
    code = (
        f"import sys; from cdmpp.cli import main; main({STEP!r}); "
        "print([name for name in ('torch', 'tvm', 'scipy', 'pandas', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{first[0]}[]\n", first[1])

    def predict(*given: Any, **options: Any) -> None:
        raise LookupError("it is predicted")

    monkeypatch.setattr(cdmpp, "predict_step", predict, raising=False)
    assert cli.main([*STEP, "--rows", "3"]) == 0
    for others in (["--optimizer", "sgd"], ["--recompute", "full"], ["--ranks", "2", "--link", "nvlink4"]):
        with pytest.raises(LookupError, match="it is predicted"):
            cli.main([*STEP, *others])
