"""The papers' studies and our own, their published figures, and our results. Not installed; imports trellis only."""
