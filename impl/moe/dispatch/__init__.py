"""Ways on which tokens travel to experts and back. Each is a small module with a function `dispatched(plan)`."""
