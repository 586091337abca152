"""Real processes: the stages of a network, one a process, trained under a schedule."""
