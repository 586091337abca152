"""Damaged checkpoints and full disks end a run with one line that says what to do, and lose nothing."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
import torch

from cdmpp.errors import CdmppError
from cdmpp.recipes.train import train
from cdmpp.training.config import Run, TrainConfig
from tests.model.test_models import SMALL
from tests.toy_data import toy_dataset

CHOSEN = TrainConfig.from_dict({"model": SMALL, "trainer": {"epochs": 2, "batch_size": 64}})


def run(out: Path):
    dataset, split = toy_dataset(80)
    return train(dataset, split, CHOSEN, Run(out, progress=False, accelerator="cpu"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    run(out)
    return out


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 3)
    path.write_bytes(content)


def of_another(path: Path) -> None:
    content = torch.load(path, weights_only=True)
    content["state_dict"]["model.out.weight"] = torch.zeros(1, 3)
    torch.save(content, path)


def without_history(path: Path) -> None:
    content = torch.load(path, weights_only=True)
    del content["history"]
    torch.save(content, path)


def a_list(path: Path) -> None:
    torch.save([1], path)


@pytest.mark.parametrize("damage", [cut, emptied, zeroed, of_another, without_history, a_list])
@pytest.mark.parametrize("name", ["last.ckpt", "best.ckpt"])
def test_a_damaged_checkpoint_is_named_with_what_to_do(finished, tmp_path, name, damage):
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    damage(out / "member-0" / "checkpoints" / name)
    with pytest.raises(CdmppError, match=f"{name} is damaged .*Delete the folder .*member-0 and run the same command"):
        run(out)


def test_what_the_message_says_helps(finished, tmp_path):
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    cut(out / "member-0" / "checkpoints" / "last.ckpt")
    shutil.rmtree(out / "member-0")
    assert run(out).val_metrics["mape"] == run(finished).val_metrics["mape"]


def test_a_run_that_has_old_names_of_parts_goes_on(finished, tmp_path):
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    for path in (out / "member-0" / "checkpoints").iterdir():
        content = torch.load(path, weights_only=True)
        old = {name.replace("code_prior.", "code_anchor."): value for name, value in content["state_dict"].items()}
        content["state_dict"] = {name.replace(".prior.", ".anchor."): value for name, value in old.items()}
        assert any("anchor" in name for name in content["state_dict"])
        torch.save(content, path)
    (out / "run.json").write_text((out / "run.json").read_text().replace('"prior"', '"anchor"'))
    assert '"anchor"' in (out / "run.json").read_text()
    assert run(out).val_metrics["mape"] == run(finished).val_metrics["mape"]


def test_a_full_disk_keeps_the_checkpoint_before_and_says_how_to_go_on(finished, tmp_path, monkeypatch):
    whole, written = Path.write_bytes, []

    def full(path, content):
        written.extend([path] * ("ckpt" in path.name))
        if "ckpt" in path.name and len(written) > 2:
            whole(path, content[:1000])
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CdmppError, match=r"ckpt: No space left on device.*run the same command again, it continues"):
        run(tmp_path / "run")
    left = sorted(path.name for path in (tmp_path / "run" / "member-0" / "checkpoints").iterdir())
    assert left == ["best.ckpt", "last.ckpt"]
    monkeypatch.setattr(Path, "write_bytes", whole)
    assert run(tmp_path / "run").val_metrics["mape"] == run(finished).val_metrics["mape"]
