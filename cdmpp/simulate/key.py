"""Key: what a task or a resource is."""

from __future__ import annotations

from typing import Any

Key = str | tuple[Any, ...]
"""A word, or a NamedTuple whose fields say what it is. Keys of one graph are all of one kind."""
