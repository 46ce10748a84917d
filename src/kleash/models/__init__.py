"""The only folder that knows transformers and peft: the policy, its reference, the sampler, the catalog."""

import logging

# peft loads torchao wherever it is installed, which then lists the kernels that this build of torch has no use for.
for _chatty in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_chatty).setLevel(logging.ERROR)
