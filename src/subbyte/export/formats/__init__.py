"""Checkpoints in the formats of other projects: weight-only models, exact to the code.

`form.py` says what a format is, `contents.py` takes a model apart for it, `assembled.py` puts one together; each format
is a file.
"""
