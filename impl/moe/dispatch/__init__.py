"""Ways on which tokens travel to experts and back, and what several of them are made of."""
