"""Imports a module that costs a second."""
