"""Partitions: a network cut over devices that may differ, and the schedules in which the parts train."""
