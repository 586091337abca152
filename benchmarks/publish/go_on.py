"""A shipped model of framework operators learns on: its roofline is fitted anew, then its perceptron goes on.

``python -m benchmarks.publish.go_on model=torch-gpus data=datasets,outputs/operators out=outputs/go_on epochs=3``:
on the split that its card names, with the records of its devices below ``data``. What the perceptron reads stays scaled
as it was; errors on devices left out stay those of the model that went before. The best epoch is chosen on the
validation part; the test part is predicted once, at the end.
"""

from __future__ import annotations

import datetime
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.publish.command_line import run
from benchmarks.publish.ship import LIBRARY_LIMITS
from cdmpp.data.sources import load_devices
from cdmpp.data.splits import make_split
from cdmpp.errors import DataError
from cdmpp.model.eager import EagerModel
from cdmpp.platform.files import plain, write_json
from cdmpp.predict.catalogue import SHIPPED
from cdmpp.predict.model_folder import load
from cdmpp.predict.rows import predict_rows_with_intervals
from cdmpp.recipes.train import train
from cdmpp.training.config import Run, TrainConfig
from cdmpp.training.inputs import FitInputs
from cdmpp.training.metrics import score
from cdmpp.uncertainty.coverage import coverage

_KEPT = ("left_out", "noise_floor_percent")
_BEFORE = "left_out_of"


def main(model: str, data: str, out: str, epochs: int, lr: float, doubling: float) -> None:
    """The shipped ``model`` is the one that went on afterwards, and its card says how it came to be."""
    folder: Path = SHIPPED / model
    before = load(folder)
    if not all(isinstance(one, EagerModel) for one in before.models):
        raise DataError(f"{model} is no model of framework operators: it has no roofline to fit anew")
    roots, told = tuple(Path(root) for root in data.split(",")), before.card["split"]
    dataset = load_devices(sorted(before.trained_on), roots, features=before.features)
    split = make_split(dataset, str(told["name"]), int(told["seed"]))
    config = TrainConfig.from_dict(before.card["training"])
    trainer = replace(config.trainer, epochs=epochs, lr=lr, length_groups=1)
    config = replace(config, trainer=trainer, loss=replace(config.loss, doubling_weight=doubling))
    inputs = FitInputs.build(dataset, split, config.loss, "cpu")
    for one in before.models:
        assert isinstance(one, EagerModel)
        one.fit_prior(inputs.programs, inputs.train)
    predictor = train(dataset, split, config, Run(Path(out), progress=False), before).predictor
    predicted, intervals = predict_rows_with_intervals(predictor, dataset, split.test)
    tasks = np.asarray(dataset.task_ids)[split.test]
    predictor.card |= {key: before.card[key] for key in _KEPT if key in before.card}
    predictor.card |= {
        "limits": list(LIBRARY_LIMITS),
        _BEFORE: before.card.get(_BEFORE, before.card["created"]),
        "data": before.card["data"],
        "test": plain(
            {
                **{key: before.card["test"][key] for key in ("dataset", "split", "seed")},
                **score(dataset, split.test, predicted),
                "intervals": coverage(dataset.latency_s[split.test], intervals, tasks),
                "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
                "command": shlex.join(["python", "-m", "benchmarks.publish.go_on", *sys.argv[1:]]),
            }
        ),
    }
    arrays = {f"{end}_{level}": bounds for level, ends in intervals.items()
              for end, bounds in zip(("lower", "upper"), ends, strict=True)}  # fmt: skip
    ids = np.asarray(dataset.record_ids)[split.test].astype(str)
    true_s = dataset.latency_s[split.test]
    np.savez_compressed(Path(out) / "test.npz", allow_pickle=False, record_ids=ids, true_s=true_s,
                        predicted_s=predicted, **arrays)  # fmt: skip
    write_json(Path(out) / "test.json", predictor.card["test"])
    predictor.save(folder, half=True)
    print(f"{model}: {predictor.card['test']['metrics']['mape']:.2f} % MAPE on {len(predicted)} test programs")


if __name__ == "__main__":
    run(main, model="torch-gpus", data="datasets,outputs/operators", out="???", epochs=3, lr=5e-4, doubling=3.0)
