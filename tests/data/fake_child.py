"""Stands in for the child process of ``derive``: crashes, hangs or fails on programs whose schedule says so."""

import os
import time

import numpy as np

from cdmpp.data.derive_worker import packed
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.platform.workers import serve


def program(request):
    match request["schedule"]:
        case "crash":
            os.abort()
        case "hang":
            time.sleep(60)
        case "bad":
            return {"reason": "no", "lasting": True}
        case "no tool":
            return {"reason": "no tool", "lasting": False}
    if request["op"] == "codes":
        return {"arrays": packed({"code": np.zeros(CODE_WIDTH, np.float32)})}
    return {"arrays": packed({"rows": np.zeros((1, 164), np.float32)})}


if __name__ == "__main__":
    serve({"ready": lambda _: {}, "per_store": program, "codes": program})
