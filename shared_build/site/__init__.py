"""What the documentation site needs beyond mkdocs and its plugins: it finds the pages of every package."""
