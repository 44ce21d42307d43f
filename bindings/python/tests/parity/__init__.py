"""The faces beside the originals."""
