"""Two pictures that Streamlit lacks: a matrix of numbers between tokens, and a text as its tokens."""
