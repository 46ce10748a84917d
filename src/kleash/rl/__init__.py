"""Pure tensors: advantages, importance ratios and policy losses."""
