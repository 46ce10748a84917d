"""Random tiny models of many architectures, and what is asked of each: `python -m tools.zoo`."""
