"""The only folder that knows transformers and peft: the policy, its reference, the sampler, the catalog."""
