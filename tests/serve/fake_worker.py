"""A worker process that does as it is told: answers, crashes, hangs, or starts another process and hangs."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from cdmpp.platform.workers import Reply, Request, serve

scratch = Path()


def ready(request: Request) -> Reply:
    global scratch
    scratch = Path(request["scratch"])
    return {"torchvision": ["torchvision:fake"]}


def ask(request: Request) -> Reply:
    questions = [one["asked"] for one in request["questions"]]
    for asked in questions:
        (scratch / "left").write_text("x")
        if asked["do"] == "crash":
            os._exit(3)
        if asked["do"] == "hang":
            started = subprocess.Popen(["sleep", "10000"])
            Path(asked["tell"]).write_text(str(started.pid))
            time.sleep(10_000)
        if asked["do"] == "wait":
            Path(asked["tell"]).touch()
            while not Path(asked["until"]).exists():
                time.sleep(0.01)
    told = [{"body": f"{one['do']} {len(questions)} {os.getpid()}"} for one in questions]
    return {"answers": told, "grown_bytes": 10**12 if questions[0]["do"] == "grow" else 0}


if __name__ == "__main__":
    serve({"ready": ready, "ask": ask})
