"""Encoded windows of documents, made up."""


def feature(length, document=0, marked=1, **extra):
    """One of ``length`` tokens, the first ``marked`` of them global."""
    mask = [1] * marked + [0] * (length - marked)
    return {
        "input_ids": list(range(40_000, 40_000 + length)),
        "global_attention_mask": mask,
        "document": document,
        "tokens": length,
        "flags": {},
    } | extra
