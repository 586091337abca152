"""Tables of runs: what is recognised, and what is refused by name."""

import numpy as np
import pytest

from cdmpp.errors import CdmppError, DataError, UsageError
from cdmpp.expression import FitSettings, RunTable, fit_runs
from cdmpp.expression.fit_file import read_fit, write_fit
from cdmpp.expression.group_label import label_of, values_of

RUNS = {"gpus": [1, 2, 4, 8], "batch": [8, 16, 8, 16], "step_ms": [4.0, 3.0, 2.0, 1.0]}


def changed(**columns):
    return RUNS | columns


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (changed(step_ms=[4, 3, 0, 1]), "step_ms, row 3: 0 is not above 0"),
        (changed(step_ms=[4, 3, -2, 1]), "step_ms, row 3: -2 is not above 0"),
        (changed(gpus=[1, 2, "four", 8]), "gpus, row 3: 'four' is no number; a column of texts can be a group"),
        (changed(batch=[8, np.nan, 8, 16]), "batch, row 2: nan: leave out rows without a value"),
        (changed(batch=[8, 8, 8, 8]), "factor batch is 8 in all rows: it says nothing of the time"),
        (changed(batch=[]), "column batch has 0 values and step_ms 4"),
    ],
)
def test_a_table_that_cannot_be_is_refused_by_name(columns, told):
    with pytest.raises(CdmppError) as caught:
        RunTable.of(columns, "step_ms", ["gpus", "batch"])
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("time", "factors", "groups", "told"),
    [
        ("seconds", ["gpus"], [], "there is no column 'seconds': expected gpus, batch, step_ms"),
        ("step_ms", ["gpus", "nodes"], [], "there is no column 'nodes'"),
        ("step_ms", ["gpus", "gpus"], [], "'gpus' is named twice"),
        ("step_ms", ["gpus"], ["gpus"], "'gpus' is named twice"),
    ],
)
def test_unknown_columns_are_refused_by_name(time, factors, groups, told):
    with pytest.raises(UsageError, match=told):
        RunTable.of(RUNS, time, factors, groups)


NODES = {"gpus": [1, 2, 4, 8], "nodes": [1, 1, 1, 1], "batch": [8, 16, 8, 16], "step_s": [4.0, 3.0, 2.0, 1.0]}


@pytest.mark.parametrize("name", ["nodes", "batch", "micro_batch", "dp"])
def test_a_named_factor_that_never_varies_is_refused_by_name(name):
    with pytest.raises(UsageError, match=f"factor {name} is 1 in all rows: it says nothing of the time"):
        RunTable.of(NODES | {name: [1, 1, 1, 1]}, "step_s", ["gpus", name])


def test_a_recognised_column_that_never_varies_is_left_out_and_other_values_are_refused(tmp_path):
    table = RunTable.of(NODES, "step_s")
    assert table.names == ("gpus", "batch") and table.fixed == {"nodes": 1.0}
    assert "left out because they never vary: nodes is 1; runs with other values cannot be predicted" in table.warnings
    fitted = fit_runs(table, FitSettings(budget_s=0.2, resamples=2))
    write_fit(fitted, tmp_path / "fit.json")
    for one in (fitted, read_fit(tmp_path / "fit.json")):
        point = {"gpus": 16, "batch": 16}
        assert one.predict([point | {"nodes": 1}]).times_s == one.predict([point]).times_s
        with pytest.raises(UsageError, match="nodes of the point is 4, and 1 in all runs: nothing is known of other"):
            one.predict([point | {"nodes": 4}])


def test_a_time_that_never_varies_is_refused():
    with pytest.raises(DataError, match="time step_s is 2 s in all rows: no factor changes it, nothing can be fitted"):
        RunTable.of(NODES | {"step_s": [2, 2, 2, 2]}, "step_s")


@pytest.mark.parametrize("missing", ["", " ", None, float("nan")])
def test_a_group_without_a_value_is_refused(missing):
    with pytest.raises(DataError, match="group model, row 2 has no value: leave out rows without a value"):
        RunTable.of(NODES | {"model": ["a", missing, "a", "b"]}, "step_s", None, ["model"])


@pytest.mark.parametrize("names", [("meta/llama, 7B", "meta"), ('say "hi"', "a/b")])
def test_names_of_groups_are_kept_as_they_are(names):
    model = [names[0], names[1]] * 4
    columns = {"gpus": [1, 1, 2, 2, 4, 4, 8, 8], "model": model, "step_s": [8, 16, 4, 8, 2, 4, 1, 2]}
    fitted = fit_runs(RunTable.of(columns, "step_s", ["gpus"], ["model"]), FitSettings(budget_s=0.2, resamples=2))
    assert fitted.expression.groups == tuple(sorted(names))
    assert fitted.listed([{"gpus": 2, "model": names[0]}]) == [{"gpus": 2, "model": names[0]}]


def test_groups_of_several_columns_are_not_mixed_up():
    for values in (("a/b", "c"), ("a", "b/c"), ("a,b", 'c"'), ("bert", "8")):
        label = label_of(values)
        assert values_of(label, ("model", "gpu")) == dict(zip(("model", "gpu"), values, strict=True))
    assert label_of(("a/b", "c")) != label_of(("a", "b/c"))
    assert label_of(("bert", 8.0)) == label_of(("bert", 8)) == label_of(("bert", "8")) == "bert/8"


def test_fewer_runs_than_constants_are_refused():
    table = RunTable.of({"gpus": [1, 2], "step_s": [1.0, 2.0]}, "step_s")
    with pytest.raises(UsageError, match="2 runs in 1 group are fewer than the constants"):
        fit_runs(table)


def test_units_and_factors_come_from_the_names():
    table = RunTable.of(changed(note=["a", "b", "c", "d"]), "step_ms")
    assert table.times_s.tolist() == [0.004, 0.003, 0.002, 0.001] and table.time_name == "step_s"
    assert table.names == ("gpus", "batch") and "note" in table.warnings[0]


def test_runs_that_contradict_each_other_are_said():
    table = RunTable.of({"gpus": [1, 1, 2, 2], "step_s": [1.0, 5.0, 1.0, 1.1]}, "step_s")
    assert (
        "1 configurations have runs that contradict each other" in table.warnings[0] and "gpus=1" in table.warnings[0]
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no rows"),
        ("gpus,step_s\n", "has no rows"),
        ("gpus,step_s\n1,1\n", "has one row"),
        ("gpus,gpus,step_s\n1,1,1\n2,2,2\n", "has 'gpus' twice"),
        ("gpus,step_s\n1,1\n2\n", "line 3: 1 cells, expected 2"),
        ("gpus,batch\n1,1\n2,2\n", "no column is named like times"),
        ("gpus,batch,tokens_per_s\n1,1,2\n2,2,4\n", "no column is named like times"),
        ("gpus,batch,step_s\n1,8,1\n\n2,,2\n4,8,1\n", "column batch, line 4 has no value: leave out rows"),
        ("gpus,batch,step_s\n1,8,1\n2,inf,2\n4,8,1\n", "column batch, line 3: 'inf': leave out rows without a value"),
        ("width_x,step_s\n1,1\nnan,2\n4,1\n", "column width_x, line 3: 'nan'"),
        ("gpus,step_s\n1,1\n1_6,2\n4,1\n", "column gpus, line 3: '1_6' is no number"),
        ("gpus,step_s\n1,1\n1e300,2\n4,1\n", "column gpus, line 3: '1e300' is out of range"),
        (
            "gpus,step_s\n1,1\n2,1e-320\n4,1\n",
            "column step_s, line 3: '1e-320' is out of range: expected 1e-30",
        ),
        ("gpus;batch;step_s\n1;1;1\n2;2;1\n", "has ';' between its cells: write it with commas"),
        ("gpus\tstep_s\n1\t1\n2\t1\n", "has '\\t' between its cells"),
        ("gpus,step_s,sync_s\n1,1,1\n2,2,1\n", "step_s, sync_s are named like times: say which"),
    ],
)
def test_a_file_that_cannot_be_is_refused(tmp_path, text, told):
    (tmp_path / "runs.csv").write_text(text)
    with pytest.raises(CdmppError) as caught:
        RunTable.read_csv(tmp_path / "runs.csv")
    assert told in str(caught.value) and "runs.csv" in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot read"):
        RunTable.read_csv(tmp_path / "none.csv")
