"""From what a model says to what can be promised: intervals, and programs unlike the training data."""
