"""The Train page: data, settings, training and result."""
