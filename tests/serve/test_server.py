"""A server process and its client: started, asked, broken into, and stopped by SIGTERM."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import cdmpp
from cdmpp.data.derive import has_tvm
from cdmpp.errors import CdmppError, InfeasiblePlanError, RemoteError, UnknownDeviceError, UsageError
from cdmpp.operators.operator import EagerOperator
from cdmpp.platform.files import write_json
from tests.serve.attacks import BAD, onnx_of
from tests.serve.conftest import PATIENT, REPOSITORY, Served
from tests.serve.test_wire import same

httpx = pytest.importorskip("httpx")
LAYER = cdmpp.Workload("bert_tiny", batch=4)
ON = {"device": "a100", "runtime": "torch"}
# What a compiler or a CI job does: it must never load torch or TVM.
CLIENT = """
import json, sys
import cdmpp
server = cdmpp.remote(sys.argv[1])
from cdmpp.operators.operator import EagerOperator
call = EagerOperator("linear", {"rows": 512, "inner": 1024, "cols": 1024})
layer = cdmpp.Workload("bert_tiny", batch=4)
found = [
    server.predict(call, device="a100").latency_s[0],
    server.predict_network(layer, device="a100", runtime="torch").latency_s,
    server.predict_step(layer, device="a100", runtime="torch").latency_s,
    server.search_plans(layer, device="a100", ranks=2, link="nvlink3", global_batch=8).best.step_s,
]
loaded = sorted({"torch", "tvm", "transformers", "onnx", "fastapi", "uvicorn", "pydantic"} & set(sys.modules))
print(json.dumps([*found, loaded]))
"""


def test_a_client_needs_neither_torch_nor_tvm(served):
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    words = [sys.executable, "-c", CLIENT, served.url]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    *found, loaded = json.loads(done.stdout)
    assert loaded == []
    call = EagerOperator("linear", {"rows": 512, "inner": 1024, "cols": 1024})
    here = [
        cdmpp.load_model("torch-gpus").predict(call, device="a100").latency_s[0],
        cdmpp.predict_network(LAYER, **ON).latency_s,
        cdmpp.predict_step(LAYER, **ON).latency_s,
        cdmpp.search_plans(LAYER, device="a100", ranks=2, link="nvlink3", global_batch=8, progress=False).best.step_s,
    ]
    assert found == pytest.approx(here, rel=1e-6)


@pytest.fixture(scope="module")
def server(served) -> Any:
    with cdmpp.remote(served.url) as made:
        yield made


def test_results_are_those_of_the_package(server):
    assert same(server.predict_network(LAYER, **ON), cdmpp.predict_network(LAYER, **ON))
    trained = cdmpp.Workload("bert_tiny", batch=8, optimizer=None, loss="mse", precision="bf16-mixed")
    assert same(server.predict_step(trained, **ON), cdmpp.predict_step(trained, **ON))


def test_steps_on_ranks_are_those_of_the_package(server):
    from cdmpp.plans.strategies.fsdp import FSDP

    step = cdmpp.predict_step(LAYER, **ON)
    for strategy in ("fsdp", FSDP(overlap=False)):
        asked = {"ranks": 4, "link": "nvlink3", "strategy": strategy, "slow": {1: 1.5}}
        assert same(server.replay_step(LAYER, **ON, **asked), replace(cdmpp.replay_step(step, **asked), graph=None))
    with pytest.raises(UsageError, match="no name that this server has"):
        server.replay_step(LAYER, **ON, ranks=4, cluster="no-such")


@pytest.mark.tvm
@pytest.mark.skipif(not has_tvm(), reason="needs TVM")
def test_graphs_and_programs_are_sent(server, tmp_path):
    tvm = pytest.importorskip("tvm")
    from cdmpp.network.compiled.stored_graph import graph_for
    from cdmpp.programs.script import read_script

    read, stored = graph_for(cdmpp.Workload("mlp")), tmp_path / "graph.json"
    write_json(stored, {"graph": asdict(read.graph), "batch": read.batch})
    given = {"device": "xeon-icelake", "schedule": "untuned"}
    here = cdmpp.predict_network("mlp", progress=False, **given)
    for network in (stored, "mlp"):
        found = server.predict_network(network, **given)
        assert found.latency_s == pytest.approx(here.latency_s, rel=1e-6)
        assert [one.name for one in found.kernels] == [one.name for one in here.kernels]
    path = REPOSITORY / "examples" / "matmul.py"
    whole = cdmpp.load_model("xeon-icelake").predict(path, device="xeon-icelake")
    (program,) = read_script(path, tvm.target.Target("llvm"))
    for programs in (path, program):
        found = server.predict(programs, device="xeon-icelake")
        assert found.latency_s == pytest.approx(whole.latency_s, rel=1e-6)


def test_onnx_files_are_sent(server, tmp_path):
    path = tmp_path / "mine.onnx"
    path.write_bytes(base64.b64decode(onnx_of()))
    assert same(server.predict_network(path, **ON), cdmpp.predict_network(path, **ON))
    path.write_bytes(base64.b64decode(onnx_of("external")))
    with pytest.raises(CdmppError, match="mine.onnx: the weights 'w' are in another file"):
        server.predict_network(path, **ON)


def test_errors_are_those_of_the_package(server, tmp_path):
    for error, call in (
        (UsageError, lambda: server.predict_network("module.py:function", **ON)),
        (UsageError, lambda: server.predict_network(cdmpp.Workload("bert_tiny", batch=4), device="a100", runtime="x")),
        (UsageError, lambda: server.predict_network("bert_tiny", device="no-such", runtime="torch")),
        (InfeasiblePlanError, lambda: server.search_plans(
            LAYER, device="a100", ranks=2, link="nvlink3", global_batch=8, memory_gb=1e-6)),
        (UsageError, lambda: server.predict(tmp_path / "none.py", device="a100")),
        (UsageError, lambda: server.predict([object()], device="a100")),
    ):  # fmt: skip
        with pytest.raises(error):
            call()
    assert issubclass(UnknownDeviceError, UsageError)


def test_modules_and_tensors_are_not_sent(server):
    torch = pytest.importorskip("torch")
    for given in (torch.nn.Linear(2, 2), cdmpp.Workload("bert_tiny", target=torch.zeros(1))):
        with pytest.raises(UsageError, match="sent to a server|no server takes"):
            workload = given if isinstance(given, cdmpp.Workload) else cdmpp.Workload(given, torch.zeros(1, 2))
            server.predict_network(workload, **ON)


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://x", "http://", 5, "file:///etc/passwd"])
def test_an_address_is_one(url):
    with pytest.raises(UsageError, match="no address"):
        cdmpp.remote(url)


def test_who_is_not_there_is_said():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(RemoteError, match="no server answers"):
            cdmpp.remote(f"http://127.0.0.1:{taken.getsockname()[1]}")


@pytest.mark.parametrize(
    ("headers", "body", "text"),
    [
        ({}, b"hello", "is no server of cdmpp"),
        ({"x-cdmpp-version": "0.0.1"}, b"{}", "is cdmpp 0.0.1 and this is"),
    ],
)
def test_another_server_or_version_is_said(headers, body, text):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as other:
        threading.Thread(target=other.handle_request, daemon=True).start()
        with pytest.raises(RemoteError, match=text):
            cdmpp.remote(f"http://127.0.0.1:{other.server_port}")


def children_of(pid: int) -> list[str]:
    """The processes that it started, whichever of its threads did."""
    return [one for file in Path(f"/proc/{pid}/task").glob("*/children") for one in file.read_text().split()]


def state_of(pid: int) -> dict[str, int]:
    """Open files, threads and children of a process."""
    folder = Path(f"/proc/{pid}")
    return {
        "files": len(list((folder / "fd").iterdir())), "threads": len(list((folder / "task").iterdir())),
        "children": len(children_of(pid)),
    }  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_bad_requests_leave_nothing_behind(served):
    """Each kind several times; the load test of `benchmarks` sends a thousand."""

    def send(rounds: int) -> None:
        with httpx.Client(base_url=served.url, timeout=500) as client:
            for _ in range(rounds):
                for name, bad in BAD.items():
                    reply = client.request(bad.method, bad.address, content=bad.body, headers=dict(bad.headers))
                    assert reply.status_code in bad.statuses, (name, reply.status_code, reply.text)

    def scratch() -> set[Path]:
        """What processes left; a folder that Inductor makes once is theirs."""
        return {one for one in served.scratch.glob("*/*/*") if not one.name.startswith("torchinductor_")}

    send(1)
    before, files = state_of(served.process.pid), scratch()
    send(2)

    def is_left() -> list[Any]:
        after = state_of(served.process.pid)
        more = [after["children"] - before["children"], max(after["threads"] - before["threads"] - 1, 0),
                max(after["files"] - before["files"] - 2, 0)]  # fmt: skip
        return [one for one in (*more, *(scratch() - files)) if one]

    for _ in range(1000):
        if not is_left():
            break
        time.sleep(0.1)
    assert is_left() == []
    assert "Traceback" not in served.log.read_text(), served.log.read_text()


@pytest.mark.skipif(not hasattr(signal, "SIGTERM"), reason="needs signals")
def test_sigterm_ends_running_requests_first(tmp_path):
    own = Served(tmp_path, *PATIENT)
    asked = {"network": "bert_tiny", "device": "a100", "ranks": 8, "cluster": "dgx-a100", "global_batch": 256}
    body = json.dumps(asked).encode()
    head = "POST /v1/plan HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n"
    try:
        own.wait_until_ready()
        started = children_of(own.process.pid)
        with socket.create_connection(("127.0.0.1", int(own.url.rpartition(":")[2])), 500) as running:
            running.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode())
            assert running.recv(100).startswith(b"HTTP/1.1 100")  # the request has begun
            running.sendall(body)
            own.process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx.TransportError):  # it takes no other one
                for _ in range(1000):
                    httpx.get(f"{own.url}/v1/health", timeout=500)
                    time.sleep(0.1)
            answer = b"".join(iter(lambda: running.recv(65_536), b""))
        assert answer.startswith(b"HTTP/1.1 200") and b'"plans"' in answer, own.log.read_text()
        assert own.process.wait(500) == 0, own.log.read_text()
        assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
        assert "Traceback" not in own.log.read_text()
    finally:
        own.process.kill()


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """A server that waits 5 s for a request, and half a second for a plan."""
    own = Served(tmp_path_factory.mktemp("hasty"), *PATIENT[:-4], "--body-s", "5", "--plan-time-s", "0.5")
    yield own
    own.process.kill()


def test_what_takes_too_long_is_stopped(hasty):
    hasty.wait_until_ready()
    question = {"network": "hf:gpt2", "device": "a100", "ranks": 64, "cluster": "dgx-a100", "global_batch": 512}
    reply = httpx.post(f"{hasty.url}/v1/plan", json=question, timeout=500)
    assert reply.status_code == 504 and "0.5 seconds" in reply.json()["error"]["message"]
    operators = {"device": "a100", "programs": {"operators": [{"name": "linear", "sizes": "8x8x8"}]}}
    assert httpx.post(f"{hasty.url}/v1/predict", json=operators, timeout=500).status_code == 200


def test_a_request_that_does_not_begin_is_ended(hasty):
    begun = [b"", b"POST /v1/network HTTP/1.1\r\nhost: x\r\n", b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\nGET /"]
    where = "127.0.0.1", int(hasty.url.rpartition(":")[2])
    with ExitStack() as opened:
        slow = [opened.enter_context(socket.create_connection(where, 500)) for _ in begun]
        for one, sent in zip(slow, begun, strict=True):
            one.sendall(sent)
        for one in slow:
            while one.recv(65_536):
                pass
    assert httpx.get(f"{hasty.url}/v1/health", timeout=500).status_code in (200, 503)
    assert hasty.stop() == 0


def test_a_port_that_is_taken_is_said(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        words = [sys.executable, "-m", "cdmpp.cli", "serve", "--port", str(taken.getsockname()[1])]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=500, cwd=tmp_path)
    assert done.returncode == 2 and "cannot listen on 127.0.0.1" in done.stderr and done.stderr.count("\n") == 1
    assert issubclass(RemoteError, CdmppError)
