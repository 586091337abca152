"""Plans judged by closed form beside those of other projects, in one process: ``docs/results/peers.md``."""
