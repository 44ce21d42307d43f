"""The common part of the clients."""
