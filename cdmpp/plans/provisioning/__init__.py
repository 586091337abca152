"""Provisioning: how many replicas of which size, and parameter servers, a budget of machines should buy."""
