"""Whole transformers on GPUs, predicted as PyTorch runs them, beside the labels of NeuSight and its own predictions.

python -m benchmarks.library_networks DATA MODEL [MODEL ...] [-- DEVICE ...]: DATA is a folder with
``model_labels.parquet`` and ``configs/``, or ``scripts/asplos`` of a clone of NeuSight, which has an H100, an L4 and
OPT, too; MODEL a model of library operators; only the named devices, or all. Networks are traced with one and with two
layers, of which the second is one more each: no weights are made. A training label stands beside the sum of its own
operators, where these were
timed one by one (``model_ops.parquet``).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
import transformers

import cdmpp
from benchmarks.library_network_labels import TABLE, configs, labels
from cdmpp import devices
from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.eager.read import read_run
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.predict import predict_read
from cdmpp.network.prediction import NetworkPrediction
from cdmpp.network.workload import Workload

_HEADS = {
    ("bert", "inf"): transformers.BertForSequenceClassification,
    ("bert", "train"): transformers.BertForPreTraining,
    ("gpt2", "inf"): transformers.GPT2LMHeadModel,
    ("gpt2", "train"): transformers.GPT2LMHeadModel,
    ("opt", "inf"): transformers.OPTForCausalLM,
    ("opt", "train"): transformers.OPTForCausalLM,
}
"""As the labels were taken. Mixtures of experts are not here: which expert runs depends on the input."""
_USUAL = 0.7
"""A forward pass takes half of its backward pass; one that takes longer holds something else."""
_KEY = ("device", "model", "mode", "seq", "batch")


@cache
def traced(config: Path, mode: str, seq: int, batch: int, layers: int) -> EagerNetwork:
    """Calls of the network with so many layers."""
    values = dict(transformers.AutoConfig.from_pretrained(config).to_dict())
    kind = values.pop("model_type")
    values |= {"n_layer" if kind == "gpt2" else "num_hidden_layers": layers, "use_cache": False}
    made = type(transformers.AutoConfig.from_pretrained(config))(**values)
    made._attn_implementation = "eager"
    with torch.device("meta"):
        network = _HEADS[kind, mode](made).eval()
        tokens = torch.ones(batch, seq, dtype=torch.int64)
        mask = torch.ones(batch, seq, dtype=torch.int64)
    return read_run(
        Workload(
            network,
            {"input_ids": tokens, "attention_mask": mask},
            mode="forward_backward" if mode == "train" else "inference",
        )
    )


def predicted_s(row: Mapping[str, Any], folder: Path, model: str) -> np.ndarray:
    """(2,) of one row of the labels: the whole, and its backward pass."""
    config = folder / f"{row['model']}.json"
    predictor, sheet = _loaded(model), devices.get(row["device"])
    one, two = (
        _parts(predict_read(traced(config, row["mode"], row["seq"], row["batch"], n), sheet, EagerRuntime(predictor)))
        for n in (1, 2)
    )
    return one + (int(row["num_layer"]) - 1) * (two - one)


def _parts(found: NetworkPrediction) -> np.ndarray:
    ends = [span.end_s for name, span in found.timeline.spans.items() if " backward#" not in name]
    return np.array([found.latency_s, found.latency_s - max(ends)])


@cache
def _loaded(model: str) -> Any:
    return cdmpp.load_model(model)


@cache
def operator_sums(data: Path) -> dict[tuple[Any, ...], np.ndarray]:
    """``_KEY`` -> (2,) seconds of a network's operators, each timed alone: forward, and backward with its sums."""
    columns = [*_KEY, "option", "repeat", "label_fw_s", "label_bw_s", "label_acc_s"]
    sums: dict[tuple[Any, ...], np.ndarray] = defaultdict(lambda: np.zeros(2))
    for row in pq.read_table(data / "model_ops.parquet", columns=columns).to_pylist():
        if row["option"] == "":
            told = [row[name] if row[name] is not None else np.nan for name in columns[-3:]]
            sums[tuple(row[name] for name in _KEY)] += row["repeat"] * np.array([told[0], told[1] + told[2]])
    return dict(sums)


def main() -> None:
    """Print a line a label, and the mean error of each device and mode."""
    data, *names = sys.argv[1:]
    names, wanted = (names[: names.index("--")], names[names.index("--") + 1 :]) if "--" in names else (names, [])
    rows = [row for row in labels(Path(data)) if not wanted or row["device"] in wanted]
    errors: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for row in rows:
        found = [predicted_s(row, configs(Path(data)), name) for name in names]
        off = [100 * (whole / row["label_e2e_s"] - 1) for whole, _ in found]
        key = (row["device"], row["mode"])
        errors[key].append([*map(abs, off), row["neusight_ape"]])
        told = "  ".join(f"{1e3 * whole:9.1f} ms ({by:+.1f} %)" for (whole, _), by in zip(found, off, strict=True))
        if row["mode"] == "train":  # forward passes hold what the allocator takes, see docs/framework-operators.md
            measured_s, others_s = row["label_bw_s"], row["neusight_bw_s"]
            back = [100 * (backward_s / measured_s - 1) for _, backward_s in found]
            others = 100 * abs(others_s / measured_s - 1)
            errors[row["device"], "backward pass"].append([*map(abs, back), others])
            forward = row["label_fw_s"] / measured_s
            if forward < _USUAL:
                errors[row["device"], f"train, forward under {_USUAL} of backward"].append(errors[key][-1])
            told += f"  backward {', '.join(f'{by:+.1f} %' for by in back)} (measured: forward over it {forward:.2f}"
            if (Path(data) / TABLE).is_file():
                over = (
                    np.array([row["label_fw_s"], measured_s]) / operator_sums(Path(data))[tuple(row[k] for k in _KEY)]
                )
                told += f", over the sum of its own operators forward {over[0]:.2f}, backward {over[1]:.2f}"
            told += ")"
        what = f"{row['device']:15} {row['model']:11} {row['mode']:5} {row['seq']:5} {row['batch']:3}"
        print(
            f"{what} measured {1e3 * row['label_e2e_s']:9.1f} ms  {told}  NeuSight {row['neusight_ape']:.1f} %",
            flush=True,
        )
    for (device, mode), all_of in errors.items():
        means = np.mean(all_of, axis=0)
        told = ", ".join(f"{name} {mean:.1f}" for name, mean in zip([*names, "NeuSight"], means, strict=True))
        print(f"{device} {mode}: MAPE % of {len(all_of)}: {told}")


if __name__ == "__main__":
    main()
