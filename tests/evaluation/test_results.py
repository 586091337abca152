"""The two tables of figures: read back to seven digits, replaced by data set, told apart by run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import DataError
from cdmpp.evaluation.cell import Cell, CellOptions
from cdmpp.evaluation.results import RESULTS, RUNS, Result, Run, collect, read_results, results_of, update_results
from cdmpp.evaluation.run import run_cell

RUN = Run('cdmpp model evaluate "models=[a,b]"', "2026-11-23", "0123456789", 100, 7)
FIGURE = Result("a100", "a100", "by_task", 0, "cdmpp", "mape", 0.1 + 0.2, RUN)


def test_tables_give_back_what_was_written(tmp_path):
    figures = [FIGURE, replace(FIGURE, seed=10, value=1e-17), replace(FIGURE, seed=2, run=replace(RUN, n_tasks=8))]
    written = update_results(tmp_path, figures)
    assert set(written) == {figures[1], *(replace(figures[i], value=0.3) for i in (0, 2))}
    assert read_results(tmp_path) == written
    assert [figure.seed for figure in written] == [0, 2, 10]
    assert len((tmp_path / RUNS).read_text().splitlines()) == 3
    assert read_results(tmp_path / "nowhere") == []


def test_figures_take_seven_digits_and_a_model_one_row(tmp_path):
    figures = [replace(FIGURE, value=26.01672706160113), replace(FIGURE, metric="bias", value=-12345678.9)]
    assert {r.metric: r.value for r in update_results(tmp_path, figures)} == {"mape": 26.01673, "bias": -12345680.0}
    header, row = (tmp_path / RESULTS).read_text().splitlines()
    assert header == "device,dataset,split,seed,model,run,bias,mape"
    assert row == f"a100,a100,by_task,0,cdmpp,{RUN.name},-1.234568e+07,26.01673"


def test_figures_of_cells(data, tmp_path):
    run_cell(data, "x", Cell("random", 0, "constant"), CellOptions(tmp_path, command="here"))
    (cell,) = collect(tmp_path)
    figures = results_of([cell])
    assert {figure.metric: figure.value for figure in figures} == cell["metrics"]
    assert {figure.run.command for figure in figures} == {"here"} and figures[0].run.n_programs == cell["n_programs"]


def test_other_data_sets_stay_and_older_figures_of_the_same_go(tmp_path):
    update_results(tmp_path, [FIGURE, replace(FIGURE, dataset="other", run=replace(RUN, command="kept"))])
    newer = replace(FIGURE, model="constant", run=replace(RUN, command="newer"))
    update_results(tmp_path, [newer])
    assert [(figure.dataset, figure.model) for figure in read_results(tmp_path)] == [
        ("a100", "constant"),
        ("other", "cdmpp"),
    ]
    assert {figure.run.command for figure in read_results(tmp_path)} == {"kept", "newer"}
    assert len((tmp_path / RUNS).read_text().splitlines()) == 3, "runs without a figure go"


@pytest.mark.parametrize(
    ("name", "old", "new"), [(RESULTS, RUN.name, "x"), (RUNS, "100,7", "100"), (RESULTS, "0.3", "z")]
)
def test_damage_is_named(tmp_path, name, old, new):
    update_results(tmp_path, [FIGURE])
    path = tmp_path / name
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match="damaged or do not belong together"):
        read_results(tmp_path)
