"""Training steps to tensor programs: a torch model with a loss through its joint graph to a Relax module."""
