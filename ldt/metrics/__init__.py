"""Scores: classes, numbers, entities, calibration, bootstrap intervals, results."""
