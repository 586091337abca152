"""Trained models: found, checked, loaded and saved, and their answers with the doubts that go with them."""
