"""Convert pickled weights to safetensors in a separate and restricted process."""
