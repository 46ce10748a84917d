"""Task scores of both models, paired by item: was the drift worth it? No torch."""
