"""Predictor: a trained model that turns tensor programs into latencies. Needs neither TVM nor Hydra nor Lightning."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save as serialised

from cdmpp import devices
from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.layout import EAGER_FEATURES, FEATURES
from cdmpp.ast.table import TARGET_KINDS, AstTable
from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.devices import Device
from cdmpp.errors import CdmppError
from cdmpp.machine_code.cpu.code_features import CODE_VERSION
from cdmpp.machine_code.cpu.compile import LIMIT_S, can_have_code, can_have_gpu_code
from cdmpp.machine_code.gpu.gpu_code_features import GPU_CODE_VERSION
from cdmpp.model.build import Model
from cdmpp.model.compiled import Answers, CompiledModel, compiled
from cdmpp.model.eager import EagerModel
from cdmpp.model.pooled import with_devices
from cdmpp.model.ranker import Ranker
from cdmpp.model.regressor import CdmppModel
from cdmpp.operators.operator_vector import operator_groups, vector_table
from cdmpp.platform.files import write_atomic, write_json
from cdmpp.platform.limits import fitting
from cdmpp.platform.torch_state import usual_torch
from cdmpp.predict.flags import (
    COUNT_UNKNOWN,
    FLAGS,
    IN_CACHE,
    MEASURED_ELSEWHERE,
    NO_MACHINE_CODE,
    NOT_MEASURED,
    UNLIKE_TRAINING,
    UNSCHEDULED,
    flag_programs,
)
from cdmpp.predict.prediction import Prediction
from cdmpp.predict.program_batch import ProgramBatch, ReadOptions
from cdmpp.predict.read import read_batch
from cdmpp.predict.stored_config import CARD, CONFIG, CONFIG_SHA256, FORMAT, SHA256, SHEET, WEIGHTS, sum_of
from cdmpp.predict.stored_tensors import calibrations, stored_weights
from cdmpp.uncertainty.calibration import Calibration, Examined, choose
from cdmpp.uncertainty.novelty import ProgramSketch
from cdmpp.uncertainty.unseen import Unseen
from cdmpp.version import __version__

if TYPE_CHECKING:
    from cdmpp.operators.operator import EagerOperator
    from cdmpp.programs.task import Program

_EAGER_TOKENS = 4096
"""Padded tokens of a batch of framework operators: what is made of them fits into caches."""
_TYPICAL_ERROR = 0.4
"""Error of the log-latency that a CPU model predicts without reading machine code."""


class Predictor:
    """A predictor has one model or several of the same kind (members), with the devices they were trained on.

    ``card`` is a dictionary for readers: data, split, validation figures. Nothing in it is needed to predict.
    """

    def __init__(
        self,
        models: Sequence[Model],
        trained_on: Mapping[str, Device],
        card: Mapping[str, Any] | None = None,
        features: str = "cdmpp",
        calibration: Calibration | None = None,
        log_shift: float = 0.0,
        calibrated: Iterable[str] = (),
        unseen: Unseen | None = None,
        ranker: Ranker | None = None,
        power_states: Mapping[str, float] | None = None,
    ):
        self.models = [model.eval().requires_grad_(False) for model in models]
        self.trained_on, self.features = dict(trained_on), features
        self.card: dict[str, Any] = dict(card or {})
        self.calibration = calibration
        """Fits these very weights."""
        self.calibrated = frozenset(calibrated)
        """Devices among them that the model was scaled to by only a few kernels."""
        self.unseen = unseen
        """Errors to expect on devices that it was not trained on; None if unknown."""
        self.ranker = ranker
        """Chooses which programs of a task to compile; None: their predictions without code vectors must do."""
        self.power_states = dict(power_states or {})
        """Device -> share of the time of its trained products that they take in the fastest run known of it.

        Boards of little power run products at other clocks in other runs; those that were trained are of one run.
        """
        self.log_shift = log_shift
        """Added to every log-latency: ``training.metrics.mape_factor`` of the validation part."""

    def to(self, torch_device: str) -> Predictor:
        """Move the weights of this predictor."""
        for module in (*self.models, *([self.ranker] if self.ranker else [])):
            module.to(torch_device)
        return self

    def predict(
        self,
        programs: Program
        | Sequence[Program]
        | AstTable
        | CompactAST
        | Sequence[CompactAST]
        | EagerOperator
        | Sequence[EagerOperator]
        | str
        | Path,
        device: str | Device | None = None,
        compiled: bool | None = None,
        limit_s: float = LIMIT_S,
        retarget: bool = False,
    ) -> Prediction:
        """Predict the latency of each program.

        Args:
            programs: programs (needs TVM), stored ASTs, framework operators, a TVMScript file, a data set
                or a MetaSchedule database.
            device: name or Device; may be left out where the model was trained on one device only.
            compiled: False: see no machine code, not even stored one: reading it takes 0.1 to 3 s a program; None:
                where the model learned it.
            limit_s: longest time for compiling one program; past it only the AST is read, and a flag says so.
            retarget: make programs that were scheduled for another GPU architecture, or another CPU, for the device's
                own target; otherwise those of another architecture are refused.

        Raises:
            CdmppError: no or unknown device, programs lowered for another kind of device, or nothing to predict.
        """
        target = self._device(device)
        fitting("compiled", compiled, bool | None)
        if isinstance(programs, str):
            fitting("programs", programs, str)
        can_compile = self._wants_code_of(target) and (can_have_code(target.target) or can_have_gpu_code(target.target))
        wished = compiled is not False and can_compile
        inputs = read_batch(programs, ReadOptions(target, self.features, wished, limit_s, retarget))
        if not wished and self.features == "cdmpp":  # stored: of another device, they mean nothing to it, or not wanted
            inputs = replace(inputs, asts=inputs.asts.with_codes(None))
        asts = inputs.asts
        if len(asts) == 0:
            raise CdmppError("there is no program to predict")
        if self.features == EAGER_FEATURES and np.isnan(asts.codes_or_nan()[:, 0]).any():
            raise CdmppError(
                "this model predicts framework operators, and some of these programs are none: make them with "
                "cdmpp.operators.operator_vector.operator_program, or name a model of scheduled programs"
            )
        kind = "cpu" if target.kind == "cpu" else "gpu"  # other accelerators are programmed through the same launches
        wrong = np.flatnonzero(asts.target_kinds != TARGET_KINDS.index(kind))
        if len(wrong):
            raise CdmppError(
                f"{len(wrong)} of {len(asts)} programs (the first is number {wrong[0]}) are lowered for a "
                f"{TARGET_KINDS[asts.target_kinds[wrong[0]]]}, but {target.name} is a {target.kind}; "
                "lower them for its target or name another device"
            )
        with nullcontext() if self._is_compiled else usual_torch():
            ends = {name: [self._examined_on(target.with_spec(**{name: v}), asts) for v in target.ranges[name]]
                    for name in target.ranges}  # fmt: skip
            described = {
                name: (np.exp(low.log_prediction), np.exp(high.log_prediction)) for name, (low, high) in ends.items()
            }
            return self._answer(self._examined_on(target, asts), inputs, target, described)

    @usual_torch()
    def chances(self, asts: AstTable, device: str | Device, tasks: Sequence[str]) -> np.ndarray:
        """Return (n,) chances to be the fastest program of its task, by only its AST; ``tasks`` (n,) names the tasks.

        Those of one task add up to one. Where there is a ranker, the geometric mean of what it says and what the
        predictions without machine code do: the two err differently.
        """
        target = self._device(device)
        scores = -np.log(self.predict(asts.with_codes(None), target, compiled=False).latency_s) / _TYPICAL_ERROR
        if self.ranker:
            rows = torch.from_numpy(with_devices(asts, [target] * len(asts)))
            with torch.inference_mode():
                scores = (scores + self.ranker(rows.to(self.torch_device)).double().cpu().numpy()) / 2
        _, which = np.unique(np.asarray(tasks, str), return_inverse=True)
        best = np.full(which.max(initial=-1) + 1, -np.inf)
        np.maximum.at(best, which, scores)
        weights = np.exp(scores - best[which])
        return weights / np.bincount(which, weights)[which]

    @usual_torch()
    def device_share(self, operators: Sequence[EagerOperator], device: str | Device) -> np.ndarray:
        """Return the (n,) share of each call in which the device is busy; the rest is its host's dispatch.

        ``CdmppError``: this is no model of framework operators.
        """
        target = self._device(device)
        model, options = self._eager_model(), ReadOptions(target, self.features, False, LIMIT_S)
        return self._device_share(model, self._tensors(target, read_batch(operators, options).asts))

    @usual_torch()
    def device_s(self, operators: Sequence[EagerOperator], device: str | Device) -> np.ndarray:
        """Return the (n,) seconds of each call in which the device is busy: the latency of ``predict``, its share.

        ``CdmppError``: this is no model of framework operators.
        """
        target, model = self._device(device), self._eager_model()
        tensors = self._tensors(target, vector_table(operators, "cpu" if target.kind == "cpu" else "gpu"))
        latency_s = np.exp(self.examine(tensors, np.arange(len(tensors))).log_prediction)
        return latency_s * self._device_share(model, tensors)

    def _eager_model(self) -> EagerModel:
        if not isinstance(model := self.models[0], EagerModel):
            raise CdmppError("this model predicts scheduled programs, whose latency has no dispatch in it")
        return model

    def _device_share(self, model: EagerModel, tensors: ProgramTensors) -> np.ndarray:
        shares = np.empty(len(tensors))
        with torch.inference_mode():
            for batch in ordered_batches(tensors, np.arange(len(tensors))):
                shares[batch.rows.cpu().numpy()] = model.prior.device_share(batch).double().cpu().numpy()
        return shares

    def _examined_on(self, device: Device, asts: AstTable) -> Examined:
        if not self._is_compiled:
            return self.examine(self._tensors(device, asts), np.arange(len(asts)))
        counts = np.diff(asts.leaf_offsets), np.diff(asts.kernel_offsets)
        return self._seen([one.answers_on(device, asts) for one in self._compiled()], *counts, asts.target_kinds)

    def _tensors(self, device: Device, asts: AstTable) -> ProgramTensors:
        tensors = ProgramTensors.build(asts, {device.name: device}, [device.name] * len(asts))
        return tensors.to(self.torch_device)

    def _answer(
        self,
        seen: Examined,
        inputs: ProgramBatch,
        device: Device,
        described: Mapping[str, tuple[np.ndarray, np.ndarray]],
    ) -> Prediction:
        latency_s, trained_on_device = np.exp(seen.log_prediction), device.name in {*self.trained_on} - self.calibrated
        flags: dict[str, np.ndarray] = {}
        vouched: dict[str, Any] = {}
        if self.features == "cdmpp":
            reads, learned = self._wants_code_of(device), self.card.get(UNSCHEDULED)
            # A card may say anything.
            n_unscheduled = learned.get(device.name, 0) if isinstance(learned, Mapping) else 0
            flags = flag_programs(inputs.asts, device, latency_s, reads, n_unscheduled)
        untold = np.zeros(len(latency_s), bool)
        without = flags.get(NO_MACHINE_CODE, untold)
        guessed = without | flags.get(COUNT_UNKNOWN, untold)  # no better than answers without machine code, it may be
        if isinstance(model := self.models[0], EagerModel) and (codes := inputs.asts.codes) is not None:
            flags[NOT_MEASURED] = model.never_measured(codes)
            if trained_on_device:
                flags[MEASURED_ELSEWHERE] = model.measured_elsewhere(codes, device.vector())
                flags[IN_CACHE] = model.only_cached(codes, device)
                untold = flags[NOT_MEASURED] | flags[MEASURED_ELSEWHERE] | flags[IN_CACHE]
        if self.calibration is not None:
            nearer, flags[UNLIKE_TRAINING] = self.calibration.doubt(seen.sketch, without)
            vouched = {"novelty": nearer, "unlike_training": flags[UNLIKE_TRAINING]}
            if trained_on_device:
                operators = inputs.asts.codes if self.features == EAGER_FEATURES else None
                groups = (
                    f"{device.kind}/{device.name}"
                    if operators is None
                    else program_groups([device] * len(latency_s), operators)
                )
                vouched["intervals"] = self.calibration.intervals(seen, groups, guessed)
                vouched["promised"] = self.calibration.promised(groups, guessed)
        unknown: dict[float, tuple[np.ndarray, np.ndarray]] = {}
        if self.unseen is not None and (not trained_on_device or untold.any()):
            inputs_of_scale = None if self.calibration is None else self.calibration.scale_inputs(seen, guessed)
            unknown = self.unseen.intervals(seen.log_prediction, inputs_of_scale, guessed)
        if self.unseen is not None and (device.kind == "cpu" or self._vouches_for(device)):
            if not trained_on_device:
                vouched["intervals"] = unknown
                vouched["promised"] = {level: level for level in unknown}
                vouched["expected"] = self.unseen.expected(device.name, device.name in self.calibrated)
            elif untold.any() and "intervals" in vouched:
                vouched["intervals"] = choose(untold, unknown, vouched["intervals"])
        if any(np.isnan(bounds).all() for bounds, _ in vouched.get("intervals", {}).values()):
            vouched |= {"intervals": {}, "promised": {}}
        vouched["flags"] = _flags_of({name: flags[name] for name in FLAGS if name in flags}, len(latency_s))
        vouched |= {
            "described": described,
            "refused": inputs.refused,
            "reasons": inputs.reasons,
            "calibrated": device.name in self.calibrated,
        }
        return Prediction(latency_s, inputs.labels, device, trained_on_device, seen.spread, **vouched)

    def _vouches_for(self, device: Device) -> bool:
        """True if errors on an unseen GPU are known: for framework operators, or code on a described core."""
        return self.features == EAGER_FEATURES or can_have_gpu_code(device.target)

    @torch.inference_mode()
    def examine(self, programs: ProgramTensors, rows: np.ndarray) -> Examined:
        """Return the model's view of ``rows`` on its torch device; hidden vectors are those of the first member."""
        rows = np.asarray(rows, np.int64)
        facts = programs.host_leaf_counts[rows], programs.host_kernel_counts[rows], programs.kinds.cpu().numpy()[rows]
        if self._is_compiled:
            return self._seen([one.answers(programs, rows) for one in self._compiled()], *facts)
        logs, *seen = self._examined_by_torch(programs, rows)
        return Examined(logs + self.log_shift, ProgramSketch(*seen), *facts)

    @property
    def _is_compiled(self) -> bool:
        return self.torch_device.type == "cpu" and all(isinstance(model, CdmppModel) for model in self.models)

    def _compiled(self) -> list[CompiledModel]:
        return [compiled(model) for model in self.models if isinstance(model, CdmppModel)]

    def _seen(self, found: Sequence[Answers], *facts: np.ndarray) -> Examined:
        logs = np.array([one.log_latency for one in found]) + self.log_shift
        return Examined(logs, ProgramSketch(*found[0][1:]), *facts)

    def _examined_by_torch(self, programs: ProgramTensors, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """(members, n) log-seconds, hidden vectors of the first member, largest and smallest numbers."""
        logs, parts, order = np.empty((len(self.models), len(programs))), [], []
        at_once = {"max_tokens": _EAGER_TOKENS} if isinstance(self.models[0], EagerModel) else {}
        for batch in ordered_batches(programs, rows, **at_once):
            place = batch.rows.cpu().numpy()
            outputs = [model(batch) for model in self.models]
            logs[:, place] = [output.log_latency.double().cpu().numpy() for output in outputs]
            parts.append(tuple(x.float().cpu().numpy() for x in (outputs[0].hidden, *_extremes(batch))))
            order.append(place)
        where = np.empty(len(programs), np.int64)
        where[np.concatenate(order)] = np.arange(len(rows))
        return logs[:, rows], *(np.concatenate(column)[where[rows]] for column in zip(*parts, strict=True))

    @property
    def reads_code(self) -> bool:
        """Return True where a member reads code vectors (``cdmpp.machine_code``)."""
        return any(getattr(model.config, "code", False) for model in self.models)

    @property
    def can_scale(self) -> bool:
        """Return True where a few calls tell every member the numbers of a device (``recipes.scaled``)."""
        return all(getattr(model, "can_scale", False) for model in self.models)

    @property
    def _code_version(self) -> str:
        kinds = {getattr(model.config, "code_kind", "cpu") for model in self.models}
        return GPU_CODE_VERSION if "gpu" in kinds else CODE_VERSION

    def _wants_code_of(self, device: Device) -> bool:
        """True if a member reads code vectors of such devices."""
        kind = "cpu" if device.kind == "cpu" else "gpu"
        return any(getattr(m.config, "code", False) and getattr(m.config, "code_kind", "") == kind for m in self.models)

    @property
    def torch_device(self) -> torch.device:
        """The weights lie on this torch device."""
        return next(self.models[0].parameters()).device

    def _device(self, device: str | Device | None) -> Device:
        fitting("device", device, str | Device | None)
        if isinstance(device, Device):
            return device
        if device is None and len(self.trained_on) == 1:
            return next(iter(self.trained_on.values()))
        if device is None:
            raise CdmppError(f"this model knows several devices; name one: device= {', '.join(self.trained_on)}")
        # The stored numbers win: editing a datasheet must not silently change what a trained model answers.
        return self.trained_on[device] if device in self.trained_on else devices.get(device)

    def save(self, folder: str | Path, half: bool = False) -> None:
        """Write ``model.safetensors``, ``config.json`` and ``card.json``; each file appears whole or not at all.

        ``half``: trained matrices, not what was fitted, as float16; answers move by some hundredths of a percent.
        """
        out, weights = Path(folder), stored_weights(self.models, self.ranker, half)
        config: dict[str, Any] = {
            **FORMAT,
            "cdmpp_version": __version__,
            "extractor_version": FEATURES[self.features],
            **({"code_version": self._code_version} if self.reads_code else {}),
            "members": [asdict(model.config) for model in self.models],
            "devices": {name: {key: getattr(device, key) for key in SHEET} for name, device in self.trained_on.items()},
            "log_shift": self.log_shift,
            **({"unseen": self.unseen.settings()} if self.unseen else {}),
            **({"calibrated": sorted(self.calibrated)} if self.calibrated else {}),
            **({"ranker": True} if self.ranker else {}),
            **({"power_states": self.power_states} if self.power_states else {}),
        }
        for key, one in calibrations(self.calibration).items():
            weights |= {f"{key}.{name}": torch.tensor(value).contiguous() for name, value in one.arrays().items()}
            config[key] = one.settings()
        content = serialised(weights)
        config[SHA256] = hashlib.sha256(content).hexdigest()
        # Of a full disk safetensors itself would not say so.
        write_atomic(out / WEIGHTS, lambda temporary: temporary.write_bytes(content))
        write_json(out / CARD, self.card)
        write_json(out / CONFIG, {**config, CONFIG_SHA256: sum_of(config)})  # last: without it the folder is no model


def program_groups(sheets: Sequence[Device], operators: np.ndarray | None) -> np.ndarray:
    """Return (n,) paths of programs among the groups of ``Conformal``: kind and name of the device of each, of n.

    Of framework operators also the class, and whether elements are narrow; ``operators``: their vectors (n,
    CODE_WIDTH), None of scheduled programs.
    """
    paths = [f"{sheet.kind}/{sheet.name}" for sheet in sheets]
    if operators is None:
        return np.array(paths)
    return np.array([f"{path}/{group}" for path, group in zip(paths, operator_groups(operators), strict=True)])


def _flags_of(flags: Mapping[str, np.ndarray], n: int) -> tuple[tuple[str, ...], ...]:
    """(n,) names of the ``flags`` of each program; few sets of them occur."""
    sets = np.zeros(n, np.int64)
    for place, rows in enumerate(flags.values()):
        sets |= rows.astype(np.int64) << place
    places = sets.tolist()
    named = {one: tuple(name for place, name in enumerate(flags) if one >> place & 1) for one in {*places}}
    return tuple(named[one] for one in places)


def _extremes(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, F) largest and smallest value of each leaf and kernel number over a program."""
    pairs = ((batch.leaves, batch.leaf_mask), (batch.kernels, batch.kernel_mask))
    largest = [x.masked_fill(~mask[..., None], -torch.inf).amax(1) for x, mask in pairs]
    smallest = [x.masked_fill(~mask[..., None], torch.inf).amin(1) for x, mask in pairs]
    return torch.cat(largest, dim=-1), torch.cat(smallest, dim=-1)
