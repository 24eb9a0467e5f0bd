"""The load harness: what chatapi costs beside talking to the upstream directly, and beside a pass-through
written by hand.
"""
