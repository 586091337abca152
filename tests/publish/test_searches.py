"""What is made of searches: curves from cells, tables from curves, files that keep rows of earlier sessions."""

import json
import math

import pytest

from benchmarks.publish import searches
from benchmarks.publish.searches import Point, page, points_of, read_points, trials_to, write_points
from benchmarks.search_tasks import COMPARED, named_tasks
from cdmpp.errors import CdmppError


def cell(model, seconds, task="matmul", seed=0):
    trials = [[one, 10.0 * (1 + number // 2)] for number, one in enumerate(seconds)]
    return {"device": "d", "name": task, "seed": seed, "model": model, "trials": trials}


def test_a_point_after_each_batch_holds_the_best_so_far():
    found = points_of(cell("xgb", [3e-3, None, 5e-3, 2e-3, 4e-3]))
    assert [(p.trials, p.wall_s, p.best_s) for p in found] == [(2, 10, 3e-3), (4, 20, 2e-3), (5, 30, 2e-3)]
    assert points_of(cell("xgb", [None, None])) == []
    assert trials_to(found, 2.5e-3) == 4
    assert trials_to(found, 1e-3) is None


def test_a_device_without_records_is_searched_on_the_same_tasks():
    tasks = named_tasks("epyc-milan", "compared")
    assert {name: task.task_id for name, task in tasks.items()} == COMPARED
    assert tasks == named_tasks("xeon-emeraldrapids", "compared")
    for device, names, said in (("epyc-mialn", "compared", "epyc-mialn"), ("epyc-milan", "matmull", "no task matmull")):
        with pytest.raises(CdmppError, match=said):
            named_tasks(device, names)


@pytest.fixture
def cells(tmp_path):
    folder = tmp_path / "out" / "cells"
    folder.mkdir(parents=True)
    for one in (cell("xgb", [4e-3, 2e-3]), cell("two-stage", [2e-3, 1e-3]), cell("offline", [3e-3])):
        (folder / f"{one['model']}.json").write_text(json.dumps(one))
    (tmp_path / "docs" / "results").mkdir(parents=True)
    marks = "".join(f"<!-- {name} -->\n<!-- /{name} -->\n" for name in ("searches", "networks"))
    (tmp_path / "docs" / "results" / "searches.md").write_text(marks)
    return tmp_path


def test_the_page_compares_with_the_trees_of_metaschedule(cells):
    pytest.importorskip("matplotlib")
    (cells / "out" / "networks").mkdir()
    row = {"network": "n", "device": "d", "model": "xgb", "seed": 0, "minutes": 5.0, "turn": 64, "trials": 7}
    row |= {"spent_s": 1.0, "measured_s": 0.25, "kernels_s": 0.125}
    (cells / "out" / "networks" / "n.json").write_text(json.dumps(row))
    for _ in range(2):  # again: the rows are there already
        searches.main(str(cells / "out"), str(cells / "docs"))
    text = (cells / "docs" / "results" / "searches.md").read_text()
    assert "| two-stage | 1 | 128 | 0.500 |" in text and "| offline | 1 | 1 | 1.500 |" in text
    assert "| matmul | 3000 | **1000** | 2000 |" in text
    assert "| `d` | n | xgb | 0 | 5.0 | 64 | 7 | 250.00 | 125.00 |" in text
    assert {path.name for path in (cells / "docs" / "images").iterdir()} == {
        "search-d-trials.png",
        "search-d-wall.png",
    }
    assert len((cells / "docs" / "searches.csv").read_text().splitlines()) == 4
    assert len((cells / "docs" / "searched-networks.csv").read_text().splitlines()) == 2


def test_rows_come_back_as_they_were(tmp_path):
    point = Point("d", "matmul", 1, "xgb", 16, 12.5, 1.25e-3)
    write_points(tmp_path / "searches.csv", {("d", "matmul", 1, "xgb"): [point]})
    assert read_points(tmp_path / "searches.csv") == {("d", "matmul", 1, "xgb"): [point]}
    assert read_points(tmp_path / "none.csv") == {}


def test_a_search_that_never_gets_there_counts_with_twice_its_trials():
    slow, fast = points_of(cell("two-stage", [9e-3, 9e-3])), points_of(cell("xgb", [4e-3, 2e-3]))
    text = page({("d", "matmul", 0, "two-stage"): slow, ("d", "matmul", 0, "xgb"): fast})
    assert "| 256 | 0 of 1 |" in text
    assert math.isclose(slow[-1].best_s / fast[-1].best_s, 4.5)


def test_models_that_ran_fewer_searches_are_compared_on_those():
    def curve(model, best_s, task):
        return ("d", task, 0, model), points_of(cell(model, [best_s], task))

    found = [curve("xgb", 2e-3, task) for task in ("matmul", "softmax")]
    found += [curve("two-stage", 1e-3, "matmul"), curve("two-stage", 4e-3, "softmax"), curve("online", 3e-3, "softmax")]
    text = page(dict(found))
    assert "| two-stage | 2 | 128 | 1.000 |" in text
    both = text.partition("The same of the 1 searches that all models ran:")[2]
    assert "| two-stage | 1 | 128 | 2.000 |" in both and "| online | 1 | 128 | 1.500 |" in both
    assert "that all models ran" not in page(dict(found[:4]))
