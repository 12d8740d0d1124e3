"""One-line explanation of each metric, with the direction that is better."""

# Names of metrics and of columns, and of what begins or ends so ("answered_…", "…_f1").
_HIGHER = {
    "accuracy": "share of the documents that are answered rightly",
    "exact_match": "share of the documents whose answer is right as a whole",
    "coverage": "share of the documents that have an answer; the others are left to a person",
    "macro_f1": "mean of the F1 of all classes, rare ones counting as much as frequent ones",
    "micro_f1": "F1 of all labels of all documents taken together",
    "macro_average_precision": "mean over the classes of the precision at each step of recall",
    "macro_roc_auc": "mean of roc_auc over the classes; 50 is what scores at random have",
    "average_precision": "mean precision over the steps of recall",
    "roc_auc": "chance that a document of the class has a higher score than one without it",
    "precision": "share of what was found that is right",
    "recall": "share of what is right that was found",
    "f1": "harmonic mean of precision and recall",
    "pearson": "linear correlation with the right numbers, from -1 to 1",
    "spearman": "correlation of the ranks with those of the right numbers, from -1 to 1",
    "ndcg@10": "gain of the first ten documents, late ones counting less, of the best order's",
    "mrr@10": "mean of 1 / place of the first relevant document, 0 beyond ten",
    "recall@10": "share of the relevant documents that are among the first ten",
    "map": "mean over the queries of the precision at each relevant document",
    "span.map": "mean over the hypotheses of the precision of evidence at each step of recall",
}
_LOWER = {
    "brier": "mean squared distance of probability and truth",
    "nll": "mean of -log of the probability of what is right, in nats",
    "ece": "mean distance of probability and share that is right, from 0 to 1",
    "mse": "mean squared distance from the right number",
    "mae": "mean distance from the right number, in its unit",
    "loss": "what the training made smaller, in nats",
    "bits_per_token": "loss in bits of each token that is predicted",
    "bits_per_character": "loss in bits of each character that is predicted",
    "bits_per_byte": "loss in bits for each byte of the text",
    "perplexity": "e to the loss: among so many tokens the model as good as guesses",
    "aurc": "mean share of wrong answers over all shares of documents answered, the surest first",
}
_NEITHER = {
    "support": "documents of the class in the gold file",
    "threshold": "probability from which on the class is given",
    "Confidence": "probability of the answer; of several labels that of the least sure decision, "
    "a label given or left out",
    "Doubt": "how sure the model is that the gold label is wrong; half is as likely as not",
}
LOWER_IS_BETTER = frozenset(_LOWER)
# Of several metrics the one that a report begins with, as a training goes by it.
HEADLINES = ("ndcg@10", "macro_f1", "joint_f1", "Answer F1", "class.accuracy", "f1")


def meaning(name: str) -> str:
    """Return a phrase that explains a metric or a column, by its name or the last word of it, and
    says which direction is better; "" for an unknown name."""
    if name.startswith("answered_"):
        return f"of the documents that have an answer alone: {meaning(name[9:])}"
    for table, direction in (
        (_HIGHER, "higher is better"),
        (_LOWER, "lower is better"),
        (_NEITHER, ""),
    ):
        short = name if name in table else name.replace(" ", "_").rpartition("_")[2].lower()
        if short in table:
            return "; ".join(filter(None, (table[short], direction)))
    return ""
