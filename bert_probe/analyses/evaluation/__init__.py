"""Evaluation of sentence vectors on judged data, and comparison of two models on the same data."""
