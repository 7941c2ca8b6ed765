"""The same search by another library, each in a process of its own: `python -m peers_tuning SEARCH`.

The other library may be under a Python of its own, since what it needs is old.
"""
