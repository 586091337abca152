"""Two evaluations on the test programs that both have: what more training programs, or another model, brought.

python -m benchmarks.common_tests OUT/cells/NAME[:MODEL] OUT/cells/NAME[:MODEL]: folders of cells of
``cdmpp model evaluate``, and a model in them, ``cdmpp`` where none is named.
The mean of both answers, of their logarithms, is judged as well.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from cdmpp.errors import DataError


def errors(first: Path, second: Path) -> np.ndarray:
    """(n, 3) absolute errors in percent of ``n`` programs that both files have: of each, and of their mean."""
    found: list[dict[str, tuple[float, float]]] = []
    for path in (first, second):
        with np.load(path, allow_pickle=False) as cell:
            names, *columns = (cell[name].tolist() for name in ("record_ids", "true_s", "predicted_s"))
        found.append({name: pair for name, *pair in zip(names, *columns, strict=True)})
    both = [name for name in found[0] if name in found[1]]
    if not both:
        raise DataError(f"{first} and {second} have no test program in common")
    true_s = np.array([found[0][name][0] for name in both])
    one_s, other_s = (np.array([column[name][1] for name in both]) for column in found)
    return 100 * np.abs(np.stack([one_s, other_s, np.sqrt(one_s * other_s)], axis=1) / true_s[:, None] - 1)


def main(first: str, second: str) -> None:
    """Print the mean errors of each split, over the seeds that both folders have."""
    (one, model), (other, other_model) = (_named(text) for text in (first, second))
    found = defaultdict(list)
    for path in sorted(one.glob(f"*/*/{model}.npz")):
        split, seed = path.parts[-3:-1]
        if (beside := other / split / seed / f"{other_model}.npz").is_file():
            found[split].append(errors(path, beside))
    if not found:
        raise DataError(f"{first} and {second} have no cell in common")
    for split, cells in found.items():
        means = np.mean([cell.mean(0) for cell in cells], axis=0)
        counts = ", ".join(str(len(cell)) for cell in cells)
        print(f"{split}: MAPE {means[0]:.1f} and {means[1]:.1f} %, their mean {means[2]:.1f} %, of {counts} programs")


def _named(text: str) -> tuple[Path, str]:
    folder, _, model = text.partition(":")
    return Path(folder), model or "cdmpp"


if __name__ == "__main__":
    main(*sys.argv[1:])
