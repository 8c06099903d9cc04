"""A module whose import changes nothing."""

VALUE = 1
