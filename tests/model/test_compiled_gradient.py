"""Gradients of the compiled library: those of the module, whatever the threads, and what it leaves to the module."""

from pathlib import Path

import numpy as np
import pytest
import torch

import cdmpp
from cdmpp.data.batching import ProgramTensors
from cdmpp.data.loading import load_dataset
from cdmpp.devices import sheets_of
from cdmpp.model.build import build_for
from cdmpp.model.compiled_gradient import CompiledGradient
from cdmpp.model.config import model_config
from cdmpp.model.output import Output
from cdmpp.model.prior_table import PriorTable
from tests.model.test_models import SHAPES, SMALL
from tests.toy_data import toy_dataset


def made(change=None, n=80):
    torch.manual_seed(3)
    dataset, _ = toy_dataset(n)
    programs = ProgramTensors.build(dataset.asts, sheets_of(dataset.devices), dataset.devices, dataset.latency_s)
    model = build_for(model_config({**SMALL, "dropout": 0.0, **(change or {})}), programs, np.arange(n))
    with torch.no_grad():
        for parameter in model.parameters():  # no weight stays zero, whose place nobody would notice
            parameter += 0.05 * torch.randn_like(parameter)
    return model, programs


def gradient_of(model, programs):
    return CompiledGradient(model, programs, PriorTable.build(model, programs))


def slopes(model, output):
    model.zero_grad()
    latency, hidden = output.log_latency, output.hidden
    weights = torch.linspace(0.1, 1, len(latency))
    ((latency * weights).sum() + (hidden * torch.linspace(-1, 1, hidden.shape[1])).sum()).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def check(model, programs):
    model.eval()
    priors = PriorTable.build(model, programs)
    parts = [programs.batch(part) for part in np.array_split(np.arange(len(programs))[::-1], 2)]
    outputs = [model(part, priors.take(part)) for part in parts]
    expected = Output(*(torch.cat(column) for column in zip(*outputs, strict=True)))
    wanted = slopes(model, expected)
    output = CompiledGradient(model, programs, priors).outputs(parts)
    torch.testing.assert_close(output.log_latency, expected.log_latency, rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(output.hidden, expected.hidden, rtol=1e-3, atol=1e-4)
    found = slopes(model, output)
    assert found.keys() == wanted.keys() == dict(model.named_parameters()).keys()
    for name, one in found.items():
        assert float((one - wanted[name]).norm()) <= 1e-4 * float(wanted[name].norm()) + 1e-6, name


@pytest.mark.parametrize("change", [*SHAPES, {"label": "box-cox"}], ids=str)
def test_the_gradient_of_every_weight_is_that_of_the_module(change):
    check(*made(change))


@pytest.mark.parametrize(("name", "device"), [("xeon-icelake", "xeon-icelake"), ("cpus", "epyc-turin")])
def test_gradients_of_shipped_models_which_read_code(name, device):
    [model, *_] = cdmpp.load_model(name).models
    folder = Path(__file__).parents[2] / "datasets" / device
    asts = load_dataset(folder, device, progress=False).asts.take(np.arange(0, 600, 10))
    sheets, names = sheets_of(np.array([device])), [device] * len(asts)
    assert model.config.code
    for one in (asts, asts.with_codes(None)):
        check(model.requires_grad_(True), ProgramTensors.build(one, sheets, names, np.full(len(asts), 1e-4)))


def test_any_number_of_threads_gives_the_same_bits():
    model, programs = made()
    gradient = gradient_of(model, programs)
    model.eval()
    batch = programs.batch(np.arange(len(programs)))
    found = []
    for threads in (1, 2, 5):
        gradient.threads = threads
        found.append(slopes(model, gradient.outputs([batch])))
    for other in found[1:]:
        assert all(torch.equal(one, other[name]) for name, one in found[0].items())


def test_a_weight_that_changes_between_the_passes_is_noticed():
    model, programs = made()
    gradient = gradient_of(model, programs)
    output = gradient.outputs([programs.batch(np.arange(4))])
    with torch.no_grad():
        model.get_parameter("out.weight").mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.log_latency.sum().backward()


def test_passes_leave_no_memory_behind():
    model, programs = made()
    gradient = gradient_of(model, programs)
    batch = programs.batch(np.arange(len(programs)))

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    if not Path("/proc/self/statm").is_file():
        pytest.skip("/proc is not there")
    for _ in range(20):
        slopes(model, gradient.outputs([batch]))
    before = resident()
    for _ in range(200):
        slopes(model, gradient.outputs([batch]))
    assert resident() - before < 2000  # pages; what one pass keeps is lost 200 times otherwise


def test_hidden_codes_are_drawn_anew_in_training_only():
    model, programs = made({"code_dropout": 0.5})
    gradient, batch = gradient_of(model, programs), [programs.batch(np.arange(80))]
    for mode in (model.train(), model.eval()):
        torch.manual_seed(7)
        first, second = (gradient.outputs(batch).log_latency.detach() for _ in range(2))
        assert not mode.config.code or torch.equal(first, second) != mode.training


def test_what_the_library_does_not_compute_is_left_to_the_module():
    for change, fits in (({}, True), ({"dropout": 0.1}, False)):
        model, programs = made(change)
        assert CompiledGradient.fits(model, programs) == fits
    assert not CompiledGradient.fits(model.double(), programs)
