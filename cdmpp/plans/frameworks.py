"""Frameworks: what a training framework keeps for a decoder where frameworks differ.

What Megatron-core with Transformer Engine and nanotron do, and cuBLAS by its manual; no number is fitted. Which
settings matter was found by looking at errors on public runs. Sizes are bytes an element unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from cdmpp.devices.sheet import nearest
from cdmpp.errors import UsageError
from cdmpp.plans.framework_host import FrameworkHost
from cdmpp.plans.sizes import MIB
from cdmpp.steps.strategy import RankBytes


@dataclass(frozen=True)
class Framework:
    """These are its settings; ``dataclasses.replace`` gives those of a job that sets them otherwise."""

    name: str
    weight: int = 2
    gradient: int = 4
    """Buffer in which gradients are added up."""
    state: int = 12
    """Master weights and moments of Adam."""
    shards_state: bool = True
    """True if ranks with the same parameters divide the states (distributed optimizer, ZeRO 1)."""
    shards_all: bool = False
    """True if they divide weights and gradients too (FSDP)."""
    passing_gradient: int = 0
    """Gradients of a pass beside that buffer: each is there from its product to the end of the backward pass."""
    bucket: int = 0
    """Buckets in which replicas with whole states exchange gradients, of all parameters of a rank."""
    exchange_bytes: int = 0
    """Bytes of the gradients that replicas with whole states exchange together, while the last backward pass runs; 0:
    all of them together, behind it."""
    update_copies: int = 0
    """Whole parameters that the update writes where states are divided: what ranks gather."""
    gather_buffers: int = 0
    """Buffers, as wide as the model, in which products gather all tokens; they stay from step to step."""
    sequence_parallel: bool = False
    """True if ranks of tensor parallelism divide norms, dropout and what lies between blocks along the sequence."""
    keeps_gathered: bool = False
    """True if products keep the gathered input of all tokens; else it is gathered again in the backward pass."""
    balances_head: bool = False
    """True if stages are cut by the parameters of blocks and head; else each has as many blocks."""
    vocabulary_multiple: int = 128
    """The vocabulary is padded to a multiple of this and of the ranks of tensor parallelism."""
    attention: str = "flash"
    """``flash``: one kernel, which keeps its inputs and its result; ``unfused``: scores are stored."""
    attention_copies: int = 0
    """Further results of fused attention of two bytes an element that its kernel keeps for itself."""
    messages: int = 0
    """Messages that a stage of a pipeline holds beside what its ops read, such as the gradient that it sent last and
    the next input."""
    score_buffer: bool = False
    """True if stored scores are made in a buffer of their size that stays, as Megatron's own attention does."""
    float_softmax: bool = False
    """True if the softmax of stored scores computes, and keeps its result, in float32."""
    head_norms: bool = False
    """True if queries and keys are normed head by head."""
    rotary_copies: bool = False
    """True if queries, keys and values are laid out anew by heads, keys and values once more with positions, and both
    are kept."""
    activation_copies: int = 0
    """Results as wide as the inner layer that the activation keeps beside what it reads."""
    float_norms: bool = False
    """True if norms compute, and keep what they read, in float32."""
    dropout: bool = True
    """True if masks of dropout are kept, a byte an element."""
    recompute: str = "none"
    """``none``, ``full`` (every block), ``attention`` (scores only)."""
    holds_logits: bool = True
    """True if logits in the type of the products stay while those in float32 are there."""
    inplace_loss: bool = True
    """True if the loss works inside the logits in float32; else it writes and keeps them once more."""
    host_ahead: int = 0
    """Ops by which the host may be ahead of its device. What a collective used is free for others that much later:
    PyTorch asks the device whether the stream of the collective has got there."""
    waits_for_messages: bool = True
    """True if the host waits for each message between stages of a pipeline, and so is not ahead."""
    fused_norms: bool = True
    """True if a root mean square norm is one kernel; else its calls run one by one in float32."""
    host: FrameworkHost = FrameworkHost()
    """Its Python takes this around PyTorch."""
    blas_workspace_bytes: int = 2 * 32 * MIB
    """cuBLAS, of the two threads that launch; ``CUBLAS_WORKSPACE_CONFIG=:4096:8`` of deterministic jobs, and GPUs from
    Hopper on, have 32 MiB each, others 8.1 MiB."""
    kernel_workspace_bytes: int = 0
    """Other libraries of kernels."""

    def padded(self, vocabulary: int, tp: int) -> int:
        """Return the rows of the embedding of all ranks."""
        multiple = self.vocabulary_multiple * tp
        return -(-vocabulary // multiple) * multiple

    def rank_bytes(self, parameters: int, shards: int, replicas: int = 1) -> RankBytes:
        """Return what a rank holds of its parameters.

        Args:
            parameters: elements on a rank, before ranks with the same ones divide them.
            shards: ranks with the same parameters that divide states.
            replicas: ranks with the same parameters.
        """
        own = -(-parameters // shards) if self.shards_all else parameters
        state = -(-parameters // shards) if self.shards_state or self.shards_all else parameters
        return RankBytes(
            self.weight * own,
            self.state * state,
            self.gradient * own,
            self._update_bytes(parameters, shards),
            self.bucket * parameters if shards == 1 < replicas else 0,
            holds_gradients=True,
        )

    def _update_bytes(self, parameters: int, shards: int) -> int:
        """Return what ranks write to gather weights of which each has updated a part: that part too."""
        if shards == 1 or not self.update_copies:
            return 0
        return self.weight * (self.update_copies * parameters - (-parameters // shards))


_ASSUMED = {"unhidden": 0.1, "collective_s": 5e-5, "message_s": 2e-4, "far_message_s": 1e-3, "step_s": 1e-3}
"""Nobody publishes these; jobs of which something was measured fit their own."""
_MEGATRON_HOST = FrameworkHost(
    dispatch=1.8, **_ASSUMED,
    origin="1.8 times PyTorch's own time, as Megatron-core 0.9 takes on a CPU; its exchanges are assumed",
)  # fmt: skip
"""Measured by ``python -m benchmarks.plans.megatron_host``: 1.77 and 1.81 in two runs."""
_NANOTRON_HOST = FrameworkHost(
    dispatch=2.6, **_ASSUMED,
    origin="2.6 times PyTorch's own time, as small micro-batches of its sweep take; its exchanges are assumed",
)  # fmt: skip
"""A block with its exchanges takes 4.5 ms in jobs of 1 and 3 billion parameters on 4 and 8 tensor ranks, one stage and
one example at a time, whatever its width: there the host decides, and PyTorch's own time would be 1.5 ms."""
MEGATRON = Framework("megatron", attention_copies=1, messages=2, host=_MEGATRON_HOST)
"""Megatron-core with Transformer Engine: gradients are added into buffers in float32 by the kernels that make them, the
loss casts logits to float32 and works inside them; ``schedules.py`` keeps the gradient that it sent to the stage before
until it has the next one, and receives the next input meanwhile."""
NANOTRON = Framework(
    "nanotron", passing_gradient=2, bucket=2, exchange_bytes=2 * 25 * MIB, update_copies=2, gather_buffers=2,
    sequence_parallel=True, balances_head=True, vocabulary_multiple=1, rotary_copies=True, activation_copies=1,
    dropout=False, holds_logits=False, inplace_loss=False, host_ahead=256, host=_NANOTRON_HOST,
)  # fmt: skip
"""nanotron, as its branch of December 2024 runs Llama: gradients of a pass in bfloat16, added up in float32; buckets of
DDP where states are whole, of 25 MiB before they are added up, exchanged meanwhile; else all gradients are summed up
behind the passes, and copies of all weights are gathered; two buffers for all gathered tokens; norms in one kernel,
queries, keys and values laid out anew. A queue of CUDA has 1,024 entries, and an op here launches about four: kernels,
and events around collectives. That it is this queue, and not a shorter one, was taken with errors of the sweep's memory
in sight."""
FRAMEWORKS = {one.name: one for one in (MEGATRON, NANOTRON)}
_CHOICES = {"attention": ("flash", "unfused"), "recompute": ("none", "full", "attention")}


def framework_of(text: str) -> Framework:
    """Read a framework and its settings, such as ``megatron,sequence_parallel=true,attention=unfused``.

    ``UsageError`` for names and values that are unknown, with those that are known.
    """
    name, *given = text.replace(" ", "").split(",")
    if name not in FRAMEWORKS:
        raise UsageError(f"unknown framework {name!r}: expected {', '.join(FRAMEWORKS)}")
    found = FRAMEWORKS[name]
    names = [one.name for one in fields(Framework) if one.name not in ("name", "host")]
    names += [f"host.{one}" for one in FrameworkHost.LIMITS]
    for part in given:
        setting, _, value = part.partition("=")
        if (number := setting.removeprefix("host.")) != setting and number in FrameworkHost.LIMITS:
            try:
                own: Any = {number: float(value)}
                found = replace(found, host=replace(found.host, origin="as --framework says", **own))
            except ValueError as error:
                raise UsageError(f"framework setting {setting} is {value!r}: expected a number") from error
            continue
        if setting not in names:
            raise UsageError(f"framework {name}: {setting!r} is no setting; {nearest(setting, names)}")
        found = replace(found, **{setting: _value(setting, value, getattr(found, setting))})
    return found


def _value(setting: str, text: str, default: object) -> Any:
    """Read the value of a setting, which is of the type of its default."""
    known = ("true", "false") if isinstance(default, bool) else _CHOICES.get(setting, ())
    if known:
        if text not in known:
            raise UsageError(f"framework setting {setting} is {text!r}: expected {' or '.join(known)}")
        return text == "true" if isinstance(default, bool) else text
    least = 1 if setting == "vocabulary_multiple" else 0
    if not text.isdecimal() or len(text) > 12 or int(text) < least:
        raise UsageError(f"framework setting {setting} is {text!r}: expected a whole number from {least} up")
    return int(text)
