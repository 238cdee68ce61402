"""Pictures as data: what a browser draws, made of results, for a page, a notebook or a file."""
