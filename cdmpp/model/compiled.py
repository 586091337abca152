"""CompiledModel: the answers of a ``CdmppModel`` on a CPU, by a compiled library that computes what the module says.

Torch takes some microseconds for each of the thousand small operations of one program, and pads programs of a batch to
one length. The library computes programs one after the other, and the company of a program changes nothing. The module
trains, and answers on GPUs; tests hold both to the same numbers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, finalize

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from cdmpp.ast.layout import KERNEL_WIDTH
from cdmpp.ast.mapped_table import MappedTable
from cdmpp.ast.table import AstTable
from cdmpp.data.batching import ProgramTensors, spec_array
from cdmpp.devices import Device
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.model import code_prior as cpu
from cdmpp.model import gpu_code_prior as gpu
from cdmpp.model.analytic import BOUND_OF_PART
from cdmpp.model.code_prior import N_INPUTS, CodePrior
from cdmpp.model.leaf_encoder import MAX_KERNEL_ORDINAL
from cdmpp.model.native import native_network
from cdmpp.model.native_inputs import device_numbers, layout
from cdmpp.model.regressor import CdmppModel
from cdmpp.platform.torch_state import usual_torch

_DEVICES_KEPT = 64
_NO_CODE = np.full((1, CODE_WIDTH), np.nan, np.float32)
_LAYERS = ("norm_attention", "qkv", "out", "norm_feedforward", "feedforward.0", "feedforward.2")


class Answers(NamedTuple):
    """The answers for n programs."""

    log_latency: np.ndarray
    """(n,) float64, natural-log seconds."""
    hidden: np.ndarray
    """(n, hidden) float32, ``Output.hidden``."""
    largest: np.ndarray
    """(n, leaf width + kernel width) float32, the largest value of each leaf and kernel number, as ``smallest``."""
    smallest: np.ndarray


class _Array(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_int64))


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in (
            "leaf_width", "kernel_width", "input_width", "width", "heads", "feedforward", "bins", "hidden", "blocks",
            "ordinals", "has_prior")),
        *((name, ctypes.c_double) for name in ("clip", "log_scale", "log_mean")),
    )  # fmt: skip


class _Code(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in (
            "kind", "width", "n_amounts", "n_memory", "n_resources", "simulated", "cycles", "overlap")),
        ("fitted", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("columns", "is_issued", "is_gather", "memory", "cost")),
        *((name, ctypes.c_float) for name in ("power", "log_overhead")),
        *((name, ctypes.c_int32) for name in ("n_counted", "n_variants", "simulated_amount")),
        *((name, ctypes.c_float) for name in ("memory_cost", "launch_cost", "text_cost")),
        *((name, ctypes.c_void_p) for name in ("counted_cost", "variants")),
    )  # fmt: skip


class ProgramTables(ctypes.Structure):
    """``ProgramTensors`` as the library reads them, with what it reads of their devices."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in (
        "leaves", "leaf_places", "leaf_starts", "leaf_counts", "kernels", "kernel_starts", "kernel_counts", "kinds",
        "devices", "codes", "code_rows", "numbers", "contexts", "own"))  # fmt: skip


class _Places(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in Answers._fields)


class CompiledModel:
    """The weights of one model are copied once; ``compiled`` makes it anew where they changed."""

    def __init__(self, model: CdmppModel) -> None:
        """Copy the weights of ``model``, which lies on the CPU."""
        self.hidden, self.facts = model.config.hidden, len(model.leaf_scaler.shift) + KERNEL_WIDTH
        self._encoder, self._costs = model.device_encoder, getattr(model, "code_prior", None)
        self._made, self._kept = made(model, "new")
        finalize(self, native_network().network_delete, self._made)
        self._of_devices: dict[bytes, tuple[Tensor, Tensor, Tensor]] = {}
        self._of_sheets: dict[int, tuple[Device, Tensor, Tensor, Tensor]] = {}

    @torch.no_grad()
    def answers(self, programs: ProgramTensors, rows: np.ndarray, threads: int | None = None) -> Answers:
        """Answer ``rows`` (n,) of ``programs``, which lie on the CPU, in ``threads``; None: as many as torch has."""
        of_devices = self._devices(programs.device_vectors, programs.device_specs)
        return self._answers(tables_of(programs, *of_devices), np.ascontiguousarray(rows, np.int64), threads)

    def answers_on(self, device: Device, asts: AstTable) -> Answers:
        """Answer all programs of ``asts`` on ``device``, in as many threads as torch has."""
        known = self._of_sheets.get(id(device))
        if known is None or known[0] is not device:
            with usual_torch():
                found = self._devices(*(torch.tensor(row[None]) for row in (device.vector(), spec_array(device))))
            if len(self._of_sheets) >= _DEVICES_KEPT:
                self._of_sheets.clear()
            known = self._of_sheets[id(device)] = device, *found
        n, zeros = len(asts), np.zeros(len(asts), np.int64)
        every = np.arange(n)
        if isinstance(asts, MappedTable):
            leaves, places, kernels = asts.mapped_leaves, asts.mapped_places, asts.mapped_kernels
        else:
            leaves, kernels = asts.leaf_features, asts.kernel_features
            places = np.empty((len(leaves), 3), np.int32)
            places[:, 0], places[:, 1] = asts.leaf_positions, asts.leaf_serial_positions
            places[:, 2] = asts.leaf_kernels
        codes = _NO_CODE if asts.codes is None else asts.codes
        columns = [
            np.ascontiguousarray(values, kind)
            for values, kind in (
                (leaves, np.float32), (places, np.int32), (asts.leaf_offsets, np.int64),
                (np.diff(asts.leaf_offsets), np.int64), (kernels, np.float32), (asts.kernel_offsets, np.int64),
                (np.diff(asts.kernel_offsets), np.int64), (asts.target_kinds, np.int64), (zeros, np.int64),
                (codes, np.float32), (zeros if asts.codes is None else every, np.int64))
        ]  # fmt: skip
        places_of = [column.ctypes.data for column in columns] + [tensor.data_ptr() for tensor in known[1:]]
        return self._answers(ProgramTables(*places_of), every, None)

    def _answers(self, tables: ProgramTables, rows: np.ndarray, threads: int | None) -> Answers:
        n, facts = len(rows), self.facts
        shapes = ((n, self.hidden), (n, facts), (n, facts))
        found = Answers(np.empty(n), *(np.empty(shape, np.float32) for shape in shapes))
        places = _Places(*(array.ctypes.data for array in found))
        native_network().network_answers(
            self._made,
            ctypes.byref(tables),
            rows.ctypes.data,
            n,
            ctypes.byref(places),
            threads or torch.get_num_threads(),
        )
        return found

    @torch.no_grad()
    def _devices(self, vectors: Tensor, specs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers (devices, 2, N), contexts (devices, width) and costs of code, of devices as in ``ProgramTensors``."""
        key = vectors.numpy().tobytes() + specs.numpy().tobytes()
        if key not in self._of_devices:
            if len(self._of_devices) >= _DEVICES_KEPT:
                self._of_devices.clear()
            own = torch.zeros(len(vectors), 1)
            if isinstance(self._costs, CodePrior):
                costs = self._costs.costs_of(vectors)
                own = torch.cat([costs[:, :N_INPUTS].exp(), costs[:, N_INPUTS:]], dim=1)
            self._of_devices[key] = device_numbers(specs), self._encoder(vectors).contiguous(), own.float().contiguous()
        return self._of_devices[key]


def tables_of(programs: ProgramTensors, *of_devices: Tensor) -> ProgramTables:
    """Return where ``programs`` lie, which live on; ``of_devices``: the last three fields of ``ProgramTables``."""
    columns = (
        programs.leaf_features, programs.leaf_ints, programs.leaf_starts, programs.leaf_counts,
        programs.kernel_features, programs.kernel_starts, programs.kernel_counts, programs.kinds,
        programs.device_index, programs.codes, programs.code_rows, *of_devices,
    )  # fmt: skip
    return ProgramTables(*(column.data_ptr() for column in columns))


_compiled: WeakKeyDictionary[CdmppModel, tuple[list[Tensor], int, CompiledModel]] = WeakKeyDictionary()


def compiled(model: CdmppModel) -> CompiledModel:
    """Return the compiled ``model``, which lies on the CPU: the one from before while no weight has changed."""
    if (known := _compiled.get(model)) and known[1] == _changes(known[0]):
        return known[2]
    tensors = [*model.parameters(), *model.buffers()]
    with usual_torch():
        made = tensors, _changes(tensors), CompiledModel(model)
    _compiled[model] = made
    return made[2]


def _changes(tensors: list[Tensor]) -> int:
    """How often their numbers were written."""
    return sum(tensor._version for tensor in tensors)


def made(model: CdmppModel, kind: str) -> tuple[ctypes.c_void_p, list[np.ndarray]]:
    """Make what ``kind`` says, ``new`` or ``trainer_new``, of ``model``; also arrays that have to live as long."""
    values = [np.ascontiguousarray(one.detach().float().numpy()) for one in (*_fitted(model), *trained(model))]
    code, kept = _code_of(model)
    bound = np.array(BOUND_OF_PART, np.int32)
    shape = ctypes.byref(_shape_of(model)), arrays_of(values), ctypes.byref(layout())
    place = getattr(native_network(), f"network_{kind}")(*shape, ctypes.byref(code), bound.ctypes.data)
    return ctypes.c_void_p(place), kept


def arrays_of(values: Sequence[np.ndarray]) -> ctypes.Array[_Array]:
    """Return where float32 ``values`` lie, as the library takes them."""
    return (_Array * len(values))(*(_Array(value.ctypes.data, value.size) for value in values))


def _fitted(model: CdmppModel) -> list[Tensor]:
    """What is fitted before training and read from then on, in the order of the library."""
    state: Mapping[str, Tensor] = model.state_dict()
    names = [
        *(f"{name}_scaler.{part}" for name in ("leaf", "kernel") for part in ("shift", "factor")),
        *(f"kernel_bins.{part}" for part in ("low", "factor", "mean")),
        *("prior.log_factor", "prior.sharpness"),
    ]
    return [state[name] for name in names]


def trained(model: CdmppModel) -> list[torch.nn.Parameter]:
    """Return the weights that are trained, but for those of the device encoder, in the order of the library."""

    def layers(*names: str) -> list[str]:
        return [f"{name}.{part}" for name in names for part in ("weight", "bias")]

    names = [
        *layers(*(f"encoder.embed_{name}.{place}" for name in ("leaf", "kernel") for place in (0, 2))),
        *("encoder.kernel_to_leaf.weight", "encoder.token_type", "encoder.kernel_ordinal.weight"),
        *layers("encoder.norm", "regressor.0", "regressor.3", "out"),
        *layers(*(f"encoder.blocks.{i}.{layer}" for i in range(model.config.layers) for layer in _LAYERS)),
    ]
    return [model.get_parameter(name) for name in names]


def _shape_of(model: CdmppModel) -> _Shape:
    config = model.config
    return _Shape(
        leaf_width=len(model.leaf_scaler.shift), kernel_width=KERNEL_WIDTH, input_width=len(model.kernel_scaler.shift),
        width=config.width, heads=config.heads, feedforward=config.feedforward, bins=config.bins, hidden=config.hidden,
        blocks=config.layers, ordinals=MAX_KERNEL_ORDINAL, has_prior=config.prior, clip=config.clip,
        log_scale=float(model.log_scale), log_mean=float(model.log_mean),
    )  # fmt: skip


def _code_of(model: CdmppModel) -> tuple[_Code, list[np.ndarray]]:
    """Return the code prior as the library reads it, and the arrays that it points at."""
    if not model.config.code:
        return _Code(kind=-1), []
    prior = model.code_prior
    own = _cpu_code(prior) if isinstance(prior, CodePrior) else _gpu_code(prior)
    kept = {name: np.ascontiguousarray(value) for name, value in own.items() if isinstance(value, np.ndarray)}
    places = {name: value.ctypes.data for name, value in kept.items()}
    common = {"width": CODE_WIDTH, "n_resources": prior.n_resources, "simulated": prior.simulated - 1}
    return _Code(**common, **own | places, fitted=float(prior.fitted)), list(kept.values())


def _cpu_code(prior: CodePrior) -> dict[str, Any]:
    places = np.array(cpu.CODE_COLUMNS, np.int32) - 1
    gathers = np.zeros(len(places), np.int32)
    gathers[cpu.GATHERS] = 1
    return {
        "kind": 0, "n_amounts": len(places), "n_memory": len(cpu.MEMORY_COLUMNS), "cycles": cpu.CYCLES,
        "overlap": cpu.OVERLAP, "columns": places, "is_issued": cpu.ISSUED.numpy().astype(np.int32),
        "is_gather": gathers, "memory": np.array(cpu.MEMORY_COLUMNS, np.int32),
        "cost": prior.log_cost.exp().float().numpy(), "power": 1 + float(softplus(prior.sharpness)),
        "log_overhead": float(prior.log_overhead),
    }  # fmt: skip


def _gpu_code(prior: gpu.GpuCodePrior) -> dict[str, Any]:
    cost, n, variants = prior.log_cost.exp().float().numpy(), gpu.N_COUNTED, gpu.N_VARIANTS
    columns = np.array([*gpu.CYCLES, gpu.START, gpu.KERNELS, gpu.TEXT], np.int32) - 1
    return {
        "kind": 1, "n_amounts": len(columns), "n_memory": len(gpu.DRAM), "columns": columns,
        "memory": np.array(gpu.DRAM, np.int32), "n_counted": n, "n_variants": variants,
        "simulated_amount": gpu.SIMULATED, "memory_cost": float(cost[gpu.MEMORY]),
        "launch_cost": float(cost[gpu.LAUNCH]), "text_cost": float(cost[gpu.CODE]),
        "power": 1 + float(cost[gpu.SHARP]), "counted_cost": cost[:n].copy(),
        "variants": prior.log_cost[-variants:].float().numpy().copy(),
    }  # fmt: skip
