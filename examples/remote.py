"""A compiler or a CI job that asks a server: how long will this take on an H100? Imports neither torch nor TVM."""

import re
import subprocess
import sys

import cdmpp
from cdmpp.errors import UsageError
from cdmpp.operators.operator import EagerOperator
from cdmpp.report import to_text

# Usually the server is another machine, where somebody ran `cdmpp serve`. Here it is a process on a free port.
words = [sys.executable, "-m", "cdmpp.cli", "serve", "--port", "0", "--processes", "1", "--plan-processes", "1"]
started = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
try:
    url = re.search(r"http://\S+", started.stderr.readline()).group()
    with cdmpp.remote(url) as server:
        server.wait_until_ready(120)

        layer = EagerOperator("linear", {"rows": 4096, "inner": 4096, "cols": 4096}, "bfloat16")
        print(f"one layer: {server.predict(layer, device='h100').latency_s[0] * 1e6:.0f} us")

        workload = cdmpp.Workload("bert_tiny", batch=64, optimizer="adamw")
        step = server.predict_step(workload, device="h100", runtime="torch")
        print(to_text(step, rows=5))

        replayed = cdmpp.replay_step(step, ranks=8, link="nvlink4", strategy="fsdp")  # here, of what the server said
        print(f"{replayed.iteration_s * 1e6:.0f} us a step on eight of them")

        plans = server.search_plans(workload, device="h100", ranks=8, link="nvlink4", global_batch=512)
        print(f"best plan: {plans.best.words}")

        try:
            server.predict_network("my_model.py:make", device="h100", runtime="torch")
        except UsageError as error:
            print(f"refused: {str(error)[:60]}")
finally:
    started.terminate()  # it ends what runs, and takes nothing new
    started.wait(120)
print(f"the server ended with status {started.returncode}")
print(f"torch was imported here: {'torch' in sys.modules}")
