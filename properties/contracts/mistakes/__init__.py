"""What is easily mistaken in an operation, by what that is: objects as its oracle, of which one thing is mistaken.

A method that is not mistaken is the oracle's own, so that it says of no implementation that it is wrong.
"""
