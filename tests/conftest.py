"""Lets every test import the networks of this folder: `from networks import ...`."""
