"""Visualizations of results as data, drawn by the browser in the app, in a notebook or in a file."""
