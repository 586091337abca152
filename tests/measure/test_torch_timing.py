"""One visit to an operator: how often it is called, and by which clock."""

from __future__ import annotations

import json

import pytest
import torch

from cdmpp.measure import torch_timing
from cdmpp.measure.torch_protocol import TORCH_CPU, TORCH_GPU, torch_rule
from cdmpp.measure.torch_timing import OUT_OF_MEMORY, event_seconds, load_torch, time_call, time_operator
from cdmpp.measure.worker import OPERATIONS, answer
from cdmpp.operators.operator import EagerOperator

LINEAR = EagerOperator.parse("linear", "64x64x64").to_json()


class Clock:
    """Tells ``call_s`` for every call, and how many were asked for at once."""

    def __init__(self, call_s: float) -> None:
        self.call_s = call_s
        self.asked: list[int] = []

    def __call__(self, run, calls: int) -> float:
        self.asked.append(calls)
        for _ in range(calls):
            run()
        return self.call_s * calls


@pytest.mark.parametrize(
    ("rule", "call_s", "calls", "repeats"),
    [(TORCH_CPU, 1e-4, 10, 30), (TORCH_CPU, 0.01, 1, 6), (TORCH_GPU, 1e-5, 1, 30), (TORCH_GPU, 0.01, 1, 10)],
)
def test_short_calls_are_repeated_on_cpus_and_timed_one_by_one_on_gpus(rule, call_s, calls, repeats):
    clock, runs = Clock(call_s), []
    reply = time_call(lambda: runs.append(1), clock, rule)
    assert reply["samples"] == pytest.approx([call_s] * repeats)
    again = [calls] if calls > 1 else []  # how long a call takes once it is warm
    assert clock.asked == [1, *again, *[calls] * repeats] and len(runs) == 1 + sum(clock.asked)


def test_a_repeat_lasts_a_millisecond_though_the_first_calls_were_slow():
    def seconds(run, calls: int) -> float:
        asked.append(calls)
        return 1e-4 if calls == 1 else 1e-6 * calls

    asked: list[int] = []
    time_call(lambda: None, seconds, TORCH_CPU)
    assert asked[:2] == [1, 10] and set(asked[2:]) <= {1000, 1001} and len(asked) == 32


def test_what_is_too_slow_is_given_up_after_the_warm_up():
    clock = Clock(1.5)
    assert time_call(lambda: None, clock, TORCH_CPU) == {"cause": "too slow", "run_s": 1.5} and clock.asked == [1]


def test_a_worker_times_a_real_operator():
    threads = torch.get_num_threads()
    try:
        assert answer(OPERATIONS["ready_torch"], {"op": "ready_torch", "threads": 1, "device": "cpu"}) == {}
        reply = answer(OPERATIONS["time_torch"], {"op": "time_torch", "operator": LINEAR, "device": "cpu"})
    finally:
        torch.set_num_threads(threads)
    assert len(reply["samples"]) == 30 and all(1e-7 < sample < 0.1 for sample in reply["samples"])


def test_events_enclose_the_calls_alone(monkeypatch):
    told = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            told.append("record")

        def elapsed_time(self, end: Event) -> float:
            return 2.0  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: told.append("wait"))
    assert event_seconds(lambda: told.append("call"), 1) == pytest.approx(2e-3)
    assert told == ["wait", "record", "call", "record", "wait"]


@pytest.mark.parametrize(
    "fault",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_too_little_memory_is_a_cause_of_its_own(monkeypatch, fault):
    def call(*_):
        raise fault

    monkeypatch.setattr(torch_timing, "torch_call", call)
    reply = time_operator({"operator": LINEAR, "device": "cpu"})
    assert reply["cause"] == OUT_OF_MEMORY and reply["restart"]
    fault.args = ("another",)
    if isinstance(fault, RuntimeError) and not isinstance(fault, torch.OutOfMemoryError):
        with pytest.raises(RuntimeError, match="another"):
            time_operator({"operator": LINEAR, "device": "cpu"})


def test_memory_that_is_not_there_is_refused_by_pytorch_itself():
    enormous = EagerOperator.parse("relu", f"{1 << 22}x{1 << 22}").to_json()
    assert time_operator({"operator": enormous, "device": "cpu"})["cause"] == OUT_OF_MEMORY


def test_the_protocol_tells_what_decides():
    assert torch_rule("cpu") is TORCH_CPU and torch_rule("cuda") is TORCH_GPU
    text = TORCH_CPU.describe(2)
    assert "torch.set_num_threads(2)" in text and "host dispatch included" in text and "TVM" not in text
    assert "TF32 off" in TORCH_GPU.describe() and "repeats of one run" in TORCH_GPU.describe()


@pytest.mark.gpu
def test_a_gpu_times_an_operator():
    load_torch({"threads": 1, "device": "cuda"})
    assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
    small, large = (
        time_operator({"operator": EagerOperator.parse("linear", text).to_json(), "device": "cuda"})
        for text in ("8x8x8", "4096x4096x4096")
    )
    assert len(small["samples"]) == 30 and 1e-6 < min(small["samples"]) < min(large["samples"]) < 1.0
    assert json.dumps(large)
