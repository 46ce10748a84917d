"""Compares two models: how far one has moved from the other."""
