"""torchvision and transformers load in the environment of ``make``; one that does not load is named, with a remedy."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

USER_FILE = """
import torch, torchvision
from transformers import LlamaConfig, LlamaModel

class Both(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.images = torchvision.models.resnet18(weights=None)
        sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=1000)
        self.words = LlamaModel(LlamaConfig(**sizes, use_cache=False))

    def forward(self, image):
        words = self.images(image).argmax(1, keepdim=True)
        return self.words(words, return_dict=False)[0]

def make_model():
    return Both(), torch.rand(1, 3, 64, 64)
"""
NETWORKS = (
    ["network", "torchvision:resnet18", "--device", "h100", "--runtime", "torch"],
    ["network", "hf:gpt2", "--device", "h100", "--runtime", "torch"],
    ["network", "user.py:make_model", "--device", "h100", "--runtime", "torch"],
)


def run(program: str, folder: Path, *path: Path) -> subprocess.CompletedProcess[str]:
    """The program in an interpreter of its own, where no other test has imported anything."""
    found = os.pathsep.join(map(str, (*path, Path(__file__).resolve().parents[1])))
    environment = {**os.environ, "PYTHONPATH": found, "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, env=environment)


def answers(folder: Path, *path: Path, commands=NETWORKS, before: str = "") -> list[tuple[int, list[str]]]:
    """Exit code and lines of standard error of each command."""
    (folder / "user.py").write_text(USER_FILE)
    program = f"""
import contextlib, io, json, sys
{before}
from cdmpp import cli
for command in {commands!r}:
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
        code = cli.main(command)
    print(json.dumps([code, said.getvalue().splitlines()]))
"""
    done = run(program, folder, *path)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="make found no torchvision for this torch")
def test_torchvision_and_transformers_load_and_a_users_file_takes_both(tmp_path):
    (tmp_path / "user.py").write_text(USER_FILE)
    done = run("import user; model, image = user.make_model(); print(tuple(model(image).shape))", tmp_path, tmp_path)
    assert (done.returncode, done.stdout) == (0, "(1, 1, 32)\n"), done.stderr
    command = ["network", "user.py:make_model", "--device", "h100", "--runtime", "torch", "--json"]
    done = run(f"from cdmpp import cli; raise SystemExit(cli.main({command!r}))", tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["latency_s"] > 0


def test_a_torchvision_of_another_torch_is_named_with_what_to_install(tmp_path):
    (tmp_path / "torchvision").mkdir()
    fault = "operator torchvision::nms does not exist"
    (tmp_path / "torchvision" / "__init__.py").write_text(f"raise RuntimeError({fault!r})")
    for code, said in answers(tmp_path, tmp_path, commands=(*NETWORKS, ["model", "train", "device=xeon-icelake"])):
        assert code == 2 and len(said) == 1, said
        assert fault in said[0] and "built for another torch" in said[0] and "`pip install" in said[0]


def test_without_torchvision_only_its_networks_are_refused(tmp_path):
    without = "sys.modules['torchvision'] = None"
    (vision, seen), (words, _), (file, told) = answers(tmp_path, before=without)
    assert (vision, words, file) == (2, 0, 2)
    assert "torchvision is not installed: `pip install" in seen[-1]
    assert "user.py:2" in told[-1] and "torchvision" in told[-1]
