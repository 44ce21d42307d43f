"""What the clients have in common."""
