"""The checks that need no build: formatting, lint rules, types, docstrings, layout and banned text.

``python -m shared_build.lint`` runs all of them over the repository, ``python -m shared_build.lint rms_norm``
over one package. Each check is a function from a :class:`Tree` to a list of :class:`Finding`; the table in
``__main__`` names them.
"""

from shared_build.lint.tree import Finding, Tree

__all__ = ["Finding", "Tree"]
