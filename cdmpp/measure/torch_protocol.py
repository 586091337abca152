"""Rules by which a call of PyTorch's own operators is timed. A change of any constant needs a new protocol id."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.measure.protocol import CPU, GPU, Rule


@dataclass(frozen=True)
class TorchRule(Rule):
    """One visit to an operator is taken by this rule."""

    def describe(self, cores: int = 1) -> str:
        """Describe the protocol in words, for operators that run on ``cores`` processor cores, or on a GPU."""
        where = f"torch.set_num_threads({cores}) on pinned cores"
        if self is TORCH_GPU:
            where = "the stream is idle before each call, TF32 off, cudnn.benchmark off"
        return (
            f"{self.protocol_id}: {self.clock} around eager calls in inference mode, host dispatch included, {where}, "
            "outputs allocated by every call, warm caches (no flush), two warm-up calls, "
            f"{self.repeats_in_words()}; {self.visits_in_words('operators')}"
        )


TORCH_CPU = TorchRule("torch-cpu-v1", CPU.repeat_ms, CPU.repeats, CPU.too_slow_s, CPU.min_separation_s, "wall clock")
TORCH_GPU = TorchRule(
    "torch-gpu-v1", 0, ((0.003, 30), (0.030, 10), (float("inf"), 3)), 1.0, GPU.min_separation_s, "device events"
)
"""A repeat is one call: several in a row would hide what the host needs to dispatch them behind the device's work."""


def torch_rule(place: str) -> TorchRule:
    """Return the rule for the type of a torch device: ``cpu``, or any name of a GPU."""
    return TORCH_CPU if place == "cpu" else TORCH_GPU
