"""Writes a tiny reward model with random weights, then prepares inputs: `classifier.py FOLDER REQUEST OUT`.

In one process, since importing the libraries takes longer than either.
"""

import sys
from pathlib import Path

SAID = [[{"role": "user", "content": f"{number} + {number}?"}] for number in range(40)]


def write_classifier(folder, *, labels=1, template=True, head=True):
    """A Qwen2 with a head of so many labels, or without one's weights, and a tokenizer with or without a template."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

    from node.tiny import write_builtin

    write_builtin("builtin:tiny-qwen2", folder, SAID, 0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    config = Qwen2Config(
        vocab_size=len(tokenizer), **sizes, num_key_value_heads=2, max_position_embeddings=512, num_labels=labels
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = (Qwen2ForSequenceClassification if head else Qwen2ForCausalLM)(config)
        if head:
            with torch.no_grad():
                model.score.weight.mul_(8)  # scores that differ by more than rounding
    config.architectures = ["Qwen2ForSequenceClassification"]
    model.save_pretrained(folder)
    if not head:
        text = (folder / "config.json").read_text()
        (folder / "config.json").write_text(text.replace("Qwen2ForCausalLM", "Qwen2ForSequenceClassification"))
    if not template:
        tokenizer.chat_template = None
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    classifier, request, out = sys.argv[1:]
    write_classifier(Path(classifier))
    from node.exit_codes import run
    from node.inputs import main

    sys.argv = ["inputs", "--request", request, "--out", out]
    sys.exit(run(main))
