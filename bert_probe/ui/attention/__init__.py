"""The Attention page, and the attention selection that it shares with other pages."""
