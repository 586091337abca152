"""Fitting a model to records: configuration, losses, resumable runs, metrics, samplers of tasks."""
