#!/usr/bin/env bash
# Calculon (github.com/calculon-ai/calculon, commit caa4b11): operations that a block runs again count each layer's
# predecessors once more, and that is what hides less of the exchange of gradients.
#
# What surprises: with activation_recompute "full" a block runs its forward pass again, so that "block_re_flops" should be
# "block_fw_flops". It is 7.6 times as many: for each layer that runs again the total of all layers so far is added
# (calculon/llm/llm.py, _compute_block_stats: "self._block_re_flops += self._block_fw_flops"). The seconds of accesses to
# memory are added up so too. They are taken off the time behind which gradients may be exchanged (data_par_overlap), which
# gets negative: overlapped exchanges then take more of a step than exchanges without overlap do. The time that runs again,
# block_re_time, is right.
#
# Expected: block_re_flops equals block_fw_flops, and exchanges that overlap are in the open no longer than others.
# Needs: git and a pip index; CALCULON=FOLDER takes a clone that is there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
commit=caa4b11f8fe1fee3ba57adaacb7590d7deabd053
git clone --quiet "${CALCULON:-https://github.com/calculon-ai/calculon}" "$folder/calculon"
git -C "$folder/calculon" checkout --quiet "$commit"
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check install pandas==3.1.1 psutil==7.2.2
cd "$folder/calculon"
"$folder/venv/bin/python" - <<'PYTHON'
import json
import logging
import sys

sys.path.insert(0, ".")
from calculon.llm import Llm, System

plan = {
    "num_procs": 64, "tensor_par": 8, "pipeline_par": 1, "data_par": 8, "tensor_par_net": 0, "pipeline_par_net": 0,
    "data_par_net": 1, "batch_size": 64, "microbatch_size": 1, "datatype": "float16", "fused_activation": True,
    "attention_type": "multihead", "activation_recompute": "full", "pipeline_interleaving": 1,
    "optimizer_sharding": False, "tensor_par_comm_type": "ar", "tensor_par_overlap": "none", "seq_par_ag_redo": False,
    "data_par_overlap": False, "weight_offload": False, "activations_offload": False, "optimizer_offload": False,
    "training": True,
}
system = json.load(open("systems/h100_80g_nvl8.json"))
system["mem1"]["GiB"] = 1 << 20
open_s = {}
for overlap in (False, True):
    model = Llm(Llm.Application(json.load(open("models/gpt3-175B.json"))), logging.Logger("quiet", logging.CRITICAL))
    own = System(system)
    model.compile(own, Llm.Execution.from_json(plan | {"data_par_overlap": overlap}))
    model.run(own)
    open_s[overlap] = model.get_dp_comm_exposed_time()
ratio = model._block_re_flops / model._block_fw_flops
print(f"operations that run again over those of the forward pass: {ratio:.1f}")
print(f"exchange of gradients in the open: {open_s[False]:.3f} s, overlapped {open_s[True]:.3f} s")
sys.exit(0 if ratio > 2 and open_s[True] > open_s[False] else 1)
PYTHON
