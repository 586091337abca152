"""Records on disk and on their way into batches: importers, loading, splits, statistics."""
