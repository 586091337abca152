"""RemoteServer: the functions of this package, answered by a server. Imports neither torch nor TVM."""

from __future__ import annotations

import base64
import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cdmpp import errors
from cdmpp.errors import CdmppError, RemoteError, UsageError
from cdmpp.network.precision import PRECISIONS
from cdmpp.network.update import update_of
from cdmpp.operators.operator import EagerOperator
from cdmpp.platform.files import read_json
from cdmpp.platform.limits import numbers, shown
from cdmpp.serve.token import checked_token, token_of
from cdmpp.version import __version__

if TYPE_CHECKING:
    from cdmpp.network.prediction import NetworkPrediction
    from cdmpp.network.training_prediction import StepPrediction
    from cdmpp.network.workload import Workload
    from cdmpp.plans.oracle import OracleResult
    from cdmpp.predict.prediction import Prediction
    from cdmpp.steps.step_replay import StepReplay
    from cdmpp.steps.strategy import Strategy

_SECONDS = numbers(0, 86_400, "seconds", above=True)
_VERSION_HEADER = "x-cdmpp-version"


class RemoteServer:
    """A server of ``cdmpp serve``, asked over HTTP; what it returns are the objects of this package.

    Networks are names that the server lists, ONNX files, whose bytes are sent, or ``.json`` files of stored graphs.
    Programs are a file of TVMScript, whose text is sent, framework operators, or programs in memory.
    """

    def __init__(
        self, url: str, timeout_s: float = 600.0, token: str | None = None, ca_file: str | Path | None = None
    ) -> None:
        """Look whether a server of this version answers at ``url``; errors as of ``cdmpp.remote``."""
        _check_address(url)
        _SECONDS.fitting("timeout_s", timeout_s)
        token = token_of(None) if token is None else checked_token(token, "token")
        trusted = True if ca_file is None else _trusted(ca_file)
        try:
            import httpx
        except ImportError as error:
            raise CdmppError(f"asking a server needs httpx ({error}): pip install 'cdmpp[serve]'") from error
        self.url, self._httpx = url.rstrip("/"), httpx
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        limit = httpx.Timeout(timeout_s, connect=10.0)
        self._client = httpx.Client(base_url=self.url, timeout=limit, trust_env=False, headers=headers, verify=trusted)
        self._send("GET", "/v1/health", may_be_starting=True)

    def predict(
        self, programs: Any, device: str, model: str | None = None, compiled: bool | None = None,
        retarget: bool = False,
    ) -> Prediction:  # fmt: skip
        """Predict the latency of each program, as ``Predictor.predict`` does.

        Args:
            programs: the path of a TVMScript file; framework operators; or programs in memory, whose modules TVM
                writes as JSON here.
            device: name of a device.
            model: name of a model of the server; None: the first trained on the device.
            compiled: as of ``Predictor.predict``, and so ``retarget``.
            retarget: as there.

        Raises:
            RemoteError: the server cannot be reached, has no time, or is of another version.
            CdmppError: as of ``Predictor.predict``; it is of the type that the server raised.
        """
        asked = {"programs": _programs(programs), "device": device, "model": model, "compiled": compiled}
        return self._ask("predict", {**asked, "retarget": retarget})

    def predict_network(
        self, network: Workload | str | Path, *, device: str, runtime: str = "tvm", model: str | None = None,
        schedule: str | None = None, cuda_graphs: bool = False,
    ) -> NetworkPrediction:  # fmt: skip
        """Predict the time of one run of a network; arguments as of ``cdmpp.predict_network``, errors as ``predict``.

        Args:
            network: a ``Workload`` of one of the networks that the class names, or one of these by itself.
            device: name of a device.
            runtime: as of ``cdmpp.predict_network``, and so the others.
            model: as there.
            schedule: as there.
            cuda_graphs: as there.
        """
        options = {"runtime": runtime, "model": model, "schedule": schedule, "cuda_graphs": cuda_graphs}
        return self._ask("network", {**_network(network, with_mode=True), "device": device, **options})

    def predict_step(
        self, network: Workload | str | Path, *, device: str, runtime: str = "tvm", model: str | None = None,
        schedule: str | None = None, fallback: bool | None = None, cuda_graphs: bool = False,
    ) -> StepPrediction:  # fmt: skip
        """Predict the time of a training step on one device; arguments as of ``cdmpp.predict_step``.

        Args:
            network: as of ``predict_network``, and so ``device``.
            device: as there.
            runtime: as of ``cdmpp.predict_step``, and so the others.
            model: as there.
            schedule: as there.
            fallback: as there.
            cuda_graphs: as there.
        """
        options = {"runtime": runtime, "model": model, "schedule": schedule, "fallback": fallback}
        return self._ask("step", {**_network(network), "device": device, **options, "cuda_graphs": cuda_graphs})

    def replay_step(
        self, network: Workload | str | Path, *, device: str, ranks: int, runtime: str = "torch",
        model: str | None = None, schedule: str | None = None, fallback: bool | None = None,
        cluster: str | None = None, link: str | None = None, backend: str | None = None,
        strategy: str | Strategy | None = None, offload: Sequence[str] = (), granularity: str = "collective",
        slow: Mapping[int, float] | None = None, global_batch: int | None = None,
    ) -> StepReplay:  # fmt: skip
        """Predict and replay a training step on several devices, also where they divide the model.

        The ``graph`` of the result stays at the server.

        Args:
            network: as of ``predict_step``, and so ``device``.
            device: of every rank.
            ranks: number of devices.
            runtime: as of ``predict_step``, and so the next three.
            model: as there.
            schedule: as there.
            fallback: as there.
            cluster: as of ``cdmpp.replay_step``, and so the others but ``offload``.
            link: as there.
            backend: as there.
            strategy: as there.
            offload: what lies in the memory of the host: ``parameters``, ``activations`` or both.
            granularity: as there.
            slow: as there.
            global_batch: as there, in place of the batch of the network.
        """
        own = _strategy(strategy) | {
            "offload": list(offload),
            "slow": {str(rank): factor for rank, factor in (slow or {}).items()},
        }
        place = {"cluster": cluster, "link": link, "backend": backend, "granularity": granularity}
        options = {"runtime": runtime, "model": model, "schedule": schedule, "fallback": fallback}
        given = {**place, **options, **own, "ranks": ranks, "global_batch": global_batch}
        return self._ask("step", {**_network(network), "device": device, **given})

    def search_plans(
        self, network: Workload | str | Path, *, device: str | Mapping[str, int], global_batch: int,
        ranks: int | None = None, cluster: str | None = None, link: str | None = None, backend: str | None = None,
        strategies: Sequence[str] = (), memory_gb: float | None = None, model: str | None = None, top: int = 10,
        replays: int = 20,
    ) -> OracleResult:  # fmt: skip
        """Rank every way to train a network on several devices; arguments as of ``cdmpp.search_plans``.

        The network and the links of the question stay at the server.

        Args:
            network: as of ``predict_network``.
            device: name of a device, or name -> ranks on it.
            global_batch: as of ``cdmpp.search_plans``, and so the others.
            ranks: as there.
            cluster: as there.
            link: as there.
            backend: as there.
            strategies: as there.
            memory_gb: as there.
            model: as there.
            top: as there.
            replays: as there.
        """
        given = {"ranks": ranks, "cluster": cluster, "link": link, "backend": backend, "strategies": list(strategies),
                 "memory_gb": memory_gb, "model": model, "top": top, "replays": replays}  # fmt: skip
        devices = dict(device) if isinstance(device, Mapping) else device
        return self._ask("plan", {**_network(network), "device": devices, "global_batch": global_batch, **given})

    def wait_until_ready(self, limit_s: float = 300.0) -> None:
        """Wait until the server answers, some seconds after its start; ``RemoteError``: it takes longer.

        Args:
            limit_s: most seconds to wait.
        """
        end_s = time.monotonic() + _SECONDS.fitting("limit_s", limit_s)
        while not self._send("GET", "/v1/health", may_be_starting=True)["ready"]:
            if time.monotonic() > end_s:
                raise RemoteError(f"the server at {self.url} did not get ready within {limit_s:g} seconds")
            time.sleep(0.2)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> RemoteServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, verb: str, asked: Mapping[str, Any]) -> Any:
        from cdmpp.serve.wire import from_wire

        given = {name: value for name, value in asked.items() if value is not None}
        return from_wire(self._send("POST", f"/v1/{verb}?form=object", given))

    def _send(self, method: str, address: str, content: Any = None, may_be_starting: bool = False) -> Any:
        httpx = self._httpx
        try:
            reply = self._client.request(method, address, json=content)
        except httpx.ConnectError as error:
            raise RemoteError(f"no server answers at {self.url}: {error}. Start one with `cdmpp serve`") from error
        except httpx.TimeoutException as error:
            raise RemoteError(f"{self.url} did not answer in time: {type(error).__name__}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RemoteError(f"{self.url} ended the connection: {error or type(error).__name__}") from error
        version = reply.headers.get(_VERSION_HEADER)
        if version is None:
            raise RemoteError(f"what answers at {self.url} is no server of cdmpp (status {reply.status_code})")
        if version != __version__:
            raise RemoteError(
                f"the server at {self.url} is cdmpp {version} and this is {__version__}: results differ between "
                f"versions, install the same one"
            )
        if reply.status_code == 200 or (may_be_starting and reply.status_code == 503):
            return reply.json()
        raise _refusal(self.url, reply)


def _check_address(url: Any) -> None:
    """Raise ``UsageError`` for what is no address of a server."""
    try:
        parts = urlsplit(url if isinstance(url, str) and url.isprintable() else "")
        if parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0):
            return
    except ValueError:  # a port of a million, a bracket without an end
        pass
    raise UsageError(f"{shown(url)} is no address of a server: give one such as http://127.0.0.1:8321")


def _trusted(ca_file: Any) -> ssl.SSLContext:
    """Trust the certificates of a file alone."""
    if not isinstance(ca_file, str | Path) or not str(ca_file):
        raise UsageError(f"ca_file is {shown(ca_file)}: expected a PEM file of certificates")
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read the certificates of {ca_file}: {why}; expected a PEM file") from error


def _refusal(url: str, reply: Any) -> CdmppError:
    """The error that the server raised, as what it is here."""
    try:
        told = reply.json()["error"]
        kind, message = str(told["type"]), str(told["message"])
    except (ValueError, KeyError, TypeError):
        return RemoteError(f"{url} answered with status {reply.status_code} and no reason")
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, CdmppError):
        return known(message)
    return RemoteError(f"{url}: {message} ({kind}, status {reply.status_code})")


def _network(network: Any, with_mode: bool = False) -> dict[str, Any]:
    """The fields of a ``Workload`` as JSON; those that are as usual are left out."""
    from cdmpp.network.workload import Workload

    workload = network if isinstance(network, Workload) else Workload(network)
    found: dict[str, Any] = {"network": _sent(workload)}
    for one in fields(Workload):
        value = getattr(workload, one.name)
        if one.name in ("network", "mode") or value == one.default:
            continue
        found[one.name] = _plain(one.name, value)
    if with_mode and workload.mode != "inference":
        found["mode"] = workload.mode
    return found


def _strategy(strategy: str | Strategy | None) -> dict[str, Any]:
    """A strategy by name, with its settings that are not as usual."""
    if strategy is None or isinstance(strategy, str):
        return {"strategy": strategy}
    usual = type(strategy)()
    each = {one.name: getattr(strategy, one.name) for one in fields(strategy)}  # type: ignore[arg-type]
    return {
        "strategy": strategy.name,
        "settings": {name: each[name] for name in each if each[name] != getattr(usual, name)},
    }


def _plain(name: str, value: Any) -> Any:
    if name == "precision":
        if PRECISIONS.get(value.name) != value:
            raise UsageError(f"precision {value} has settings of its own: a server knows precisions by name")
        return value.name
    if name == "optimizer":
        return asdict(update_of(value))
    if name == "inputs":
        return {key: [int(size) for size in shape] for key, shape in value.items()}
    if not isinstance(value, str | int | float):
        raise UsageError(f"{name} is {shown(value)}, which no server takes: it gets names, numbers and ONNX files")
    return value


def _sent(workload: Workload) -> Any:
    """The network as a server takes it."""
    path = workload.path
    if path is None:
        raise UsageError(
            f"a {type(workload.network).__name__} cannot be sent to a server, which runs no code of others: export it "
            "with torch.onnx.export and give the file"
        )
    if path.suffix == ".onnx":
        return {"onnx": base64.b64encode(_content(path)).decode(), "name": path.name}
    if path.suffix == ".json" and path.is_file():
        stored = read_json(path)
        if not isinstance(stored, dict) or not {"graph", "batch"} <= set(stored):
            raise UsageError(f"{path} is no stored graph: it has graph and batch")
        return {"graph": stored["graph"], "batch": stored["batch"]}
    return str(workload.network)


def _programs(given: Any) -> dict[str, Any]:
    if isinstance(given, str | Path):
        return {"script": _content(Path(given)).decode("utf-8-sig", "replace")}
    items = list(given) if isinstance(given, Sequence) else [given]
    if items and all(isinstance(one, EagerOperator) for one in items):
        return {"operators": [_operator(one) for one in items]}
    if items and "tvm" in sys.modules and all(hasattr(one, "module") for one in items):
        save = sys.modules["tvm"].ir.save_json
        names = [one.name or f"#{place}" for place, one in enumerate(items)]
        return {"tvm_json": [save(one.module) for one in items], "names": names}
    raise UsageError("programs are a file of TVMScript, EagerOperator objects, or Program objects with TVM's modules")


def _operator(one: EagerOperator) -> dict[str, Any]:
    return {"name": one.name, "sizes": dict(one.sizes), "dtype": one.dtype, "reads": list(one.reads),
            "elements": one.elements}  # fmt: skip


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
