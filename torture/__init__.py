"""A fault bench: kills, damaged files, absurd settings, hostile calls, full disks; what came of each, counted."""
