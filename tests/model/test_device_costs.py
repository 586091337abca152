"""Costs of single devices in the code prior: told apart where several were learned, found from few programs."""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch

from cdmpp import devices
from cdmpp.ast.table import AstTable
from cdmpp.data.batching import ProgramTensors
from cdmpp.machine_code.cpu.code_features import CODE_NAMES
from cdmpp.model.build import build_for
from cdmpp.model.code_prior import CodePrior
from cdmpp.model.config import model_config
from cdmpp.model.known_devices import borrowed
from cdmpp.model.regressor import CdmppModel
from tests.model.test_code_prior import COSTS, answers, coded_asts
from tests.model.test_models import SMALL

EACH = 500
SLOWNESS = {"xeon-icelake": 1.0, "xeon-icelake-avx2": 1.6, "epyc-7452": 0.6}
"""Cycles of each device, as a multiple of those that its instructions tell."""
OLD, FEW, LATER = np.arange(2 * EACH), 2 * EACH + np.arange(40), 2 * EACH + np.arange(40, EACH)
"""Rows of the two devices that are learned first, a few of the third, and the rest of it."""


@pytest.fixture(scope="module")
def programs() -> ProgramTensors:
    tables, seconds, names = [], [], []
    for place, (name, slowness) in enumerate(SLOWNESS.items()):
        asts, cycles = coded_asts(EACH, place)
        tables.append(asts)
        seconds.append(slowness * cycles / (1e6 * devices.get(name).spec["clock_mhz"]))
        names += [name] * EACH
    sheets = {name: devices.get(name) for name in SLOWNESS}
    return ProgramTensors.build(AstTable.concat(tables), sheets, names, np.concatenate(seconds))


@pytest.fixture(scope="module")
def prior(programs) -> CodePrior:
    found = CodePrior(4, programs.device_vectors.shape[1])
    found.fit(programs, OLD)
    return found


def error(prior: CodePrior, programs: ProgramTensors, rows: np.ndarray) -> torch.Tensor:
    return (answers(prior, programs, rows)[0] - programs.log_latency[rows]).abs().mean()


def test_two_devices_with_the_same_code_and_other_clocks_are_told_apart(prior, programs):
    shared = CodePrior(1, programs.device_vectors.shape[1])
    shared.fit(programs, OLD)
    assert error(prior, programs, OLD) < 0.1 < 0.15 < error(shared, programs, OLD)
    assert torch.allclose(prior.own[:2].sum(0), torch.zeros(()), atol=1e-5)


def test_a_few_programs_tell_the_costs_of_a_new_device_and_leave_the_others_alone(prior, programs):
    before = answers(prior, programs, OLD)[0]
    learned = copy.deepcopy(prior)
    learned.learn_device(programs, FEW)
    assert error(prior, programs, LATER) > 0.4
    assert error(learned, programs, LATER) < 0.15
    assert torch.equal(answers(learned, programs, OLD)[0], before)
    assert torch.equal(learned.log_cost, prior.log_cost)
    again = copy.deepcopy(learned)
    again.learn_device(programs, LATER)
    assert torch.equal(again.own, learned.own), "a device is learned once"


def of_new_device(costs: dict[str, float], shrink: float, call_s: float) -> ProgramTensors:
    """Sixty programs, of ``shrink`` times the instructions, where some cost another multiple than where others ran."""
    asts, _ = coded_asts(60, 9)
    amounts = shrink * (np.exp2(asts.codes_or_nan().astype(np.float64)) - 1)
    cost = {name: amounts[:, CODE_NAMES.index(name)] * cycles * costs.get(name, 1.0) for name, cycles in COSTS.items()}
    cycles = np.maximum(cost["n_float_16"], cost["n_load_16"] + cost["n_gather"] + cost["n_store_16"])
    sheet = devices.get("epyc-7452")
    seconds = cycles / (1e6 * sheet.spec["clock_mhz"]) + call_s
    asts = asts.with_codes(np.log2(1 + amounts).astype(np.float32))
    return ProgramTensors.build(asts, {sheet.name: sheet}, [sheet.name] * 60, seconds)


@pytest.mark.parametrize("call_ns", [5.0, 60.0, 500.0])
def test_small_programs_tell_what_a_call_takes_where_the_fit_left_nothing_of_it(prior, call_ns):
    """A fit in cycles may end at a fraction of one: a factor on that never moved."""
    scaled, rows = copy.deepcopy(prior), np.arange(60)
    scaled.log_overhead.fill_(math.log(0.2))
    scaled.log_cost[:, -1] = -30.0  # the constant part of the analytic time, which ends as small
    small = of_new_device({}, 1e-7, 1e-9 * call_ns)
    factors = scaled.scale_device(small, rows, torch.zeros(60), torch.ones(60))
    assert set(factors) == {"core", "caches", "memory", "call_ns"}
    assert factors["call_ns"] == pytest.approx(call_ns, rel=0.3)
    assert error(scaled, small, rows) < 0.15


def test_a_kind_of_instruction_that_is_slower_there_is_told_apart_from_the_others(prior):
    """One factor for all cycles of the core is wrong for either."""
    scaled, programs = copy.deepcopy(prior), of_new_device({"n_gather": 3.0, "n_float_16": 0.6}, 1.0, 0.0)
    few, rest = np.arange(30), np.arange(30, 60)
    before = error(scaled, programs, rest)
    scaled.scale_device(programs, few, torch.zeros(30), torch.ones(30))
    assert error(scaled, programs, rest) < 0.5 * before


def test_an_unknown_device_has_the_shared_costs(prior, programs):
    """However like xeon-icelake its datasheet is."""
    like = programs.device_vectors.clone()
    like[2] = like[0] + 0.01
    batch = dataclasses.replace(programs, device_vectors=like).batch(LATER[:20])
    own = prior.costs_of(batch.device_vectors)
    assert not own.any()
    assert prior.costs_of(like[:1]).any() and prior.costs_of(like[1:2]).any()
    assert torch.equal(CodePrior(4, like.shape[1]).costs_of(like), torch.zeros(3, own.shape[1]))


def test_labels_outside_the_rows_change_nothing(prior, programs):
    labels = programs.log_latency.clone()
    labels[LATER] = 3.0
    found = [copy.deepcopy(prior), copy.deepcopy(prior)]
    found[0].learn_device(programs, FEW)
    found[1].learn_device(dataclasses.replace(programs, log_latency=labels), FEW)
    assert torch.equal(found[0].own, found[1].own)


def test_a_model_of_one_device_keeps_its_costs_when_it_learns_another(programs):
    single = CodePrior(4, programs.device_vectors.shape[1])
    single.fit(programs, np.arange(2 * EACH)[programs.device_index[: 2 * EACH] == 0])
    mine = np.arange(EACH)
    before = answers(single, programs, mine)[0]
    single.learn_device(programs, FEW)
    assert torch.equal(answers(single, programs, mine)[0], before)
    assert error(single, programs, LATER) < 0.2


def test_without_room_or_shared_costs_nothing_is_learned(prior, programs):
    width = programs.device_vectors.shape[1]
    full, empty = CodePrior(2, width), CodePrior(4, width)
    full.load_state_dict({name: value[:2] if name in ("known", "own") else value for name, value in _state(prior)})
    for one in (full, empty):
        before = one.own.clone()
        one.learn_device(programs, FEW)
        assert torch.equal(one.own, before)


def _state(prior: CodePrior) -> list[tuple[str, torch.Tensor]]:
    return list(prior.state_dict().items())


def test_a_model_starts_from_them_and_keeps_them(programs):
    model = build_for(model_config({**SMALL, "device_costs": 4}), programs, OLD).eval()
    assert isinstance(model, CdmppModel)
    model.learn_device(programs, FEW)
    with torch.no_grad():
        model.out.weight.zero_()
        batch = programs.batch(LATER[:50])
        expected = answers(model.code_prior, programs, LATER[:50])[0]
        torch.testing.assert_close(model(batch).log_latency, expected, rtol=1e-4, atol=1e-4)
    copied = build_for(model_config({**SMALL, "device_costs": 4}), programs, OLD[:20])
    copied.load_state_dict(model.state_dict())
    assert torch.equal(copied.code_prior.own, model.code_prior.own)


def test_an_unknown_device_borrows_from_those_like_it():
    known = torch.tensor([[0.0, 0.0], [4.0, 0.0], [torch.inf, torch.inf]])
    own = torch.tensor([1.0, 3.0, 0.0])[:, None, None]
    asked = torch.tensor([[4.0, 0.0], [3.9, 0.0], [2.0, 5.0], [2.0, -90.0]])
    found = borrowed(asked, known, own)[:, 0, 0]
    assert found[0] == 3.0  # itself
    assert 2.9 < found[1] < 3.0
    assert torch.allclose(found[2:], torch.tensor(2.0))  # as far from both
    assert borrowed(asked, torch.full((2, 2), torch.inf), torch.zeros(2, 1, 1)).eq(0).all()


def test_what_nobody_told_of_a_device_is_borrowed_and_never_lent():
    known = torch.tensor([[0.0], [1.0], [1.1]])
    own = torch.tensor([[[1.0, 1.0], [5.0, 5.0]], [[2.0, 2.0], [0.0, 0.0]], [[3.0, 3.0], [6.0, 6.0]]])
    itself, stranger = borrowed(torch.tensor([[1.0], [1.05]]), known, own)
    assert torch.equal(itself[0], own[1, 0])
    assert torch.allclose(itself[1], torch.tensor(6.0), atol=0.01)  # of the one beside it
    assert torch.allclose(stranger, torch.tensor([[2.5, 2.5], [6.0, 6.0]]), atol=0.01)


def test_the_device_whose_numbers_are_the_shared_ones_takes_none_of_one_learned_later():
    known, own = torch.tensor([[0.0], [1.0]]), torch.stack([torch.zeros(2, 2), torch.ones(2, 2)])
    first, second = borrowed(known, known, own)
    assert first.eq(0).all() and second.eq(1).all()
