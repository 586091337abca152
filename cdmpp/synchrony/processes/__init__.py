"""Real processes: workers and parameter servers of this machine, with quotas of CPU time and rates of links."""
