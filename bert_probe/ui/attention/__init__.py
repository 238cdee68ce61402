"""The Attention page. Other pages share its selection."""
