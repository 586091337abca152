"""The code vector: what a CPU program's LLVM IR and machine code say, as ``code_features.json`` declares it.

Amounts are of a whole run of the program, ``hottest`` ones of one run of a piece of code. A change of any meaning bumps
``CODE_VERSION``; what makes numbers of the same meaning more exact raises ``CODE_READER``.
"""

from __future__ import annotations

from pathlib import Path

from cdmpp.features import names, prefixed, read_features

CODE_VERSION = "6"
CODE_READER = "6"
"""Version of the reader; vectors of an earlier one are derived again. 4: what decides branches is carried out, also in
vectors. 5: SSE is told apart as AVX is, and where both ways of a branch meet again bounds what data can change. 6:
masks are set, as when programs are measured."""
_DECLARED = read_features(Path(__file__).with_suffix(".json"))
CLASSES = _DECLARED["classes"]
"""Instructions of the IR, most of them by lanes: scalar, up to 128, 256 and 512 bits of float32."""
RESOURCES, EXTRA = _DECLARED["resources"], _DECLARED["extra"]
"""Bounds of a block of the IR, of which the largest counts, and cycles that come on top of it."""
KINDS = _DECLARED["kinds"]
"""Kinds of x86 instructions."""
MACHINE = (*_DECLARED["machine"], *KINDS)
"""Amounts of the machine code."""
MACHINE_AMOUNTS = names(MACHINE)

CODE_FEATURES = (
    *prefixed("n", CLASSES),
    *prefixed("cycles", (*RESOURCES, *EXTRA)),
    *_DECLARED["whole"],
    *prefixed("machine", MACHINE, "machine code: "),
    *_DECLARED["text"],
)
"""All but shares are stored as log2(1 + x)."""
CODE_NAMES = names(CODE_FEATURES)
CODE_WIDTH = len(CODE_FEATURES)
