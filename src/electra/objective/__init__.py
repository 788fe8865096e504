"""What a step optimises: one small module an objective, listed in `registry`."""
