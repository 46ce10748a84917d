"""Training on rows that are there already: one loop for text, preference pairs and reward models."""
