"""Written expressions: the module of Python runs and gives the times of the expression, whatever columns are called."""

import inspect

import numpy as np
import pytest

from cdmpp.expression import FitSettings, RunTable, fit_runs
from cdmpp.expression.expression import Expression
from cdmpp.expression.fit_file import read_fit, write_fit
from cdmpp.expression.term import Product, Term
from cdmpp.expression.writing import identifiers

ODD = [
    ("a", "group"), ("batch size", "batch_size"), ("batch_size", "batch size"), ("x\u00b2", "x2"), ("math", "max"),
    ("max", "math"), ("n{x}", "{0}"), ("class", "2x"), ("constants_s", "CONSTANTS_S"), ("__debug__", "\u30d0\u30c3"),
    ("math_", "math"), ('say "hi"\\n', "a*b"), ("_", "("),
]  # fmt: skip


@pytest.mark.parametrize("groups", [("",), ("bert", "it's")])
@pytest.mark.parametrize("names", ODD)
def test_the_module_gives_the_times_of_the_expression(names, groups):
    first, second = names
    terms = (
        Term(Product({})),
        Term(Product({first: 1.0, second: -0.5})),
        Term(Product({first: 1.0}, ("log2", second)), Product({second: 2.0}), 0.25),
    )
    constants = tuple((0.5 + place, 0.25, 2.0) for place in range(len(groups)))
    expression = Expression(names, terms, constants, groups, "step time")
    module: dict = {}
    exec(expression.python(), module)
    values = {first: np.array([3.0, 1.5]), second: np.array([2.0, 8.0])}
    given = identifiers(names)
    assert list(inspect.signature(module["step_time"]).parameters)[-2:] == list(given.values())
    for code, group in enumerate(groups):
        expected = expression.times_s(values, np.array([code, code]))
        for row in range(2):
            own = {given[name]: values[name][row] for name in names} | ({"group": group} if len(groups) > 1 else {})
            assert module["step_time"](**own) == pytest.approx(expected[row], rel=1e-12)


def test_what_follows_from_columns_is_written_with_their_arguments():
    names = ("num gpus", "nodes")
    expression = Expression(("gpus", "nodes"), (Term(Product({"gpus_per_node": 1.0})),), ((2.0,),), time_name="step_s")
    module: dict = {}
    exec(expression.python(), module)
    assert module["step_s"](gpus=7, nodes=2) == 8.0
    spaced = Expression(names, (Term(Product({"gpus_per_node": 1.0})),), ((2.0,),), time_name="step_s")
    exec(spaced.python(), module)
    assert module["step_s"](num_gpus=7, nodes=2) == 8.0
    assert r"\mathrm{ceil}(\mathrm{num\ gpus} / \mathrm{nodes})" in spaced.latex()


def test_arguments_are_named_once_and_good_names_are_kept():
    assert identifiers(("batch size", "batch_size")) == {"batch size": "batch_size_", "batch_size": "batch_size"}
    assert identifiers(("a b", "a-b", "a.b", "math")) == {"a b": "a_b", "a-b": "a_b_", "a.b": "a_b__", "math": "math_"}


@pytest.mark.parametrize("time", ["step ms", "stepMs", "time (ms)", "step_ms", "ms"])
def test_a_saved_fit_in_milliseconds_predicts_the_same_when_read(tmp_path, time):
    gpus, batch = np.repeat([1.0, 2.0, 4.0, 8.0], 4), np.tile([8.0, 16.0, 32.0, 64.0], 4)
    table = RunTable.of({"gpus": gpus, "n{x}": batch, time: 4.0 + batch / gpus}, time, ["gpus", "n{x}"])
    fitted = fit_runs(table, FitSettings(budget_s=1))
    point = [{"gpus": 2, "n{x}": 64}]
    assert fitted.predict(point).times_s == pytest.approx([0.036], rel=0.02)
    write_fit(fitted, tmp_path / "fit.json")
    again = read_fit(tmp_path / "fit.json")
    assert again.predict(point).times_s == pytest.approx(fitted.predict(point).times_s, rel=1e-9)
    assert np.array_equal(again.table.times_s, table.times_s) and " s = " not in again.expression.text()[:6]
    assert again.expression.text().startswith(("step_s = ", "time_s = "))
