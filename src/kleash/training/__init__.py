"""Runs: the online loop and the one on rows, their configs, checkpoints, and what is done when something goes wrong."""
