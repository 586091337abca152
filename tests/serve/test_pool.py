"""Lanes of processes: what one question does costs no other one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cdmpp.serve import pool
from cdmpp.serve.pool import BusyError, CrashError, Lane, TimeUpError

FAKE = str(Path(__file__).with_name("fake_worker.py"))


@pytest.fixture
def run(monkeypatch, tmp_path) -> Callable[..., Any]:
    """Run a coroutine with a lane of one process."""
    monkeypatch.setattr(pool, "COMMAND", (FAKE,))

    def started(test: Callable[[Lane], Awaitable[Any]], time_s: float = 300.0, waiting: int = 100) -> Any:
        async def whole() -> Any:
            lane = Lane("test", 1, time_s, waiting, 10**9, tmp_path)
            lane.start()
            try:
                await asyncio.wait_for(lane.ready.wait(), 300)
                return await test(lane)
            finally:
                await lane.stop()

        return asyncio.run(whole())

    return started


async def ask(lane: Lane, do: str, batch: Any = None, **more: Any) -> list[str]:
    reply = await lane.ask("predict", {"do": do, **more}, "json", batch)
    return str(reply["body"]).split()


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come true")


async def while_busy(lane: Lane, folder: Path, questions: Sequence[Awaitable[list[str]]]) -> list[Any]:
    """Answers or errors of questions that all come while the process works on another one."""
    begun, end = folder / "begun", folder / "end"
    first = asyncio.create_task(ask(lane, "wait", tell=str(begun), until=str(end)))
    await until(begun.exists)
    others = [asyncio.ensure_future(one) for one in questions]
    await until(lambda: len(lane._waiting) == min(len(others), lane.most_waiting))
    end.touch()
    found = await asyncio.gather(*others, return_exceptions=True)
    await first
    return found


def test_names_come_from_the_process(run):
    async def test(lane: Lane) -> None:
        assert lane.torchvision == {"torchvision:fake"}
        assert (await ask(lane, "echo"))[0] == "echo"

    run(test)


def test_a_crash_costs_one_question(run):
    async def test(lane: Lane) -> None:
        first = await ask(lane, "echo")
        with pytest.raises(CrashError):
            await ask(lane, "crash")
        assert (await ask(lane, "echo"))[2] != first[2]  # another process

    run(test)


def test_what_hangs_ends_with_all_that_it_started(run, tmp_path):
    tell = tmp_path / "pid"

    async def test(lane: Lane) -> None:
        with pytest.raises(TimeUpError, match="within 3 seconds"):
            await ask(lane, "hang", tell=str(tell))
        await until(lambda: not Path(f"/proc/{tell.read_text()}").exists())

    run(test, time_s=3.0)


def test_files_of_a_process_go_with_it(run, tmp_path):
    async def test(lane: Lane) -> None:
        await ask(lane, "echo")
        left = tmp_path / "test-0" / "left"
        assert left.exists()
        with pytest.raises(CrashError):
            await ask(lane, "crash")
        await until(lambda: not left.exists())

    run(test)


def test_questions_of_one_batch_are_answered_at_once(run, tmp_path):
    async def test(lane: Lane) -> None:
        found = await while_busy(lane, tmp_path, [ask(lane, "echo", batch=one) for one in "aaaaaaaaab"])
        assert [one[1] for one in found] == ["9"] * 9 + ["1"]

    run(test)


def test_one_of_a_batch_that_crashes_takes_no_other_with_it(run, tmp_path):
    async def test(lane: Lane) -> None:
        words = ["echo", "crash", "echo", "echo"]
        found = await while_busy(lane, tmp_path, [ask(lane, one, batch="a") for one in words])
        assert [isinstance(one, CrashError) for one in found] == [False, True, False, False]

    run(test)


def test_no_more_wait_than_may(run, tmp_path):
    async def test(lane: Lane) -> None:
        found = await while_busy(lane, tmp_path, [ask(lane, "echo") for _ in range(5)])
        assert [isinstance(one, BusyError) for one in found] == [False, False, True, True, True]

    run(test, waiting=2)


def test_a_process_that_has_grown_is_started_anew(run):
    async def test(lane: Lane) -> None:
        first = await ask(lane, "grow")
        assert (await ask(lane, "echo"))[2] != first[2]

    run(test)


def test_a_lane_ends_though_it_works(run, tmp_path):
    async def test(lane: Lane) -> None:
        asked = asyncio.create_task(ask(lane, "hang", tell=str(tmp_path / "pid")))
        await until((tmp_path / "pid").exists)
        asked.cancel()

    run(test, time_s=10_000.0)  # it does not wait for that
