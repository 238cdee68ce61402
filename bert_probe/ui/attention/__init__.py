"""The page Attention; its view state is shared with other pages."""
