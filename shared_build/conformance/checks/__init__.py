"""The checks, by subject. Every module here registers its checks when it is imported."""
