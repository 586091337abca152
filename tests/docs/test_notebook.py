"""The example notebook runs from its first cell to its last, and is stored without outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "predict.ipynb"
SECONDS = 500
"""For the whole notebook on a busy machine; alone it takes well under a minute."""

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")


def test_stored_without_outputs():
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert cells
    assert not [cell for cell in cells if cell.outputs or cell.execution_count]


@pytest.mark.tvm
def test_notebook_runs():
    pytest.importorskip("tvm")
    pytest.importorskip("matplotlib")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(EXAMPLES)}})
    client.execute()
    printed = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output
    )
    assert "80% interval" in printed
    assert "trained on it: False" in printed
    kinds = {kind for cell in notebook.cells for out in cell.get("outputs", []) for kind in out.get("data", {})}
    assert "image/png" in kinds  # the plot
