"""Traces of training jobs on several ranks: record, read, align, replay, ask what if, diagnose."""
