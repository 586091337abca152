"""The oracle of plans beside public measurements and real runs: sections of pages below ``docs/results``."""

PAGES = {
    "plans": ("gloo", "looped", "tensor_steps", "paradl", "alpa", "alpa_experts", "sailor"),
    "large-jobs": ("torchtitan", "mpt", "vtrain", "nanotron", "megatron_bridge", "large_peers"),
}
"""Page -> modules of this folder, in the order of the page."""
