"""Code that tries to break out of the sandbox, or to break it, and code that must simply work.

``python -m tests.hostile.hosts`` runs the catalogue in one host situation and prints a line of
JSON for each case; tests/test_sandbox_hostile.py makes a test of each line.
"""
