"""Exact algorithms as pure functions on tensors, each with a slow reference twin."""
