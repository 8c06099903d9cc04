"""Contracts, deliveries and their acceptance.

``contract``   reads and checks ``contract.toml``, the acceptance criteria of an operator as data
``milestone``  builds, proves and writes a delivery; ``accept`` runs a delivery's own ``accept.py``
``audit``      looks into a wheel: what it needs at run time, and on which systems it will load
``report``     renders ``report.html``

Each is a command line too (``python -m shared_build.delivery.<name> --help``), so nothing is imported here.
"""
