"""The page Changes, and the choice of a second model, which the page Vocabulary uses too."""
