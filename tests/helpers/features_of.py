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


def marked_tokens(feature, tokenizer):
    """The text of each token of a feature, and whether it is global."""
    pieces = tokenizer.convert_ids_to_tokens([int(token) for token in feature["input_ids"]])
    special = set(tokenizer.all_special_tokens)
    texts = [x if x in special else tokenizer.convert_tokens_to_string([x]) for x in pieces]
    return list(zip(texts, map(bool, feature["global_attention_mask"]), strict=True))
