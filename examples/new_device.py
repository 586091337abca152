"""Ask about a device that no file describes: a sheet with what its documents say. Needs torch, no TVM."""

from dataclasses import replace

import torch
from torch import nn

import cdmpp
from cdmpp import devices

# The nearest device, with the numbers that differ. A file in conf/device does the same for the command line.
mine = replace(devices.get("l4").with_spec(clock_mhz=1900.0, core_count=48, bandwidth_gbps=450.0), name="my-gpu")

layer = cdmpp.Workload(nn.Linear(4096, 4096), torch.zeros(1024, 4096))
prediction = cdmpp.predict_network(layer, device=mine, runtime="torch")
print(f"{prediction.latency_s * 1e6:.0f} us, by the datasheet")
for warning in prediction.warnings:
    print(warning)
