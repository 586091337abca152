"""Held-out error of the models and of the baselines on the same splits and labels, and the tables made of it."""
