"""cdmpp: predict how long a tensor program runs on a device before anyone runs it there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdmpp.version import __version__ as __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cdmpp.devices import Device
    from cdmpp.network.comparison import Comparison
    from cdmpp.network.prediction import NetworkPrediction
    from cdmpp.network.training_prediction import StepPrediction
    from cdmpp.network.training_step import TrainingStep
    from cdmpp.plans.search_result import SearchResult
    from cdmpp.predict.predictor import Predictor
    from cdmpp.steps.step_replay import StepReplay
    from cdmpp.tuning.offline import TunedNetwork
    from cdmpp.tuning.rank import Ranking


def load(path_or_name: str | Path) -> Predictor:
    """A trained model: a folder made by training, or a shipped one by name. Needs no TVM."""
    from cdmpp.predict.model_folder import load as load_predictor

    return load_predictor(path_or_name)


def predict_network(
    given: Any, example_inputs: Any = None, *, device: str | Device, runtime: str = "tvm", **options: Any
) -> NetworkPrediction:
    """Time of one run of a whole network on ``device``; ``options`` are those of ``network.predict``. Needs TVM.

    ``runtime="torch"``: as PyTorch's own kernels run it, without TVM; options of ``network.library_predict``.
    """
    from cdmpp.network.runtime import predictor_of

    return predictor_of(runtime)(given, example_inputs, device=device, **options)


def training_step(given: Any, example_inputs: Any = None, **options: Any) -> TrainingStep:
    """Forward, backward, update as tensor programs; ``options`` are those of ``network.training_read``. Needs TVM."""
    from cdmpp.network.compiled.training_read import training_step as make_step

    return make_step(given, example_inputs, **options)


def predict_step(
    given: Any, example_inputs: Any = None, *, device: str | Device, runtime: str = "tvm", **options: Any
) -> StepPrediction:
    """Time of a training step; ``options`` are those of ``network.training_prediction``. Needs TVM.

    ``runtime="torch"``: as PyTorch's own kernels run it, without TVM; options of ``network.library_step``.
    """
    from cdmpp.network.runtime import step_predictor_of

    return step_predictor_of(runtime)(given, example_inputs, device=device, **options)


def replay_step(given: Any, example_inputs: Any = None, *, ranks: int | None = None, **options: Any) -> StepReplay:
    """A training step on several devices; ``options`` are those of ``plans.distributed_step.replay_step``.

    Needs TVM unless ``given`` is what ``predict_step`` returned.
    """
    from cdmpp.plans.distributed_step import replay_step as replay

    return replay(given, example_inputs, ranks=ranks, **options)


def optimize_step(given: Any, example_inputs: Any = None, *, ranks: int | None = None, **options: Any) -> SearchResult:
    """Settings under which a training step on several devices is shorter, or fits into memory.

    ``options`` are those of ``plans.distributed_step.optimize_step``.

    Needs TVM unless ``given`` is what ``predict_step`` returned.
    """
    from cdmpp.plans.distributed_step import optimize_step as optimize

    return optimize(given, example_inputs, ranks=ranks, **options)


def compare(given: Any, example_inputs: Any = None, *, devices: Sequence[str | Device], **options: Any) -> Comparison:
    """One network on several devices; ``options`` are those of ``predict_network``, all but its device."""
    from cdmpp.network.comparison import compare as compare_devices

    return compare_devices(given, example_inputs, devices=devices, **options)


def cost_model(device: str | Device, model: str | Path | None = None, **options: Any) -> Any:
    """A cost model for TVM's MetaSchedule, and its ``builder``; ``options`` are those of ``tuning.plug``. Needs TVM."""
    from cdmpp.tuning.plug import cost_model as make_cost_model

    return make_cost_model(device, model, **options)


def rank(task: Any, candidates: Sequence[Any], device: str | Device, **options: Any) -> Ranking:
    """Schedules of one workload, fastest first by prediction; ``options`` are those of ``tuning.rank``. Needs TVM."""
    from cdmpp.tuning.rank import rank as rank_candidates

    return rank_candidates(task, candidates, device, **options)


def tune(
    given: Any, example_inputs: Any = None, *, device: str | Device, folder: str | Path, **options: Any
) -> TunedNetwork:
    """A MetaSchedule database of a network's programs; ``options`` are those of ``tuning.offline.tune``. Needs TVM."""
    from cdmpp.tuning.offline import tune as tune_network

    return tune_network(given, example_inputs, device=device, folder=folder, **options)
