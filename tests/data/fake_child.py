"""Stands in for the child process of ``derive``: crashes, hangs or fails on programs whose schedule says so."""

import json
import os
import sys
import time
from pathlib import Path


def answer(**fields):
    print(json.dumps(fields), flush=True)


answer(ready=True, warnings=[])
for line in sys.stdin:
    request = json.loads(line)
    failed, for_now, done = {}, {}, []
    for count, (key, _, schedule, *_) in enumerate(request["programs"], start=1):
        if schedule == "crash":
            os.abort()
        if schedule == "hang":
            time.sleep(60)
        if schedule == "disk":
            answer(error="No space left on device", last=True)
        if schedule == "bad":
            failed[key] = "no"
        elif schedule == "no tool":
            for_now[key] = "no tool"
        else:
            done.append(key)
        if count < len(request["programs"]):
            answer(done=count)
    path = Path(request["path"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".done").write_text(json.dumps(done))
    answer(stored=len(request["programs"]), failed=failed, for_now=for_now, last=True)
