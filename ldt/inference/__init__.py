"""Prediction with trained models, and perplexity of language models."""

# `TaskReads.kind` -> class that answers, a `DocumentPredictor` (ldt.inference.stream) made of
# (folder, recipe, device, precision), whose ``automatic(device)`` is the precision of "auto", and
# whose ``inputs``, made of (folder, recipe) without the weights, is a `DocumentEncoder`. As
# text, so that torch is imported when the class is looked up. Others have no answers.
PREDICTORS = {
    "examples": "ldt.inference.predictor:EncoderPredictor",
    "characters": "ldt.inference.generate:CharacterPredictor",
}
# The class that answers in place of those with a model of `ldt export`.
EXPORTED = "ldt.inference.predictor:ExportedPredictor"
