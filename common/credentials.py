"""Does a text hold what looks like a key or a token of a service, under whatever name?"""

from __future__ import annotations

import re

# The shapes that services give theirs so that they can be found: Hugging Face, OpenAI and its like, GitHub, AWS, Slack,
# and JSON web tokens. wandb's older keys are 40 hex digits, as a commit is: those are told by their names alone.
CREDENTIAL = re.compile(
    r"\b(hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|AKIA[0-9A-Z]{16}"
    r"|xox[abprs]-[\w-]{10,}|wandb_v\d_\w{20,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,})"
)
