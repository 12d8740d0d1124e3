"""A model that answers over HTTP: requests to batches, answers back, limits in between."""
