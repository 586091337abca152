"""Sources of programs: networks, tuning databases, scripts, sampled schedules; and the gate for other people's."""
