"""What the cost model does with candidates that are fine, that cannot be read, and that fail."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te
from tvm.s_tir import Schedule

import cdmpp
from cdmpp.ast.scheduled import extract_scheduled_many
from cdmpp.errors import DataError, MissingToolError
from cdmpp.platform.extension import digest_of
from cdmpp.tuning import scorer

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1})


def task():
    a = te.placeholder((256, 256), name="a")
    k = te.reduce_axis((0, 256), name="k")
    b = te.compute((256,), lambda i: te.sum(a[k, i], axis=k), name="b")
    return tvm.IRModule({"main": te.create_prim_func([a, b])})


def scheduled(factor):
    schedule = Schedule(task())
    outer = schedule.split(schedule.get_loops(schedule.get_sblock("b"))[0], [None, factor])
    schedule.vectorize(outer[1]) if factor == 8 else schedule.parallel(outer[0])
    return SimpleNamespace(sch=schedule)


def measured(*seconds):
    return [SimpleNamespace(run_secs=None if s is None else [s, 2 * s]) for s in seconds]


class Unreadable:
    """A candidate whose module is of no use."""

    sch = SimpleNamespace(mod=tvm.IRModule({}))


@pytest.fixture
def context():
    return SimpleNamespace(mod=task(), target=TARGET)


@pytest.fixture
def candidates():
    return [scheduled(factor) for factor in (2, 4, 8, 16)]


def make(**options):
    return cdmpp.make_cost_model("epyc-genoa", "epyc-genoa", **{"two_stage": False, **options})._inst


def test_scores_are_positive_and_those_of_the_predictor(context, candidates):
    model = make()
    scores = model.predict(context, candidates)
    assert scores.dtype == np.float64
    programs = list(model.two_stage.scorer.read({i: c.sch.mod for i, c in enumerate(candidates)}, TARGET).values())
    direct = model.two_stage.scorer.fast(programs, "a task")
    np.testing.assert_allclose(scores, np.exp(-direct.log_latency), rtol=1e-5)
    # The ranker orders; the predictor's level makes seconds of it.
    predicted = model.two_stage.scorer.predictor.predict([one.ast for one in programs], "epyc-genoa", compiled=False)
    assert np.mean(direct.log_latency) == pytest.approx(np.mean(np.log(predicted.latency_s)), abs=1e-6)


@pytest.mark.parametrize(("two_stage", "library"), [(False, "extract"), (True, "cpu_code")])
def test_a_library_of_other_sources_ends_a_search_before_it_begins(two_stage, library, monkeypatch):
    """A search that has begun would score at random and say so once."""
    monkeypatch.setattr("cdmpp.platform.extension.digest_of", lambda folder: "other" if OWN[library] in f"{folder}" else
                        digest_of(folder))  # fmt: skip
    with pytest.raises(MissingToolError, match=rf"lib/{library}\.so is older than .*: run `make native`"):
        make(two_stage=two_stage)


OWN = {"extract": "ast/native", "cpu_code": "machine_code/cpu/native"}


def test_what_was_measured_moves_the_scores_towards_it(context, candidates):
    model = make()
    before = 1 / model.predict(context, candidates)
    slow = 5 * before
    model.update(context, candidates[:3], measured(*slow[:3]))
    after = 1 / model.predict(context, candidates)
    assert (np.abs(np.log(after / slow)) < np.abs(np.log(before / slow))).all()
    assert np.abs(np.log(after[:3] / slow[:3])).max() < 0.2
    other = SimpleNamespace(mod=candidates[0].sch.mod, target=TARGET)  # another task: its own error is not known
    assert (1 / model.predict(other, candidates) < after).all()


def test_frozen_learns_nothing_and_failures_teach_nothing(context, candidates):
    frozen, learning = make(frozen=True), make()
    before = frozen.predict(context, candidates)
    frozen.update(context, candidates, measured(1.0, 1.0, 1.0, 1.0))
    np.testing.assert_array_equal(frozen.predict(context, candidates), before)
    learning.update(context, candidates, measured(None, None, None, float("nan")))
    learning.update(context, [], [])
    np.testing.assert_allclose(learning.predict(context, candidates), before)
    assert learning.counts["failed"] == 4


def test_what_was_asked_about_last_is_known_and_nothing_older(context, candidates, monkeypatch):
    model, asked = make(), []

    def read(modules, *rest):
        asked.append(len(modules))
        return extract_scheduled_many(modules, *rest)

    monkeypatch.setattr(scorer, "extract_scheduled_many", read)
    first = model.predict(context, candidates)
    np.testing.assert_array_equal(model.predict(context, candidates[1:]), first[1:])
    np.testing.assert_allclose(model.predict(context, candidates), first, rtol=1e-5)
    assert asked == [4, 0, 1]
    assert len(model.two_stage.scorer._read) == 4


def test_what_cannot_be_read_gets_the_usual_score_and_is_counted(context, candidates, caplog):
    model = make()
    scores = model.predict(context, [*candidates, Unreadable])
    assert scores[4] == np.median(scores[:4])
    assert model.counts["unread"] == 1
    with caplog.at_level(logging.WARNING):
        assert (model.predict(context, [Unreadable] * 3) > 0).all()
        assert (model.predict(SimpleNamespace(), [object()]) > 0).all()  # nothing that a search could pass
        model.update(SimpleNamespace(), [object()], measured(1.0))
    assert "PrimFuncs" in caplog.text
    assert "AttributeError" in caplog.text


def test_what_was_learned_is_saved_for_the_same_model_alone(context, candidates, tmp_path):
    model, path = make(), tmp_path / "learned.safetensors"
    model.update(context, candidates[:2], measured(1e-3, 2e-3))
    model.save(str(path))
    again = make()
    again.load(str(path))
    np.testing.assert_allclose(again.predict(context, candidates), model.predict(context, candidates))
    with pytest.raises(DataError, match="cpus for epyc-genoa"):
        cdmpp.make_cost_model("epyc-genoa", "cpus")._inst.load(str(path))
    path.write_bytes(b"something else")
    with pytest.raises(DataError, match="cannot be read"):
        again.load(str(path))


def test_the_builder_measures_what_was_compiled_to_be_read(context, candidates):
    model = make(two_stage=True)
    model.predict(context, candidates)
    assert model.counts["compiled"] == 4
    made = {id(c): model.two_stage.artifacts.compiled({hash_of(c): c.sch.mod}, TARGET)[hash_of(c)] for c in candidates}
    given = [SimpleNamespace(mod=c.sch.mod, target=TARGET) for c in (*candidates, candidates[0])]
    results = model.builder._inst.build(given)
    assert [r.artifact_path for r in results[:4]] == [str(made[id(c)].library) for c in candidates]
    assert results[4].artifact_path != results[0].artifact_path  # a search deletes the folder of each
    model.two_stage.artifacts.limit_s = 1e-4
    failed = model.builder._inst.build([SimpleNamespace(mod=scheduled(32).sch.mod, target=TARGET)])
    assert failed[0].artifact_path is None
    assert "timeout" in failed[0].error_msg


def hash_of(candidate):
    return int(tvm_ffi.structural_hash(candidate.sch.mod))
