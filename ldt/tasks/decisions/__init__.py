"""From scores to decisions: thresholds, calibration, abstention. Numbers in, numbers out."""
