"""One stage of a decoder as a framework runs it: its ops with the bytes that they write and keep, from sizes alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from cdmpp.plans.frameworks import Framework
from cdmpp.plans.op_kinds import LOGITS, PARAMETERS
from cdmpp.plans.transformer_shape import StageOf, TransformerShape, stored_score_bytes
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import Op, RankGraph


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
    back: list[tuple[int, int, tuple[int, ...], int, int]] = field(default_factory=list)
    """Each op of the forward pass with a backward one has its place, bytes of that, what it reads of the forward pass,
    its workspace, and elements of parameters whose gradients it writes."""
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
        back: int | None = None, parameters: int = 0,
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
            back: bytes beside while its backward pass runs, where they are others.
            parameters: elements whose gradients its backward pass writes.
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
        beside = workspace if back is None else back
        self.back.append((place, wanted or 0, (*([place] if own or is_kept else []), *keeps), beside, parameters))
        return place

    def _save(self, place: int) -> None:
        from dataclasses import replace

        op = self.ops[place]
        own = op.own_saved_bytes or 0
        kept = own if own >= op.output_bytes else own + (op.result_bytes or 0)
        self.ops[place] = replace(op, saved_bytes=min(kept, op.output_bytes))

    def rank(self) -> RankGraph:
        """Return the graph."""
        first = self.stage.is_first
        at = self._dropped(self._embedding()) if first else self.op("received", "received", self.wide, ())
        for _ in range(self.stage.blocks):
            begin = len(self.ops)
            at = self._block(at)
            self.spans.append((begin, at))
        if self.stage.is_last:
            self._head(at)
        return self._with_backward()

    def _embedding(self) -> int:
        many = self.framework.padded(self.shape.vocabulary, self.tp) // self.tp * self.shape.hidden
        if not (self.framework.gather_buffers and self.gathered):
            return self.op("embedding", "embedding", self.wide, (), parameters=many)
        made = self.op("embedding", "embedding", self.gathered, (), parameters=many)
        return self.op("masked", "embedding", self.wide, (made,), workspace=self.gathered)

    def _dropped(self, at: int) -> int:
        """Drop out, with a mask of a byte an element."""
        return self.op("dropout", "dropout", self.wide, (at,), own=self.wide // 2) if self.framework.dropout else at

    def _block(self, at: int) -> int:
        shape, setting, tokens = self.shape, self.framework, self.tokens
        q = 2 * tokens * shape.hidden // self.tp
        keys = 2 * 2 * tokens * (shape.kv_heads or shape.heads) * shape.head_size // self.tp
        norm = self._gather(self._norm(at))
        qkv = self._product("qkv", q + keys, norm, shape.hidden * (q + keys) // (2 * tokens))
        if setting.head_norms:
            qkv = self.op("head norms", "norm", q + keys, (qkv,), (qkv,))
        found = self._attention(qkv, q, keys)
        back = 0 if setting.gather_buffers else self.gathered
        proj = self.op(
            "proj", "linear", self.wide, (found,), (found,), workspace=self.gathered, back=back,
            held=(qkv,) if setting.rotary_copies else (), parameters=shape.hidden**2 // self.tp,
        )  # fmt: skip
        added = self.op("add", "add", self.wide, (self._dropped(proj), at))
        norm = self._gather(self._norm(added))
        inner, many = 2 * tokens * shape.inner // self.tp, shape.inner * shape.hidden // self.tp
        one = self._product("fc1", (1 + shape.is_gated) * inner, norm, (1 + shape.is_gated) * many)
        copies = setting.activation_copies * inner
        act = self.op("act", "activation", inner, (one,), (one,), own=copies)
        two = self.op(
            "fc2", "linear", self.wide, (act,), (act,), workspace=self.gathered, back=back, parameters=many
        )  # fmt: skip
        return self.op("add", "add", self.wide, (self._dropped(two), added))

    def _product(self, name: str, size: int, at: int, parameters: int, kind: str = "linear") -> int:
        """Multiply what may be gathered for it, in buffers that stay or in bytes of its own."""
        if not self.framework.gather_buffers:
            return self.op(name, kind, size, (at,), (at,), workspace=self.again, parameters=parameters)
        return self.op(name, kind, size, (at,), (at,), back=self.gathered, parameters=parameters)

    def _gather(self, at: int) -> int:
        """Gather all tokens, where products keep that."""
        if not self.gathered or self.again:
            return at
        return self.op("gather", "gather", self.gathered, (at,))

    def _norm(self, at: int) -> int:
        own = 2 * self.wide if self.framework.float_norms else 0
        return self.op("norm", "norm", self.wide, (at,), () if own else (at,), own=own)

    def _attention(self, qkv: int, q: int, keys: int) -> int:
        setting, tokens = self.framework, self.tokens
        read: tuple[int, ...] = (qkv,)
        if setting.rotary_copies:
            read = self._laid_out(qkv, q, keys)
        if setting.attention == "flash":
            own = 4 * tokens * self.shape.heads // self.tp + setting.attention_copies * q
            back = 2 * q if setting.rotary_copies else 0
            return self.op(
                "attention", "attention", q, read, read, own=own, is_kept=True, back=back, gradient=q + keys
            )  # fmt: skip
        scores = stored_score_bytes(self.shape, self.batch, self.tp, self.cp)
        again = setting.recompute == "attention"
        product = self.op("scores", "attention", scores, read, read, workspace=scores if again else 0)
        softmax = self._softmax(product, scores, again)
        mask = scores // 2 if setting.dropout and not again else 0
        dropped = self.op("dropped", "attention", scores, (softmax,), own=mask) if setting.dropout else softmax
        return self.op("context", "attention", q, (dropped, qkv), (qkv,) if again else (dropped, qkv))

    def _softmax(self, product: int, scores: int, again: bool) -> int:
        if not self.framework.float_softmax:
            return self.op("softmax", "attention", scores, (product,), is_kept=not again)
        made = self.op("softmax", "attention", 2 * scores, (product,), is_kept=not again, workspace=2 * scores)
        return self.op("half", "attention", scores, (made,), gradient=2 * scores)

    def _laid_out(self, qkv: int, q: int, keys: int) -> tuple[int, ...]:
        """Lay out heads, and keys and values once more with their positions; queries are turned in place.

        Queries are a view of all three where keys have as many heads, so all three stay.
        """
        is_one = keys == 2 * q
        heads = self.op("heads", "rotary", q + keys if is_one else q, (qkv,), gradient=q + keys, back=q + keys)
        joined = self.op("keys", "rotary", keys, (heads,), gradient=q + keys)
        turned = self.op("rotary", "rotary", keys, (joined,), gradient=keys)
        return turned, heads

    def _head(self, at: int) -> int:
        shape, setting = self.shape, self.framework
        logits = 2 * self.tokens * setting.padded(shape.vocabulary, self.tp) // self.tp
        norm = self._gather(self._norm(at))
        many = setting.padded(shape.vocabulary, self.tp) // self.tp * shape.hidden
        made = self._product("logits", logits, norm, many, LOGITS)
        cast = self.op("float", LOGITS, 2 * logits, (made,), gradient=logits)
        held = (made,) if setting.holds_logits else ()
        own = 0 if setting.inplace_loss else 2 * logits
        return self.op("loss", LOGITS, 0, (cast,), () if own else (cast,), own=own, gradient=0, held=held)

    def _with_backward(self) -> RankGraph:
        """Add the backward pass: gradients of what is read twice are added up where the first of them stands."""
        ops, gradients, spans = list(self.ops), dict[int, list[int]](), dict[int, list[int]]()
        owner = {place: number for number, (a, b) in enumerate(self.spans) for place in range(a, b + 1)}
        made = list[int]()
        for place, size, keeps, workspace, parameters in reversed(self.back):
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
            if op.inputs:
                gradients.setdefault(op.inputs[0], []).append(new)
            if parameters and self.framework.passing_gradient:
                made.append(len(ops))
                size = self.framework.passing_gradient * parameters
                ops.append(
                    Op(f"{op.name} gradient", "backward", 0.0, kind=PARAMETERS, output_bytes=size, inputs=inputs)
                )
            if place in owner:
                spans.setdefault(owner[place], []).extend(range(new, len(ops)))
        if made:
            ops.append(Op("add gradients", "backward", 0.0, kind=PARAMETERS, inputs=tuple(made)))
        modules = tuple(
            ModuleSpan(f"block.{number}", 1, span, (min(spans[number]), max(spans[number])))
            for number, span in enumerate(self.spans)
        )
        return RankGraph(0, tuple(ops), modules=modules)
