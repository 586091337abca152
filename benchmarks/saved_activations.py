"""Saved activations operator by operator, predicted and kept by autograd: ``python -m benchmarks.saved_activations``.

Each operator is a network of its own, tried in three types on this CPU. Writes ``docs/results/saved-activations.md``.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from benchmarks.publish.markdown import table, write_page
from cdmpp.errors import CdmppError
from tests.network.dispatched import predicted_step, real_step
from tests.network.eager.saved_cases import CASES, Around, Case, pointwise

PAGE = Path(__file__).parents[1] / "docs" / "results" / "saved-activations.md"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HEAD = """# Saved activations

Bytes of results that autograd keeps for the backward pass, as `cdmpp step --runtime torch` answers them for a CPU, and
as `torch.autograd.graph.saved_tensors_hooks` counts them there, storages once, parameters and inputs left out. Each row
is one operator behind a layer that is trained, on a tensor of 2 x 4 x 8 x 8. A batch norm of halves with weights of
float32 differs: without values torch makes its statistics in another type (`findings/torch_fake_batch_norm_types.sh`).
Written by `python -m benchmarks.saved_activations`."""


def bytes_of(case: Case, dtype: torch.dtype) -> tuple[int, int] | None:
    """Bytes that are predicted, and those that are kept; None where torch does not train it in that type."""
    model, x = Around([case], dtype).train(), (torch.randn(2, 4, 8, 8),)
    try:
        kept = real_step(model, x).saved_bytes
    except (RuntimeError, NotImplementedError):
        return None
    return predicted_step(model, x).saved_bytes, kept


def main() -> None:
    warnings.simplefilter("ignore")
    groups = {"Operators by name": dict(CASES), "Elementwise operators": dict(pointwise())}
    lines, counted, wrong = HEAD.splitlines(), 0, 0
    body = []
    for title, cases in groups.items():
        rows = []
        for name, case in cases.items():
            cells = []
            for dtype in DTYPES:
                try:
                    both = bytes_of(case, dtype)
                except CdmppError as error:
                    print(name, error)
                    cells += ["refused", ""]
                    continue
                if both is None:
                    cells += ["-", ""]
                    continue
                predicted, kept = both
                cells += [f"{kept:,}", "same" if predicted == kept else f"{predicted:,}"]
                counted, wrong = counted + 1, wrong + (predicted != kept)
            if any(cell not in ("-", "") for cell in cells):
                rows.append((name, *cells))
        heads = [head for dtype in DTYPES for head in (f"{str(dtype)[6:]}: kept", "predicted")]
        body += ["", f"## {title}", "", *table(["operator", *heads], rows)]
    summary = f"{counted - wrong} of {counted} are the same to the byte (torch {torch.__version__})."
    write_page(PAGE, [*lines, "", summary, *body])
    print(summary)


if __name__ == "__main__":
    main()
