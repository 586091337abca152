"""The leaf vector: what is said of one store. A change of any meaning bumps ``EXTRACTOR_VERSION``."""

from __future__ import annotations

from pathlib import Path

from cdmpp.features import Feature, names, prefixed, read_features

N_LOADS = 4
"""Loads described per store, heaviest first."""
N_LOOPS = 6
"""Innermost loops described per store, innermost first."""
CACHE_KIB = (16, 32, 256, 1024, 4096, 32768)
"""Capacities at which the miss curve is sampled."""
CROWDED_KIB = (16, 32, 48)
"""Sizes of a first-level cache for which lines that crowd into few of its sets are counted."""
PAGE_ENTRIES = (64, 1536)
"""Pages that the two levels of a CPU's TLB hold."""

DECLARED = read_features(Path(__file__).with_name("features.json"))
OPS = DECLARED["ops"]
"""Arithmetic of a store in a whole run of the program."""
CONTEXT = DECLARED["context"]
"""The place of a store."""
ACCESS = DECLARED["access"]
"""One load or store."""
LOOP = DECLARED["loop"]
"""One of the loops around a store."""
MISSES = tuple(
    Feature(f"miss_bytes_{kib}kib", "bytes", f"what reaches beyond a cache of {kib} KiB") for kib in CACHE_KIB
)
CROWDED_MISSES = (
    *(
        Feature(f"crowded_miss_bytes_{kib}kib", "bytes", f"the same beyond {kib} KiB in 64 sets, which rows may crowd")
        for kib in CROWDED_KIB
    ),
    *(Feature(f"page_misses_{n}", "pages", f"translations beyond a TLB of {n} pages") for n in PAGE_ENTRIES),
)
FOOTPRINT = Feature("footprint_bytes", "bytes", "cache lines of all accesses")
MEMORY = (*MISSES, FOOTPRINT, *CROWDED_MISSES)
"""The demands of a store and its loads on the memory."""

LEAF_FEATURES = (
    *prefixed("ops", OPS),
    *CONTEXT,
    *prefixed("store", ACCESS, "the store: "),
    *(f for i in range(N_LOADS) for f in prefixed(f"load{i}", ACCESS, f"load {i}: ")),
    *(f for i in range(N_LOOPS) for f in prefixed(f"loop{i}", LOOP, f"loop {i}: ")),
    *MEMORY,
)
LEAF_NAMES = names(LEAF_FEATURES)
LEAF_WIDTH = len(LEAF_FEATURES)
