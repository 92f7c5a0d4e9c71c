"""The laws that tie implementations to oracles, the cases that check them, and the engines that run them.

What is public is imported from `shardproof`.
"""
