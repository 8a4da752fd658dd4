"""Objectives, optimisers, Baum–Welch, the loop, checkpoints."""
