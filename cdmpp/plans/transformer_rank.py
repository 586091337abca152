"""One stage of a decoder as a framework runs it: its ops with the bytes that they write and keep, from sizes alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from cdmpp.errors import CdmppError
from cdmpp.plans.frameworks import Framework
from cdmpp.plans.op_kinds import LOGITS
from cdmpp.steps.step_graph import ModuleSpan, Op, RankGraph


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
                raise CdmppError(f"{size} {what} do not divide among {ranks} ranks: Megatron refuses such a job")

    def layer_parameters(self, tp: int) -> int:
        """Return the parameters of one block on a rank of tensor parallelism."""
        keys = 2 * (self.kv_heads or self.heads) * self.head_size
        wide, inner = self.hidden + keys, self.inner * (2 if self.is_gated else 1)
        found = (self.hidden * wide + self.hidden * self.hidden + self.hidden * (inner + self.inner)) // tp
        if self.has_bias:
            found += (wide + inner) // tp + 2 * self.hidden + 2 * self.hidden  # of the norms too
        return found + 2 * self.hidden


@dataclass(frozen=True)
class StageOf:
    """These are the blocks of one stage."""

    blocks: int
    is_first: bool = True
    is_last: bool = True


def stage_parameters(shape: TransformerShape, framework: Framework, stage: StageOf, tp: int) -> int:
    """Return the parameters of a stage on a rank of tensor parallelism."""
    embedding = framework.padded(shape.vocabulary, tp) // tp * shape.hidden
    found = stage.blocks * shape.layer_parameters(tp)
    found += (embedding + shape.positions * shape.hidden) * stage.is_first
    if stage.is_last:
        found += (2 if shape.has_bias else 1) * shape.hidden
        found += embedding * (not (stage.is_first and shape.is_tied))
    return found


def stage_rank(
    shape: TransformerShape, framework: Framework, stage: StageOf, batch: int, tp: int = 1, cp: int = 1
) -> RankGraph:
    """Return the ops of one micro-batch of a stage; seconds are none, and gradients of parameters are not among them.

    Args:
        shape: of the model.
        framework: that runs it.
        stage: the blocks of the stage.
        batch: examples of the micro-batch.
        tp: ranks of tensor parallelism.
        cp: ranks that divide the sequence.

    Raises:
        CdmppError: ranks that do not divide the model.
    """
    shape.check(tp, cp)
    return _Stage(shape, framework, stage, batch, tp, cp).rank()


@dataclass
class _Stage:
    """Sizes of results are in bytes."""

    shape: TransformerShape
    framework: Framework
    stage: StageOf
    batch: int
    tp: int
    cp: int
    ops: list[Op] = field(default_factory=list)
    back: list[tuple[int, int, tuple[int, ...], int]] = field(default_factory=list)
    """Of each op of the forward pass with a backward one: its place, bytes of that, what it reads of the forward pass,
    and its workspace."""
    spans: list[tuple[int, int]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens of a rank inside operators that are divided."""
        return self.shape.sequence * self.batch // self.cp

    @property
    def wide(self) -> int:
        """Bytes of a result as wide as the model between blocks."""
        return 2 * self.shape.hidden * self.tokens // (self.tp if self.framework.sequence_parallel else 1)

    @property
    def gathered(self) -> int:
        """Bytes of the same with all tokens, where it is gathered for a product."""
        return 2 * self.shape.hidden * self.tokens if self.framework.sequence_parallel and self.tp > 1 else 0

    @property
    def again(self) -> int:
        """Bytes that each product gathers for itself, in both passes."""
        return 0 if self.framework.keeps_gathered else self.gathered

    def op(
        self, name: str, kind: str, size: int, reads: tuple[int, ...], keeps: tuple[int, ...] = (), own: int = 0,
        is_kept: bool = False, workspace: int = 0, gradient: int | None = None, held: tuple[int, ...] = (),
    ) -> int:  # fmt: skip
        """Add an op of the forward pass, and note its backward one.

        Args:
            name: its name.
            kind: kind of its work.
            size: bytes of its result.
            reads: places of what it reads.
            keeps: places of the results among them that its backward pass reads.
            own: bytes beside its result that its backward pass reads, such as a mask.
            is_kept: whether its backward pass reads its own result.
            workspace: bytes beside, while either of the two runs.
            gradient: bytes of the gradient that its backward pass writes; None: those of the first that it reads.
            held: places of results that stay until it ran.
        """
        place = len(self.ops)
        self.ops.append(
            Op(
                f"{name}#{place}",
                "forward",
                0.0,
                kind=kind,
                output_bytes=size + own,
                inputs=reads,
                saved_bytes=own + size * is_kept,
                own_saved_bytes=own + size * is_kept,
                result_bytes=size,
                workspace_bytes=workspace,
                held=held,
            )  # fmt: skip
        )
        for one in keeps:
            self._save(one)
        wanted = self.ops[reads[0]].result_bytes if gradient is None and reads else gradient
        self.back.append((place, wanted or 0, (*([place] if own or is_kept else []), *keeps), workspace))
        return place

    def _save(self, place: int) -> None:
        from dataclasses import replace

        op = self.ops[place]
        own = op.own_saved_bytes or 0
        kept = own if own >= op.output_bytes else own + (op.result_bytes or 0)
        self.ops[place] = replace(op, saved_bytes=min(kept, op.output_bytes))

    def rank(self) -> RankGraph:
        """Return the graph."""
        if self.stage.is_first:
            at = self._dropped(self.op("embedding", "embedding", self.wide, ()))
        else:
            at = self.op("received", "received", self.wide, ())
        for _ in range(self.stage.blocks):
            first = len(self.ops)
            at = self._block(at)
            self.spans.append((first, at))
        if self.stage.is_last:
            self._head(at)
        return self._with_backward()

    def _dropped(self, at: int) -> int:
        """Drop out, with a mask of a byte an element."""
        return self.op("dropout", "dropout", self.wide, (at,), own=self.wide // 2) if self.framework.dropout else at

    def _block(self, at: int) -> int:
        shape, setting, tokens = self.shape, self.framework, self.tokens
        q = 2 * tokens * shape.hidden // self.tp
        keys = 2 * 2 * tokens * (shape.kv_heads or shape.heads) * shape.head_size // self.tp
        norm = self._gather(self._norm(at))
        qkv = self.op("qkv", "linear", q + keys, (norm,), (norm,), workspace=self.again)
        if setting.head_norms:
            qkv = self.op("head norms", "norm", q + keys, (qkv,), (qkv,))
        if setting.rotary_copies:
            qkv = self.op("rotary", "rotary", q + keys, (qkv,))
            self._save(qkv)
        found = self._attention(qkv, q)
        proj = self.op("proj", "linear", self.wide, (found,), (found,), workspace=self.gathered)
        added = self.op("add", "add", self.wide, (self._dropped(proj), at))
        norm = self._gather(self._norm(added))
        inner = 2 * tokens * shape.inner // self.tp
        one = self.op("fc1", "linear", (1 + shape.is_gated) * inner, (norm,), (norm,), workspace=self.again)
        copies = setting.activation_copies * inner
        act = self.op("act", "activation", inner, (one,), (one,), own=copies)
        two = self.op("fc2", "linear", self.wide, (act,), (act,), workspace=self.gathered)
        return self.op("add", "add", self.wide, (self._dropped(two), added))

    def _gather(self, at: int) -> int:
        """Gather all tokens, where products keep that."""
        if not self.gathered or self.again:
            return at
        return self.op("gather", "gather", self.gathered, (at,))

    def _norm(self, at: int) -> int:
        own = 2 * self.wide if self.framework.float_norms else 0
        return self.op("norm", "norm", self.wide, (at,), () if own else (at,), own=own)

    def _attention(self, qkv: int, q: int) -> int:
        setting, tokens = self.framework, self.tokens
        if setting.attention == "flash":
            own = 4 * tokens * self.shape.heads // self.tp + setting.attention_copies * q
            return self.op("attention", "attention", q, (qkv,), (qkv,), own=own, is_kept=True)
        scores = 2 * self.batch * self.shape.heads // self.tp * self.shape.sequence**2 // self.cp
        again = setting.recompute == "attention"
        product = self.op("scores", "attention", scores, (qkv,), (qkv,), workspace=scores if again else 0)
        softmax = self.op("softmax", "attention", scores, (product,), is_kept=not again)
        mask = scores // 2 if setting.dropout and not again else 0
        dropped = self.op("dropped", "attention", scores, (softmax,), own=mask) if setting.dropout else softmax
        return self.op("context", "attention", q, (dropped, qkv), (qkv,) if again else (dropped, qkv))

    def _head(self, at: int) -> int:
        shape, setting = self.shape, self.framework
        logits = 2 * self.tokens * setting.padded(shape.vocabulary, self.tp) // self.tp
        norm = self._gather(self._norm(at))
        made = self.op("logits", LOGITS, logits, (norm,), (norm,), workspace=self.again)
        cast = self.op("float", LOGITS, 2 * logits, (made,), gradient=logits)
        held = (made,) if setting.holds_logits else ()
        if setting.inplace_loss:
            return self.op("loss", LOGITS, 0, (cast,), (cast,), gradient=0, held=held)
        return self.op("loss", LOGITS, 0, (cast,), own=2 * logits, workspace=2 * logits, gradient=0, held=held)

    def _with_backward(self) -> RankGraph:
        """Add the backward pass: gradients of what is read twice are added up where the first of them stands."""
        ops, gradients, spans = list(self.ops), dict[int, list[int]](), dict[int, list[int]]()
        owner = {place: number for number, (a, b) in enumerate(self.spans) for place in range(a, b + 1)}
        for place, size, keeps, workspace in reversed(self.back):
            op = self.ops[place]
            read = gradients.get(place, [])
            if op.kind == "add":  # its gradient is that of both that it adds
                for one in op.inputs:
                    gradients.setdefault(one, []).extend(read)
                continue
            inputs = (*keeps, *read) if not size and keeps else (*read, *keeps)  # what works in place names it first
            new = len(ops)
            ops.append(
                Op(
                    f"{op.name} backward#{new}",
                    "backward",
                    0.0,
                    kind=op.kind,
                    output_bytes=size,
                    inputs=inputs,
                    forward=place,
                    workspace_bytes=workspace,
                )  # fmt: skip
            )
            if place in owner:
                spans.setdefault(owner[place], []).append(new)
            if op.inputs:
                gradients.setdefault(op.inputs[0], []).append(new)
        modules = tuple(
            ModuleSpan(f"block.{number}", 1, span, (min(spans[number]), max(spans[number])))
            for number, span in enumerate(self.spans)
        )
        return RankGraph(0, tuple(ops), modules=modules)
