"""The models: kernel and leaf vectors with a datasheet in, log-latency out. Paper section 5."""
