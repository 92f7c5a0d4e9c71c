"""What is wrong with the blocks of a failure, in words."""
