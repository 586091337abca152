"""Transforms: a step graph in, the same step with one thing changed out. None changes the graph that it is given."""
