"""What runs take on real devices: medians, bandwidths and wrong elements of collectives and products, in one table."""
