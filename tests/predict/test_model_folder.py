"""Tampered model folders: each is refused by an error of ours that names the file and what is wrong in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import cdmpp
from cdmpp.errors import ModelFormatError
from cdmpp.model.build import build_model
from cdmpp.model.config import model_config
from cdmpp.model.old_names import current_names
from cdmpp.predict.catalogue import SHIPPED
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.stored_config import read_config
from tests.toy_data import toy_ast

DEVICE = "xeon-icelake"
SPEC = ("devices", DEVICE, "spec")
DELETE = object()


@pytest.fixture
def folder(tmp_path) -> Path:
    return Path(shutil.copytree(SHIPPED / DEVICE, tmp_path / "model"))


def edit_config(folder: Path, place: tuple[Any, ...], value: Any, summed: bool = False) -> None:
    """``summed``: the checksum of the configuration stays, so that any change is noticed."""
    content = json.loads((folder / "config.json").read_text())
    inner = content
    for step in place[:-1]:
        inner = inner[step]
    if value is DELETE:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    if not summed:
        content.pop("config_sha256", None)
    (folder / "config.json").write_text(json.dumps(content))


def edit_tensor(folder: Path, name: str, change: Any) -> None:
    tensors = current_names(load_file(folder / "model.safetensors"))
    changed = change(tensors[name].clone())
    if changed is None:
        del tensors[name]
    else:
        tensors[name] = changed
    save_file(tensors, folder / "model.safetensors")


def refused(folder: Path) -> str:
    with pytest.raises(ModelFormatError) as caught:
        cdmpp.load_model(folder)
    assert "lacks or garbles" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("members",), [], "members is []"),
        (("members",), {}, "members is {}"),
        (("members",), [3], "members[0] is 3"),
        (("members", 0, "name"), "gpt", "unknown model 'gpt'"),
        (("members", 0, "name"), ["cdmpp"], "unknown model ['cdmpp']"),
        (("members", 0, "heads"), 0, "model.heads is 0"),
        (("members", 0, "layers"), -1, "model.layers is -1"),
        (("members", 0, "layers"), 10**9, "model.layers is 1000000000"),
        (("members", 0, "width"), 10**9, "model.width is 1000000000"),
        (("members", 0, "width"), "128", "model.width is '128': expected a whole number"),
        (("members", 0, "width"), 64, "has the shape"),
        (("members", 0, "bins"), 10**7, "model.bins is"),
        (("members", 0, "device_costs"), 10**8, "model.device_costs is"),
        (("members", 0, "dropout"), float("nan"), "model.dropout is nan"),
        (("members", 0, "clip"), 10**400, "model.clip is 1000"),
        (("members", 0, "code"), 1, "model.code is 1: expected true or false"),
        (("members", 0, "depth"), 3, "unknown setting model.depth"),
        (("members", 0, "label"), "log2", "model.label is 'log2'"),
        (("devices",), {}, "devices is {}"),
        (("devices",), [DEVICE], "devices is ['xeon-icelake']"),
        (SPEC, {}, f"devices.{DEVICE}.spec is {{}}, expected the numbers of a device; missing or unknown: "),
        ((*SPEC, "clock_mhz"), float("nan"), f"devices.{DEVICE}.spec.clock_mhz is nan"),
        ((*SPEC, "clock_mhz"), "fast", f"devices.{DEVICE}.spec.clock_mhz is 'fast'"),
        ((*SPEC, "colour"), 3, "unknown: colour"),
        ((*SPEC, "simd_bits"), DELETE, "missing or unknown: simd_bits"),
        (("devices", DEVICE, "kind"), "tpu", f"devices.{DEVICE}.kind is 'tpu'"),
        (("devices", DEVICE, "target"), "llvm", f"devices.{DEVICE}.target is 'llvm'"),
        (("calibration", "levels"), [0.9, 0.8], "calibration.levels is [0.9, 0.8]"),
        (("calibration", "levels"), [0.8], "calibration_without_code is {"),
        (("calibration", "groups"), ["", "cpu"], "calibration.conformal."),
        (("calibration", "groups"), ["cpu"], "calibration.groups is ['cpu']"),
        (("calibration", "groups"), [""] * 2, "calibration.groups"),
        (("calibration",), 3, "calibration is 3"),
        (("calibration",), DELETE, "calibration_without_code is {"),
        (("calibration_without_code",), DELETE, "holds unknown tensors: calibration_without_code.conformal."),
        (("colour",), "red", "holds colour, which nothing reads"),
        (("members",), DELETE, "lacks members"),
        (("log_shift",), True, "log_shift is True"),
        (("log_shift",), None, "log_shift is None"),
        (("weights_sha256",), "0" * 64, "is not the file that was saved with this config.json"),
        (("weights_sha256",), "0" * 63, "weights_sha256 is '000"),
        (("unseen",), [1], "unseen is [1], expected null or a mapping of units and bounds"),
        (("power_states",), {"a13": 0.5}, "power_states is {'a13': 0.5}, expected a mapping of names"),
        (("config_sha256",), 3, "config_sha256 is 3, expected 64 hexadecimal digits or null"),
        (("weights_sha256",), 3, "weights_sha256 is 3, expected 64 hexadecimal digits or null"),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_is_named(folder, place, value, said):
    edit_config(folder, place, value, summed=place == ("config_sha256",))
    assert said in (message := refused(folder)) and str(folder) in message


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("log_shift",), DELETE),
        (("log_shift",), -50.0),
        (("calibration", "levels"), [0.5, 0.9]),
        (("members", 0, "clip"), 0.001),
        ((*SPEC, "clock_mhz"), 1.0),
        (("weights_sha256",), DELETE),
        (("config_sha256",), "0" * 64),
    ],
)  # fmt: skip
def test_a_possible_value_that_was_not_saved_is_refused(folder, place, value):
    if place == ("calibration", "levels"):
        edit_config(folder, ("calibration_without_code", "levels"), value, summed=True)
    edit_config(folder, place, value, summed=True)
    message = refused(folder)
    assert message.startswith(str(folder / "config.json")) and "was changed by hand or is broken" in message


def test_how_a_configuration_is_laid_out_does_not_matter(folder):
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(dict(reversed(content.items()))))
    cdmpp.load_model(folder)


def test_own_errors_arrive_unchanged(folder):
    edit_config(folder, ("extractor_version",), "0")
    message = refused(folder)
    assert message.startswith(str(folder)) and "extractor version 0" in message and "config.json" not in message


def test_members_of_two_kinds_are_refused(folder):
    members = json.loads((folder / "config.json").read_text())["members"]
    edit_config(folder, ("members",), [*members, {"name": "reference", "leaf_counts": [1]}])
    assert "members[1].name is 'reference', expected 'cdmpp'" in refused(folder)


def test_a_wide_model_is_refused_before_memory_is_asked_for(folder):
    widest = {"width": 8192, "feedforward": 8192, "hidden": 8192, "layers": 64}
    members = json.loads((folder / "config.json").read_text())["members"]
    edit_config(folder, ("members",), [{**members[0], **widest}] * 16)  # 400 GB if it were built
    assert "model.safetensors lacks tensors" in refused(folder)


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", "[" * 100_000, '{"a": ' + "9" * 10_000 + "}", "\x00\xff"])
@pytest.mark.parametrize("name", ["config.json", "card.json"])
def test_garbled_json_is_named(folder, name, text):
    (folder / name).write_text(text, encoding="latin-1")
    assert str(folder / name) in refused(folder)


def filled(value: float) -> Any:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[0] = value
        return tensor

    return change


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "name",
    [
        "members.0.out.weight",
        "members.0.leaf_scaler.factor",
        "members.0.prior.log_factor",
        "members.0.log_scale",
        "calibration.conformal.upper",
        "calibration.conformal.scale.coefficients",
        "calibration.novelty.grid",
        "calibration.novelty.border",
    ],
)
def test_numbers_that_are_none_are_refused_by_tensor(folder, name, value):
    edit_tensor(folder, name, filled(value))
    assert f"tensor {name} holds" in (message := refused(folder)) and "NaN or infinite" in message


def test_only_places_without_a_device_may_be_infinite(folder):
    edit_tensor(folder, "members.0.code_prior.known", filled(float("inf")))
    assert "code_prior.known holds 1 of" in refused(folder)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("members.0.out.weight", lambda t: None, "lacks tensors: members.0.out.weight"),
        ("members.0.out.weight", lambda t: t[:, :3].contiguous(), "members.0.out.weight has the shape (1, 3)"),
        ("members.0.out.bias", lambda t: t.double(), "members.0.out.bias is of type torch.float64"),
        ("members.0.out.weight", lambda t: t.to(torch.int64), "members.0.out.weight is of type torch.int64"),
        ("members.0.leaf_scaler.shift", lambda t: t.half(), "members.0.leaf_scaler.shift is of type torch.float16"),
        ("calibration.novelty.variances", lambda t: None, "lacks tensors: calibration.novelty.variances"),
        ("calibration.novelty.variances", lambda t: t[1:].contiguous(), "variances has the shape"),
        ("calibration.novelty.variances", lambda t: 0 * t, "variances must be positive"),
        ("calibration.novelty.directions", lambda t: t[:, 1:].contiguous(), "directions has the shape"),
        ("calibration.novelty.mean", lambda t: t[None].contiguous(), "mean has the shape"),
        ("calibration.novelty.grid", lambda t: -t, "grid must rise"),
        ("calibration.conformal.n_tasks", lambda t: 0 * t, "n_tasks must be positive"),
        ("calibration.conformal.n_tasks", lambda t: t.float(), "n_tasks is of type"),
        ("calibration.conformal.lower", lambda t: -t, "lower must be at most 0"),
        ("calibration.conformal.scale.low", lambda t: t[:2].contiguous(), "low has the shape"),
    ],
)
def test_tensors_that_do_not_fit_are_named(folder, name, change, said):
    edit_tensor(folder, name, change)
    assert said in (message := refused(folder)) and "model.safetensors" in message


@pytest.mark.parametrize("name", ["members.0.out.weight", "members.0.code_prior.log_cost"])
def test_weights_that_are_not_those_saved_are_refused(folder, name):
    edit_tensor(folder, name, lambda t: -t)
    assert "model.safetensors is not the file that was saved" in refused(folder)


def test_a_folder_saved_without_a_checksum_is_read_with_a_warning(folder, tmp_path, caplog):
    edit_config(folder, ("weights_sha256",), DELETE)
    older = cdmpp.load_model(folder)
    assert "has no weights_sha256" in caplog.text and "has no config_sha256" in caplog.text
    caplog.clear()
    older.save(tmp_path / "again")
    cdmpp.load_model(tmp_path / "again")
    assert caplog.text == ""


@pytest.mark.parametrize("place", sorted(SHIPPED.iterdir()), ids=lambda place: place.name)
def test_every_shipped_model_has_its_checksum(place):
    content = json.loads((place / "config.json").read_text())
    assert len(content["weights_sha256"]) == len(content["config_sha256"]) == 64
    cdmpp.load_model(place)


def test_a_further_tensor_is_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "members.1.out.weight": torch.zeros(1, 256)}, folder / "model.safetensors")
    assert "holds unknown tensors: members.1.out.weight" in refused(folder)


def test_a_reference_model_is_checked_alike(tmp_path):
    settings = {"name": "reference", "layers": 1, "feedforward": 8, "input_layer": 8, "leaf_counts": [1, 3]}
    layers = {name: [8] for name in ("embedded_layers", "device_layers", "regression_layers")}
    config = model_config({**settings, **layers, "embedding": 8})
    model = build_model(config, 236, 68, 39)
    Predictor([model], read_config(SHIPPED / DEVICE).devices).save(tmp_path)
    ast = toy_ast(np.random.default_rng(0))
    assert (
        cdmpp.load_model(tmp_path).predict(ast).latency_s
        == Predictor([model], cdmpp.load_model(tmp_path).trained_on).predict(ast).latency_s
    )
    for counts in ([], [0], ["1"], [3, 1], [10**12], 3):
        edit_config(tmp_path, ("members", 0, "leaf_counts"), counts)
        assert "leaf_counts" in refused(tmp_path)


def test_how_older_models_found_their_bounds_is_not_read(folder):
    before = cdmpp.load_model(folder).calibration.arrays()
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "calibration.conformal.methods": torch.zeros(2, 1)}, folder / "model.safetensors")
    edit_config(folder, ("weights_sha256",), DELETE)
    np.testing.assert_equal(cdmpp.load_model(folder).calibration.arrays(), before)
