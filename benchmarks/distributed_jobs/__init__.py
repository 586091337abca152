"""Real training jobs between network namespaces: measured, traced, replayed and asked what if."""
