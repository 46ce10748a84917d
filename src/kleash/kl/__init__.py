"""KL of token distributions: exact, estimated, as a penalty, and measured. Pure tensors."""
