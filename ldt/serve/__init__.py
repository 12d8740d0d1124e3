"""HTTP server of a trained model: routes, limits and batching."""
