"""What a model may have been trained for, as pages name it."""

TASKS = {
    "fill-mask": "Fill a mask",
    "text-classification": "Class of the text",
    "token-classification": "Labels of tokens",
    "question-answering": "Answer in a text",
    "next-sentence-prediction": "Next sentence",
    "sentence-similarity": "Similarity of A and B",
}
