"""The Changes page, and the selector for a second model, which the Vocabulary page also uses."""
