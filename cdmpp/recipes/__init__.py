"""From data to a saved model: train, fine-tune to a new device, do without its records."""
