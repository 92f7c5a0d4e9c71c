"""The laws that tie implementations to oracles, the cases that check them, and the engines that run them."""
