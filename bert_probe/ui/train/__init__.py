"""The Train page, on which the user chooses data and settings, trains a model, and views the result."""
