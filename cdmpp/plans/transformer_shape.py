"""TransformerShape: sizes of a decoder, and the parameters of its stages on a rank of tensor parallelism."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.errors import CdmppError
from cdmpp.plans.few_heads import few_heads
from cdmpp.plans.frameworks import Framework


@dataclass(frozen=True)
class TransformerShape:
    """These are the sizes of a decoder, or of an encoder whose attention sees all tokens."""

    layers: int
    hidden: int
    heads: int
    inner: int
    vocabulary: int
    sequence: int
    kv_heads: int = 0
    """Heads of keys and values; 0: as many as there are heads."""
    is_gated: bool = False
    """True for SwiGLU: two products of the inner width, multiplied."""
    has_bias: bool = True
    positions: int = 0
    """Learned positions; 0: rotary ones."""
    is_tied: bool = True
    """True if the head has the embedding's parameters."""

    @property
    def head_size(self) -> int:
        """Return the width of a head."""
        return self.hidden // self.heads

    def check(self, tp: int, cp: int) -> None:
        """Raise ``CdmppError`` for ranks that do not divide heads, inner width or tokens, as Megatron does."""
        for what, size, ranks in (
            ("heads", self.heads, tp),
            ("heads of keys and values", self.kv_heads or self.heads, tp),
            ("the inner width", self.inner, tp),
            ("tokens", self.sequence, cp * tp),
        ):
            if size % ranks:
                why = few_heads(size, self.heads, ranks) if what.endswith("values") else ""
                raise CdmppError(f"{size} {what} do not divide among {ranks} ranks: Megatron refuses such a job{why}")

    def layer_parameters(self, tp: int) -> tuple[int, ...]:
        """Return the elements of each parameter of one block on a rank of tensor parallelism."""
        hidden, inner = self.hidden, self.inner * (2 if self.is_gated else 1)
        wide = hidden + 2 * (self.kv_heads or self.heads) * self.head_size
        found = [hidden, hidden * wide // tp, hidden * hidden // tp, hidden, hidden * inner // tp]
        found.append(hidden * self.inner // tp)
        return (*found, *((wide // tp, inner // tp, *[hidden] * 4) if self.has_bias else ()))  # of the norms too


@dataclass(frozen=True)
class StageOf:
    """These are the blocks of one stage."""

    blocks: int
    is_first: bool = True
    is_last: bool = True


def stored_score_bytes(shape: TransformerShape, batch: int, tp: int, cp: int) -> int:
    """Return the bytes of the scores of attention of one block on a rank, two bytes each."""
    return 2 * batch * shape.heads // tp * shape.sequence**2 // cp


def stage_parameters(shape: TransformerShape, framework: Framework, stage: StageOf, tp: int) -> int:
    """Return the parameters of a stage on a rank of tensor parallelism."""
    return sum(parameter_sizes(shape, framework, stage, tp))


def parameter_sizes(shape: TransformerShape, framework: Framework, stage: StageOf, tp: int) -> tuple[int, ...]:
    """Return the elements of each parameter of a stage on a rank of tensor parallelism."""
    embedding = framework.padded(shape.vocabulary, tp) // tp * shape.hidden
    found = list[int]()
    if stage.is_first:
        found += [embedding, *[shape.positions * shape.hidden] * (shape.positions > 0)]
    found += shape.layer_parameters(tp) * stage.blocks
    if stage.is_last:
        found += [shape.hidden] * (2 if shape.has_bias else 1)
        found += [embedding] * (not (stage.is_first and shape.is_tied))
    return tuple(found)
