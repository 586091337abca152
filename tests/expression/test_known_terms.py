"""Known terms: what recognised columns say of a job, and a fit of all of them at once."""

import numpy as np
import pytest

from cdmpp.errors import UsageError
from cdmpp.expression import RunTable
from cdmpp.expression.blend import Blend
from cdmpp.expression.design import Design
from cdmpp.expression.factor import factors_of
from cdmpp.expression.folds import extrapolating_folds, random_folds
from cdmpp.expression.held_out import plain_error
from cdmpp.expression.known_terms import known_terms

LAYOUT = ("global_batch", "micro_batch", "hidden", "layers", "seq_length", "tp", "dp", "pp")


def products(*columns):
    return [(dict(one.product.powers), one.product.shape) for one in known_terms(factors_of(columns))]


def test_no_term_is_listed_twice():
    for columns in (("gpus", "nodes", "local_batch"), LAYOUT, ("ranks", "batch", "chunks", "width")):
        found = products(*columns)
        assert len(found) == len({(tuple(sorted(powers.items())), shape) for powers, shape in found})


def test_a_global_batch_is_divided_among_workers():
    found = products("gpus", "batch")
    assert ({"batch": 1.0, "gpus": -1.0}, None) in found
    assert ({}, ("log2", "gpus")) in found


def test_layers_of_a_stage_are_gone_through_in_each_round_of_a_pipeline():
    assert ({"rounds": 1.0, "layers": 1.0, "pp": -1.0}, None) in products(*LAYOUT)
    head = {"global_batch": 1.0, "dp": -1.0, "seq_length": 1.0, "hidden": 1.0, "tp": -1.0}
    assert (head, None) in products(*LAYOUT), "what belongs to no layer is computed once for each micro-batch"


def test_exchanges_vanish_for_one_worker():
    for one in known_terms(factors_of(("gpus", "nodes", "local_batch"))):
        if one.is_exchange:
            alone = {name: np.array([1.0]) for name in ("gpus", "nodes", "gpus_per_node", "local_batch")}
            assert one.product.values(alone, 1)[0] == 0


def test_a_blend_goes_on_as_its_law_does():
    gpus, batch = (one.ravel() for one in np.meshgrid([1.0, 2, 4, 8], [16.0, 32, 64, 128]))
    law = lambda gpus, batch: 4e-3 + 1e-3 * batch / gpus + 2e-3 * np.log2(gpus)  # noqa: E731
    design = Design.of(RunTable.of({"gpus": gpus, "batch": batch, "step_s": law(gpus, batch)}, "step_s"))
    far = {"gpus": np.array([16.0]), "batch": np.array([128.0])}
    found = Blend.of(design).refit(design.every).times_s(far, np.zeros(1, dtype=int))
    assert found[0] == pytest.approx(law(16.0, 128.0), rel=0.03)


def scattered(exchange_s, noise=0.02):
    """Runs on up to 8 GPUs of 1 to 4 nodes; exchanging takes ``exchange_s`` for each step of a tree."""
    rng = np.random.default_rng(0)
    gpus, nodes, batch = (rng.choice(one, 60) for one in ([1.0, 2, 4, 8], [1.0, 2, 4], [16.0, 32, 64, 128]))
    times_s = 4e-3 + 1e-3 * batch / gpus + exchange_s * np.log2(gpus)
    columns = {"gpus": gpus, "nodes": np.minimum(nodes, gpus), "batch": batch}
    return Design.of(RunTable.of(columns | {"step_s": times_s * np.exp(rng.normal(0, noise, 60))}, "step_s"))


def test_small_terms_go_where_held_out_runs_are_predicted_as_well():
    design = scattered(2e-3)
    folds, random = extrapolating_folds(design), random_folds(design, 4, 0)
    blend = Blend.of(design)
    short = blend.shorter(folds, random)
    assert len(short.refit(design.every).terms) < len(blend.refit(design.every).terms)
    for kind in (folds, random):
        assert plain_error(design, short, kind) <= plain_error(design, blend, kind)


def test_a_small_term_stays_where_held_out_runs_need_it():
    """Exchanging takes at most 2 % of a run, without noise: nothing else explains it."""
    design = scattered(1e-4, noise=0.0)
    short = Blend.of(design).shorter(extrapolating_folds(design), random_folds(design, 4, 0))
    assert any(term.product.shape for term in short.refit(design.every).terms)


def test_a_group_with_few_runs_grows_as_the_others_do():
    gpus = np.array([1.0, 2, 4, 8] * 3 + [1.0, 2.0])
    job = np.array(["a"] * 4 + ["b"] * 4 + ["c"] * 4 + ["d"] * 2)
    scale = np.array([{"a": 1.0, "b": 3.0, "c": 0.5, "d": 2.0}[one] for one in job])
    table = RunTable.of(
        {"gpus": gpus, "job": job, "step_s": scale * (1 + 0.2 * np.log2(gpus))}, "step_s", None, ["job"]
    )
    design = Design.of(table)
    code = np.array([design.table.groups.index("d")])
    found = Blend.of(design).refit(design.every).times_s({"gpus": np.array([8.0])}, code)
    assert found[0] == pytest.approx(2.0 * 1.6, rel=0.1)


def test_a_size_of_layers_may_be_the_same_in_all_runs():
    columns = {"batch": [8.0, 16, 32, 64], "hidden": [512.0] * 4, "step_s": [1.0, 2, 4, 8]}
    table = RunTable.of(columns, "step_s", ["batch", "hidden"])
    assert "hidden is 512 in all r" in table.warnings[0]
    with pytest.raises(UsageError, match="gpus is 4 in all rows"):
        RunTable.of(columns | {"gpus": [4.0] * 4}, "step_s", ["batch", "gpus"])


def test_work_grows_with_parameters_times_what_multiplies_it_and_with_attention():
    found = products("gpus", "micro_batch", "chunks", "seq_len", "num_params", "recomputed")
    work = {"chunks": 1.0, "micro_batch": 1.0, "seq_len": 1.0, "num_params": 1.0}
    assert (work, None) in found
    assert (work | {"recomputed": 1.0}, None) in found
    attention = work | {"seq_len": 2.0, "num_params": 2 / 3}
    assert (attention, None) in found
    assert (attention | {"recomputed": 1.0}, None) in found
    assert ({"num_params": 2.0}, None) not in found, "no run takes the square of parameters"


def test_layers_and_hidden_sizes_say_what_attention_takes_themselves():
    found = products("gpus", "micro_batch", "layers", "hidden", "seq_len", "num_params")
    assert not any(powers.get("num_params") == 2 / 3 for powers, _ in found)


def test_times_of_larger_networks_follow_from_those_of_small_ones():
    seq, params, again = (one.ravel() for one in np.meshgrid([512.0, 1024, 2048], [1e8, 3e8, 1e9], [1.0, 4 / 3]))
    law = lambda seq, params, again: again * seq * (2e-13 * params + 1e-12 * seq * params ** (2 / 3))  # noqa: E731
    columns = {"seq_len": seq, "num_params": params, "recomputed": again, "step_s": law(seq, params, again)}
    design = Design.of(RunTable.of(columns, "step_s"))
    far = {"seq_len": np.array([2048.0]), "num_params": np.array([4e9]), "recomputed": np.array([4 / 3])}
    found = Blend.of(design).refit(design.every).times_s(far, np.zeros(1, dtype=int))
    assert found[0] == pytest.approx(law(2048.0, 4e9, 4 / 3), rel=0.2)
