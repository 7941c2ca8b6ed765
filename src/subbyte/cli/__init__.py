"""The `subbyte` command."""
