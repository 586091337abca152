#!/usr/bin/env bash
# The order that Schedule1F1B lists for the last stage of a pipeline is none that can run: it has no forward pass of
# micro-batch 0, and one of a micro-batch that does not exist.
#
# Versions: torch 2.13.0, Python 3.11 to 3.13.
# Expected: _get_pipeline_order() lists for each rank the actions that the schedule runs, as its docstring says ("Returns
# the pipeline execution order as a schedule IR"), and as it does for GPipe and for all other stages of 1F1B.
# Found: 4 stages, 8 micro-batches. Stages 0 to 2 list the forward passes 0..7 and run them. Stage 3 lists 1..8 and runs
# 0..7: the counter of the steady phase begins at 0 and is raised before it is used, which is right only behind a warm-up
# pass, and the last stage has none. Whoever draws or simulates the list gets a pipeline that waits for ever.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.4
cat > "$folder/shows.py" <<'PYTHON'
import sys

import torch
from torch.distributed.pipelining.schedules import Schedule1F1B

STAGES, COUNT = 4, 8


class Stage:
    """A stage that computes nothing and notes its forward passes."""

    is_first = is_last = has_backward = False
    group, num_stages = None, STAGES

    def __init__(self, number):
        self.stage_index, self.ran = number, []

    def forward_one_chunk(self, number, *_, **__):
        self.ran.append(number)

    def __getattr__(self, name):
        return (lambda _: []) if name.startswith("get_") else (lambda *_, **__: None)


ok = True
for number in range(STAGES):
    stage = Stage(number)
    schedule = Schedule1F1B(stage, COUNT)
    listed = [
        one.microbatch_index
        for one in schedule._get_pipeline_order()[number]
        if one is not None and one.computation_type.value == "F"
    ]
    schedule._initialize_stage = lambda *_: None
    schedule._step_microbatches([()] * COUNT, [{}] * COUNT, return_outputs=False)
    print(f"torch {torch.__version__}, stage {number}: lists forward passes {listed}, runs {stage.ran}")
    ok &= stage.ran == list(range(COUNT)) and (listed == list(range(1, COUNT + 1))) == (number == STAGES - 1)
    ok &= number == STAGES - 1 or listed == stage.ran
sys.exit(0 if ok else "the listed order is another one now")
PYTHON
"$folder/venv/bin/python" "$folder/shows.py"
